"""Whether the devices of a stage are wired alike, so that one can be simulated for all.

On most machines they are. In a cube mesh (DGX-1) some pairs have two links and others one, in a
tree of PCIe switches some pairs cross the root, in a dragonfly some nodes are further apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np

from ridgeline.network.schedule import closed_form_time_s
from ridgeline.network.topology import Floats
from ridgeline.parallel.chosen import schedule_of
from ridgeline.parallel.mesh import Mesh, Ranks
from ridgeline.parallel.team import stream_of
from ridgeline.parallel.wires import PROBE_BYTES, Wires

_EQUAL = 1e-9
_SHORT_BYTES = 4096.0  # a collective that is all latency
_DIMENSIONS = ("tensor", "spatial", "context", "data")


def slowest(wires: Wires, mesh: Mesh, stage: int) -> tuple[int, bool]:
    """Return a rank of a stage whose groups inside a node are the slowest, and if others are not.

    All others wait for it, so that it stands for them as an upper bound.
    """
    ranks = mesh.stage(stage)
    total_s = dict.fromkeys(ranks.tolist(), 0.0)
    for dimension in _DIMENSIONS:
        for time_s, group in wires.inside_times(mesh.groups(stage, dimension)):
            for rank in group:
                total_s[rank] += time_s
    found: int = max(total_s, key=lambda rank: (total_s[rank], -rank))
    return found, total_s[found] > min(total_s.values()) * (1 + _EQUAL)


def are_alike(wires: Wires, mesh: Mesh) -> bool:
    """Whether nothing tells the groups of a dimension apart, or the messages between two stages.

    Every group is priced, with a short and a long collective. They have to take the same time, meet
    the same loads of all other dimensions and stages on their links, share links only in their
    nodes, and be as many on a link as those of others there, since folded flows share it evenly.
    """
    kinds = list(_kinds(mesh))
    found = [_drawn(wires, op, groups) for _, op, groups in kinds]
    drawn = [loads for loads in found if loads is not None]
    if len(drawn) < len(found):
        return False
    meets = [loads.sum(axis=0) for loads in drawn]
    for loads in drawn:
        if any(not _equal_rows(loads, other) for other in meets):
            return False
    many = [(loads > 0).sum(axis=0) for loads in drawn]
    for (queue, a), (other_queue, b) in combinations(
        zip((queue for queue, _, _ in kinds), many, strict=True), 2
    ):
        if queue != other_queue and ((a > 0) & (b > 0) & (a != b)).any():
            return False
    return True


def _kinds(mesh: Mesh) -> Iterator[tuple[tuple[int, str], str, Ranks]]:
    """Yield the queue, the op and the groups of all that is sent in and between stages."""
    for stage in range(len(mesh.stages)):
        for queue, groups in _grouped(mesh, stage):
            yield (stage, queue), "all-reduce", groups
        if stage:
            ends = mesh.replica(stage - 1), mesh.replica(stage)
            yield (stage, "forward"), "send", np.stack(ends, axis=1)
            yield (stage, "backward"), "send", np.stack(ends[::-1], axis=1)


def _grouped(mesh: Mesh, stage: int) -> Iterator[tuple[str, Ranks]]:
    """Yield the groups of every dimension and level of a plan, and their queue of a rank."""
    levels = range(len(mesh.levels))
    parts = [f"{name}.{level}" for name in ("tensor", "data") for level in levels]
    experts = ["expert", "beyond"] if mesh.expert > 1 else []
    for dimension in (*_DIMENSIONS, *parts, *experts):
        groups = mesh.groups(stage, *mesh.along(dimension))
        if groups.shape[1] > 1:
            yield stream_of(dimension), groups


def _drawn(wires: Wires, op: str, groups: Ranks) -> Floats | None:
    """Return [groups, links] what a long collective of each group puts on each link.

    None if they do not take the same time, or groups in different nodes share a link.
    """
    for size_bytes in (_SHORT_BYTES, PROBE_BYTES):
        loads = np.zeros((len(groups), wires.topology.n_links))
        times_s = []
        for row, group in zip(loads, groups, strict=True):
            schedule = schedule_of(op, wires.topology, group, size_bytes)
            times_s.append(closed_form_time_s(schedule, wires.topology))
            on_wire = schedule.bytes_on_wire()
            row[list(on_wire)] = list(on_wire.values())
        if max(times_s) > min(times_s) * (1 + _EQUAL):
            return None
    nodes = [frozenset(wires.node[group].tolist()) for group in groups]
    for link in np.flatnonzero((loads > 0).sum(axis=0) > 1).tolist():
        users = np.flatnonzero(loads[:, link]).tolist()
        if any(nodes[a].isdisjoint(nodes[b]) for a, b in combinations(users, 2)):
            return None
    return loads


def _equal_rows(loads: Floats, other: Floats) -> bool:
    """Whether all groups meet the same loads of another dimension on links with equal own loads."""
    met = []
    for row in loads:
        links = np.flatnonzero(row)
        both = np.stack((row[links], other[links]), axis=1)
        met.append(both[np.lexsort(both.T)])
    return all(len(one) == len(met[0]) and np.allclose(one, met[0], rtol=_EQUAL) for one in met)
