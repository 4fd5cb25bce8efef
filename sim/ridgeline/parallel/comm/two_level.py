"""Two-level collectives of a group that has some of the devices of several nodes.

A ring through all nodes enters and leaves a node by one adapter, so it crosses the node where the
devices of the group are not neighbours of one adapter. In two levels every device keeps to the
adapters next to it: the members of each node share the payload among them over the node's own
links, and members of equal place in their nodes do the rest, all of them at the same time, each
with its part (Cho et al., BlueConnect, SysML 2019, for an all-reduce).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ridgeline.network.algorithm import ALGORITHMS
from ridgeline.network.schedule import CollectiveSchedule, LinkLoads, SchedulePhase
from ridgeline.network.topology import Topology

_INSIDE_FIRST = {
    "all-reduce": ("reduce-scatter", "all-reduce", "all-gather"),
    "reduce-scatter": ("reduce-scatter", "reduce-scatter", None),
    "all-gather": (None, "all-gather", "all-gather"),
}
"""What is done in the nodes, between them, and in the nodes again."""
_FEW = 8


def two_level(
    op: str, topology: Topology, ranks: Sequence[int], size_bytes: float
) -> CollectiveSchedule | None:
    """Return the schedule, or None if the group has no two levels.

    It has where each node has equally many of its members, more than one and not all devices.
    """
    nodes: dict[int, list[int]] = {}
    for rank in ranks:
        nodes.setdefault(int(topology.node_of[topology.devices[rank]]), []).append(rank)
    inner = len(next(iter(nodes.values())))
    per_node = int((topology.node_of[topology.devices] == next(iter(nodes))).sum())
    alike = all(len(members) == inner for members in nodes.values())
    if op not in _INSIDE_FIRST or len(nodes) < 2 or not alike or not 1 < inner < per_node:
        return None
    before, between, after = _INSIDE_FIRST[op]
    inside: list[Sequence[int]] = list(nodes.values())
    rails: list[Sequence[int]] = list(zip(*inside, strict=True))
    levels = [
        (before, inside, size_bytes),
        (between, rails, size_bytes / inner),
        (after, inside, size_bytes),
    ]
    phases = [
        phase
        for name, groups, size in levels
        if name is not None
        for phase in _together(name, topology, groups, size)
    ]
    return CollectiveSchedule(op, "two-level", len(ranks), float(size_bytes), tuple(phases))


def _together(
    op: str, topology: Topology, groups: Sequence[Sequence[int]], size_bytes: float
) -> list[SchedulePhase]:
    """Rings of several groups at the same time, as one: each round is as long as the longest."""
    ring = _inside if len(groups[0]) <= _FEW else _ring
    rings = [ring(op, topology, tuple(group), size_bytes) for group in groups]
    phases = []
    for rounds in zip(*(ring.phases for ring in rings), strict=True):
        on_link = np.zeros(topology.n_links)
        for phase in rounds:
            if isinstance(phase.bytes_on_link, LinkLoads):
                on_link[phase.bytes_on_link.links] += phase.bytes_on_link.bytes
        links = np.flatnonzero(on_link)
        latency_s = max(phase.latency_s for phase in rounds)
        loads = LinkLoads(links.astype(np.int32), on_link[links])
        phases.append(SchedulePhase(latency_s, rounds[0].repeat, loads))
    return phases


def _ring(
    op: str, topology: Topology, ranks: tuple[int, ...], size_bytes: float
) -> CollectiveSchedule:
    return ALGORITHMS[op, "ring"](topology, ranks, size_bytes)


_inside = lru_cache(maxsize=4096)(_ring)  # many groups have the same ranks of a node
