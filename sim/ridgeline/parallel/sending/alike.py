"""Whether the devices of a stage are wired alike, so that one can be simulated for all.

On most machines they are. In a cube mesh (DGX-1) some pairs have two links and others one, in a
tree of PCIe switches some pairs cross the root, in a dragonfly some nodes are further apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from ridgeline.network.schedule import closed_form_time_s
from ridgeline.network.topology import Floats
from ridgeline.parallel.division.labels import GRID, HALO
from ridgeline.parallel.division.reach import written
from ridgeline.parallel.plans.mesh import Mesh, Ranks
from ridgeline.parallel.sending.chosen import COPIES, schedule_of
from ridgeline.parallel.sending.wires import PROBE_BYTES, Wires
from ridgeline.parallel.steps.team import stream_of

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


def are_alike(wires: Wires, mesh: Mesh, *, wraps: bool = False, offloads: bool = False) -> bool:
    """Whether nothing tells the groups of a dimension apart, or the messages between two stages.

    Every group is priced, with a short and a long collective. They have to take the same time, meet
    the same loads of all other dimensions and stages on their links, share links only in their
    nodes, be as many on their fullest link as those are that they meet on any, and meet them on the
    links that are simulated as on those that these stand for.

    Parameters
    ----------
    wraps
        Whether the last stage sends to the first, as where ranks have several parts of the layers.
    offloads
        Whether devices copy to their hosts, and back.
    """
    kinds = list(_kinds(mesh, wraps=wraps))
    if offloads:
        kinds += _copies(mesh)
    found = [_drawn(wires, kind) for kind in kinds]
    drawn = [loads for loads in found if loads is not None]
    if len(drawn) < len(found) or not drawn:
        return not found
    meets = np.array([loads.sum(axis=0) for loads in drawn])
    flows = np.array([_flows(loads) for loads in drawn])
    for i, loads in enumerate(drawn):
        met = np.flatnonzero(meets[:, meets[i] > 0].any(axis=1))
        others = [j for j in met.tolist() if kinds[i].queue != kinds[j].queue]
        if not all(_equal_rows(loads, meets[j]) for j in met.tolist()):
            return False
        if (np.abs(flows[others] - flows[i]) > _EQUAL * flows[i]).any():
            return False
    return _stand_for_all(wires, kinds, drawn, meets)


def _stand_for_all(
    wires: Wires, kinds: Sequence[_Kind], drawn: Sequence[Floats], meets: Floats
) -> bool:
    """Whether groups that stand for others meet each other where all of these do.

    Of a link that the first group of a kind uses, what it carries of this kind and of another has
    to be so on a link, too, that both keep (`Wires.stands`) under one name of its own.
    """
    kept = np.zeros(meets.shape, np.bool_)
    names: dict[int, set[tuple[str, int]]] = {}
    for i, loads in enumerate(drawn):
        links = np.flatnonzero(loads[0])
        stands, home = wires.stands(links, kinds[i].groups[0])
        kept[i, links] = stands
        if not wires.keeps_all:
            for link, node in zip(links[stands].tolist(), home[stands].tolist(), strict=True):
                names.setdefault(link, set()).add((wires.role(link, node), node))
    if len(set().union(*names.values())) < len(names) or any(len(n) > 1 for n in names.values()):
        return False
    for i, loads in enumerate(drawn):
        links = np.flatnonzero(loads[0])
        for j in np.flatnonzero(meets[:, links].any(axis=1)).tolist():
            if kinds[i].queue == kinds[j].queue:
                continue
            shared = links[meets[j, links] > 0]
            pairs = np.stack((loads[0, shared], meets[j, shared]), axis=1)
            both = kept[i, shared] & kept[j, shared]
            close = np.isclose(pairs[:, None], pairs[None, both], rtol=_EQUAL, atol=0).all(axis=2)
            if not close.any(axis=1).all():
                return False
    return True


def _flows(loads: Floats) -> float:
    """Return how many of a dimension's flows are on its fullest link.

    A folded flow goes at the rate of all of them there (rule 3 of `engine.program`). Beside another
    on some link it has its due share if that one stands for as many.
    """
    return float(loads.sum(axis=0).max() / loads.max())


class _Kind(NamedTuple):
    """What is sent in a stage or between two: queue of the stage, op, size, all groups."""

    queue: tuple[int, str]
    op: str
    size_bytes: float
    groups: Ranks


def _kinds(mesh: Mesh, *, wraps: bool) -> Iterator[_Kind]:
    """Yield all that is sent in and between stages, short and long."""
    stages = range(len(mesh.stages))
    for stage in stages:
        for queue, groups in _grouped(mesh, stage):
            for size_bytes in (_SHORT_BYTES, PROBE_BYTES):
                yield _Kind((stage, queue), "all-reduce", size_bytes, groups)
        yield from _halos(mesh, stage)
    for stage in stages if wraps else stages[1:]:
        ends = mesh.replica(stage - 1), mesh.replica(stage)
        yield _Kind((stage, "forward"), "send", PROBE_BYTES, np.stack(ends, axis=1))
        yield _Kind((stage, "backward"), "send", PROBE_BYTES, np.stack(ends[::-1], axis=1))


def _copies(mesh: Mesh) -> Iterator[_Kind]:
    """Yield what devices copy to their hosts, and back: groups of one."""
    for stage in range(len(mesh.stages)):
        for op in COPIES:
            yield _Kind((stage, "host"), op, PROBE_BYTES, mesh.stage(stage)[:, None])


def _halos(mesh: Mesh, stage: int) -> Iterator[_Kind]:
    """Yield what devices that share images fetch of neighbours on one side, the other, or both."""
    for dimension in ("spatial.rows", "spatial.columns") if math.prod(mesh.grid) > 1 else ():
        groups = mesh.groups(stage, dimension)
        near = np.eye(groups.shape[1], k=1, dtype=np.int64)
        for side in (near, near.T, near + near.T) if near.any() else ():
            op = f"{HALO} {written(side)}"
            yield _Kind((stage, stream_of(dimension)), op, PROBE_BYTES, groups)


def _grouped(mesh: Mesh, stage: int) -> Iterator[tuple[str, Ranks]]:
    """Yield the groups of every dimension and level of a plan, and their queue of a rank."""
    levels = range(len(mesh.levels))
    grid = [f"{name}.{part}" for name in ("spatial", "data") for part in ("rows", "columns")]
    images = [*grid, "data.spatial"] if math.prod(mesh.grid) > 1 else []
    parts = [f"{name}.{level}" for name in ("tensor", "data") for level in levels]
    first, last = mesh.expert_levels
    shares = mesh.expert > 1 or mesh.expert_context > 1 or last > first
    experts = ["expert", "beyond"] if shares else []
    tensor = GRID if mesh.tensor_grid is not None else ()
    for dimension in (*_DIMENSIONS, *parts, *tensor, *experts, *images):
        groups = mesh.groups(stage, *mesh.along(dimension))
        if groups.shape[1] > 1:
            yield stream_of(dimension), groups


def _drawn(wires: Wires, kind: _Kind) -> Floats | None:
    """Return [groups, links] what a collective of each group puts on each link.

    None if they do not take the same time, or groups in different nodes share a link.
    """
    groups = kind.groups
    loads = np.zeros((len(groups), wires.topology.n_links))
    times_s = []
    for row, group in zip(loads, groups, strict=True):
        schedule = schedule_of(kind.op, wires.topology, group, kind.size_bytes)
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
