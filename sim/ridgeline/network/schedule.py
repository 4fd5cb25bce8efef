"""Schedules: what a collective sends over every link, in phases that the engine can play."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ridgeline.errors import RidgelineError
from ridgeline.network.registry import Registry
from ridgeline.network.topology import Topology


class Phase(NamedTuple):
    """Equal rounds, one after the other: a latency, and then bytes on all links at once."""

    latency_s: float
    repeat: int
    bytes_on_link: Mapping[int, float]
    """Bytes of one round by directed link."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """One collective of one group of ranks.

    Attributes
    ----------
    op
        E.g. ``all-reduce``.
    algorithm
        Name of the algorithm.
    n_ranks
        Size of the group.
    size_bytes
        As nccl-tests counts it: the whole buffer; of an all-gather or a reduce-scatter, the whole
        that is gathered or scattered.
    phases
        In order; none if there is nothing to do.
    """

    op: str
    algorithm: str
    n_ranks: int
    size_bytes: float
    phases: tuple[Phase, ...]

    def bytes_on_wire(self) -> dict[int, float]:
        """Bytes that pass each directed link in all phases together."""
        total: dict[int, float] = {}
        for phase in self.phases:
            for link, size in phase.bytes_on_link.items():
                total[link] = total.get(link, 0.0) + phase.repeat * size
        return total


Algorithm = Callable[[Topology, Sequence[int], float], Schedule]

ALGORITHMS: Registry[tuple[str, str], Algorithm] = Registry(
    "collective algorithm", "ridgeline.network.algorithms"
)
"""Makes the schedule of (topology, ranks, size_bytes); by (op, name)."""


def closed_form_time_s(schedule: Schedule, topology: Topology) -> float:
    """Time of a collective that has the network to itself.

    The sum over phases of ``repeat * (latency + max over links of bytes / bandwidth)``, which is
    what the engine arrives at when nothing else uses the links.
    """
    bandwidth = topology.bandwidth_bytes_per_s
    time_s = 0.0
    for latency_s, repeat, loads in schedule.phases:
        sending_s = (size / float(bandwidth[link]) for link, size in loads.items())
        time_s += repeat * (latency_s + max(sending_s, default=0.0))
    return time_s


def check_size(size_bytes: float) -> None:
    """Raise RidgelineError unless a size is a finite number of at least 0 bytes."""
    if not (math.isfinite(size_bytes) and size_bytes >= 0):
        raise RidgelineError(f"the size of a collective must be at least 0 B, found {size_bytes!r}")
