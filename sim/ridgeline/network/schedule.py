"""Schedules: what a collective sends over every link, in phases that the engine can play."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ridgeline import units
from ridgeline.errors import RidgelineError
from ridgeline.network.topology import Floats, Indices, Topology


class LinkLoads(Mapping[int, float]):
    """Bytes by directed link, as arrays: links ascending."""

    def __init__(self, links: Indices, size_bytes: Floats) -> None:
        self.links, self.bytes = links, size_bytes

    def __getitem__(self, link: int) -> float:
        place = int(np.searchsorted(self.links, link))
        if place == len(self.links) or self.links[place] != link:
            raise KeyError(link)
        return float(self.bytes[place])

    def __iter__(self) -> Iterator[int]:
        return iter(self.links.tolist())

    def __len__(self) -> int:
        return len(self.links)

    def __repr__(self) -> str:
        return f"<Loads of {len(self)} links>"

    def times(self, factor: float) -> LinkLoads:
        """Return so many times the bytes."""
        return LinkLoads(self.links, self.bytes * factor)

    def same(self, other: LinkLoads) -> bool:
        """Tell whether two have the same bytes on the same links."""
        return np.array_equal(self.links, other.links) and np.array_equal(self.bytes, other.bytes)


def loads_of_links(
    passed: Sequence[int] | Indices, size_bytes: Sequence[float] | Floats, n_links: int
) -> LinkLoads:
    """Add up bytes by link, in the order in which they are given."""
    links = np.array(passed, np.int32)
    total: Floats = np.zeros(n_links)
    total += np.bincount(links, size_bytes, n_links)
    used = np.unique(links)
    return LinkLoads(used, total[used])


class SchedulePhase(NamedTuple):
    """Equal rounds, one after the other: a latency, and then bytes on all links at once."""

    latency_s: float
    repeat: int
    bytes_on_link: Mapping[int, float]
    """Bytes of one round by directed link."""


@dataclass(frozen=True, slots=True)
class CollectiveSchedule:
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
    phases: tuple[SchedulePhase, ...]

    def bytes_on_wire(self) -> dict[int, float]:
        """Bytes that pass each directed link in all phases together."""
        parts = [(loads_of(phase), phase.repeat) for phase in self.phases]
        n_links = max((int(loads.links[-1]) + 1 for loads, _ in parts if len(loads)), default=0)
        total = np.zeros(n_links)
        passed = np.zeros(n_links, dtype=bool)
        for loads, repeat in parts:
            total[loads.links] += repeat * loads.bytes
            passed[loads.links] = True
        links = np.flatnonzero(passed)
        return dict(zip(links.tolist(), total[links].tolist(), strict=True))


def closed_form_time_s(schedule: CollectiveSchedule, topology: Topology) -> float:
    """Time of a collective that has the network to itself.

    The sum over phases of ``repeat * (latency + max over links of bytes / bandwidth)``, which is
    what the engine arrives at when nothing else uses the links.
    """
    bandwidth = topology.bandwidth_bytes_per_s
    time_s = 0.0
    for phase in schedule.phases:
        loads = loads_of(phase)
        busy_s = float((loads.bytes / bandwidth[loads.links]).max(initial=0.0))
        time_s += phase.repeat * (phase.latency_s + busy_s)
    return time_s


def loads_of(phase: SchedulePhase) -> LinkLoads:
    """Return the bytes on links of a round as arrays."""
    loads = phase.bytes_on_link
    if isinstance(loads, LinkLoads):
        return loads
    links = sorted(loads)
    return LinkLoads(
        np.array(links, np.int32), np.array([loads[link] for link in links], np.float64)
    )


def check_size(size_bytes: float) -> None:
    """Raise RidgelineError unless a size is a number of bytes that can be."""
    if not (math.isfinite(size_bytes) and size_bytes >= 0):
        raise RidgelineError(f"the size of a collective must be at least 0 B, found {size_bytes!r}")
    if size_bytes > units.MOST_BYTES:
        most = units.show(units.MOST_BYTES, "B")
        raise RidgelineError(
            f"the size of a collective must be at most {most}, found {size_bytes!r}"
        )
