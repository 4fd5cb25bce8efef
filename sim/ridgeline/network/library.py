"""Library figures of a link class, as numbers: what `ridgeline.hardware.collective_library` says.

Shares are of what payload reaches of the links (`Topology.bandwidth_bytes_per_s`), so that a link
that is described with another bandwidth is priced with this.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ridgeline.hardware.collective_library import (
    CollectiveLibrary,
    Generation,
    OneShotTimes,
    PairTimes,
    ProtocolTimes,
)
from ridgeline.hardware.node import LinkType

PROTOCOLS = ("ll", "ll128", "simple")
_SLICE_BYTES = 2.0**20


class ProtocolFigures(NamedTuple):
    """Figures of one protocol; None where the library's own constant counts."""

    start_s: float | None
    hop: float | None
    spread_s: float
    share: float | None
    copy_bytes_per_s: float
    byte_sum: float
    slice_bytes: float


class PairFigures(NamedTuple):
    """Figures of sends and receives."""

    small_start_s: float
    start_s: float
    one_start_s: float
    each_s: float
    kernel_bytes_per_s: float

    def latency_s(self, message_bytes: float, peers: int) -> float:
        """Return the time of a call besides its bytes."""
        if message_bytes <= SMALL_MESSAGE_BYTES:
            start_s = self.small_start_s
        else:
            start_s = self.start_s if peers > 1 else self.one_start_s
        return start_s + self.each_s * max(peers - 1, 0)


SMALL_MESSAGE_BYTES = 16384
"""Largest message of a pair that goes by LL (NCCL_P2P_LL_THRESHOLD)."""


class OneShotFigures(NamedTuple):
    """Figures of kernels that read their peers' buffers."""

    start_s: float
    barrier_s: float
    eager_s: float


class LinkLibrary(NamedTuple):
    """Collective library of a link class.

    Attributes
    ----------
    protocols
        In the order of `PROTOCOLS`.
    of_payload
        Peak of the links over what payload reaches of it.
    """

    name: str
    generation: Generation
    transport: str
    channels: int | None
    protocols: tuple[ProtocolFigures, ...]
    pairs: PairFigures | None
    one_shot: OneShotFigures | None
    of_payload: float


def link_library(library: CollectiveLibrary, link: LinkType) -> LinkLibrary:
    """Return the figures of a library on a link type."""
    achievable = link.achievable.value
    each = (getattr(library, name) for name in PROTOCOLS)
    return LinkLibrary(
        name=library.name,
        generation=library.generation.value,
        transport=library.transport,
        channels=None if library.channels is None else library.channels.value,
        protocols=tuple(_protocol(one, achievable) for one in each),
        pairs=None if library.pairs is None else _pairs(library.pairs),
        one_shot=None if library.one_shot is None else _one_shot(library.one_shot),
        of_payload=1 / achievable,
    )


def _protocol(of: ProtocolTimes, achievable: float) -> ProtocolFigures:
    return ProtocolFigures(
        start_s=None if of.start is None else of.start.value,
        hop=None if of.hop is None else of.hop.value,
        spread_s=0.0 if of.spread is None else of.spread.value,
        share=None if of.reached is None else of.reached.value / achievable,
        copy_bytes_per_s=math.inf if of.copy_rate is None else of.copy_rate.value,
        byte_sum=1.0 if of.byte_sum is None else of.byte_sum.value,
        slice_bytes=_SLICE_BYTES if of.slice is None else of.slice.value,
    )


def _pairs(of: PairTimes) -> PairFigures:
    rate = math.inf if of.kernel_rate is None else of.kernel_rate.value
    one_start_s = of.start.value if of.one_start is None else of.one_start.value
    return PairFigures(of.small_start.value, of.start.value, one_start_s, of.each.value, rate)


def _one_shot(of: OneShotTimes) -> OneShotFigures:
    return OneShotFigures(of.start.value, of.barrier.value, of.eager.value)
