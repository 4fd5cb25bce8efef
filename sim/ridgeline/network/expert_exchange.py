"""Expert exchange: dispatch and combine of expert parallelism by the kernels of a library.

A call takes, besides its start, as long as the slowest of three ways that its bytes go at once:

    links             copies of all choices, a device's own included, over a share of the peak
    multiprocessors   the same over what the multiprocessors move that the library is given
    adapters          what leaves the node over the adapters that a device has of it

Low-latency kernels send one message for every choice; others send a token once to every device that
has some of its experts, and once to every node. Constants are those of libraries and phases
(``expert_exchange.yaml``), the same on every machine; links, adapters and hosts are the machine's.
"""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import Field

from ridgeline import units
from ridgeline.config import Strict, read_yaml, validate
from ridgeline.errors import RidgelineError, nearest
from ridgeline.network.topology import Topology


class ExchangeCall(Strict):
    """One phase of a library's exchange."""

    library: str
    """As tables and programs call it: deepep-normal, NVLinkOneSided, ..."""
    phase: str
    """dispatch, combine, ..."""
    start: units.Seconds
    """Of the call's kernels."""
    host: units.Seconds = 0.0
    """More, times the host's `issue`."""
    between_nodes: units.Seconds = 0.0
    """More where ranks are on several nodes."""
    rank: units.Seconds = 0.0
    """More for every rank but one."""
    choice: units.Seconds = 0.0
    """More for every choice of every token."""
    reached: float
    """Share of the links' peak."""
    multiprocessor: units.BytesPerSecond | None = None
    """What one multiprocessor moves, of libraries that are given some."""

    @property
    def is_low_latency(self) -> bool:
        """Whether every choice is a message of its own."""
        name = self.library
        return "low-latency" in name or name.endswith("_ll") or name.endswith("generation")


class _Calls(Strict):
    sources: dict[str, str]
    calls: tuple[ExchangeCall, ...] = Field(strict=False)


class ExchangeShape(NamedTuple):
    """What is exchanged: tokens of every rank, their choices, and the bytes of one copy."""

    tokens: int
    top_k: int
    experts: int
    copy_bytes: float


@lru_cache(maxsize=1)
def exchange_calls() -> dict[tuple[str, str], ExchangeCall]:
    """Return the known calls by library and phase."""
    file = Path(__file__).with_name("expert_exchange.yaml")
    return {(c.library, c.phase): c for c in validate(read_yaml(file), _Calls).calls}


def call_named(library: str, phase: str) -> ExchangeCall:
    """Return a call, or raise RidgelineError with the nearest name."""
    known = exchange_calls()
    if (library, phase) not in known:
        names = [" ".join(one) for one in known]
        name = f"{library} {phase}"
        raise RidgelineError(
            f"no expert exchange is called {name!r}{nearest(name, names)} (known: "
            f"{', '.join(names)})"
        )
    return known[library, phase]


def exchange_time_s(
    call: ExchangeCall,
    shape: ExchangeShape,
    topology: Topology,
    ranks: int,
    multiprocessors: int = 0,
) -> float:
    """Return the time of one call on the first `ranks` devices of a machine.

    Parameters
    ----------
    multiprocessors
        Given to the kernels; 0: as many as they want.

    Raises
    ------
    RidgelineError
        If no collective library drives links of the machine, or tokens choose more experts than
        there are.
    """
    link = next((name for name in topology.library if name in topology.link_classes), None)
    if link is None:
        raise RidgelineError(f"{topology.name!r} has no links that devices load and store over")
    node_of = topology.node_of[topology.devices[:ranks]]
    nodes = len(np.unique(node_of))
    each = not call.is_low_latency
    copies = all_copies(shape.top_k, shape.experts, ranks, once_each=each)
    moved = shape.tokens * copies * shape.copy_bytes
    first = topology.source == topology.devices[0]
    out = topology.bandwidth_bytes_per_s[first & topology.of_class(link)].sum()
    busy_s = moved / (float(out) * topology.library[link].of_payload * call.reached)
    if multiprocessors and call.multiprocessor is not None:
        busy_s = max(busy_s, moved / (multiprocessors * call.multiprocessor))
    start_s = call.start + call.host * topology.host_issue + call.rank * (ranks - 1)
    start_s += call.choice * shape.tokens * shape.top_k
    if nodes > 1:
        leaving = all_copies(shape.top_k, shape.experts, nodes, once_each=each)
        away = leaving * (nodes - 1) / nodes
        sent = shape.tokens * away * shape.copy_bytes
        busy_s = max(busy_s, sent / _adapter_bytes_per_s(topology))
        start_s += call.between_nodes
    return start_s + busy_s


def all_copies(top_k: int, experts: int, places: int, *, once_each: bool) -> float:
    """Count the copies of a token over all places, on average of evenly chosen experts.

    Parameters
    ----------
    once_each
        Whether a place with several of its experts gets it once.
    """
    if top_k > experts:
        raise RidgelineError(f"{top_k} of {experts} experts")
    if not once_each:
        return float(top_k)
    own = experts / places
    missed = math.prod(max(0.0, experts - own - i) / (experts - i) for i in range(top_k))
    return places * (1.0 - missed)


@lru_cache(maxsize=64)
def _adapter_bytes_per_s(topology: Topology) -> float:
    """Return what the adapters of the first node send for each of its devices."""
    kinds = np.array(topology.vertex_kinds)
    inside = topology.node_of == topology.node_of[topology.devices[0]]
    nics = np.flatnonzero((kinds == "nic") & inside)
    out = np.isin(topology.source, nics) & ~inside[topology.target]
    devices = int(
        (topology.node_of[topology.devices] == topology.node_of[topology.devices[0]]).sum()
    )
    return float(topology.bandwidth_bytes_per_s[out].sum()) / devices
