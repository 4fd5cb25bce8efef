"""Up*/down* routing: towards the root first, and never up again after going down."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ridgeline.network.paths import (
    NONE,
    Ints,
    LinkGraph,
    Routes,
    distances,
    graph_of,
    make_graph,
    no_route,
    take,
    widest_shortest,
)
from ridgeline.network.routing import ROUTINGS
from ridgeline.network.topology import Topology


@ROUTINGS.register("up-down")
def up_down(topology: Topology, source: Ints, target: Ints) -> Routes:
    """Return the shortest path whose links first lead up and then down.

    Free of deadlock on every graph (Schroeder et al., "Autonet", IEEE J. Sel. Areas Commun. 9(8),
    1991). The root is the switch with the smallest distance to the farthest vertex, the first of
    several; up is towards it, and towards the smaller number at equal distance. On a fat tree whose
    top level is reached in equally many links all shortest paths are of this kind.
    """
    graph, link = _two_floors(topology)
    n = topology.n_vertices
    choice = topology.ordinal[target].astype(np.int64)
    # Floor 0: so far only up; floor 1: has gone down. A message may arrive on either.
    found = [widest_shortest(graph, source, target + floor * n, choice) for floor in (0, 1)]
    length = np.stack([np.diff(routes.ptr) for routes, _ in found])
    for floor, (_, lost) in enumerate(found):
        length[floor, lost] = np.iinfo(np.int64).max
    lost = np.flatnonzero(length.min(axis=0) == np.iinfo(np.int64).max)
    if len(lost):
        raise no_route(topology, int(source[lost[0]]), int(target[lost[0]]))
    ptr = np.concatenate((found[0][0].ptr[:-1], found[0][0].ptr[-1] + found[1][0].ptr))
    both = Routes(ptr, np.concatenate([link[routes.links] for routes, _ in found]))
    best = np.where(source == target, 0, length.argmin(axis=0))
    return take(both, best * len(source) + np.arange(len(source)))


@lru_cache(maxsize=16)
def _two_floors(topology: Topology) -> tuple[LinkGraph, npt.NDArray[np.int32]]:
    """Return the graph of legal moves, and which link of the topology each of its links is."""
    n = topology.n_vertices
    level = _levels(topology)
    key = level * n + np.arange(n)
    source, target = topology.source.astype(np.int64), topology.target.astype(np.int64)
    up = key[target] < key[source]
    moves = [(source[up], target[up], up), (source[~up], target[~up] + n, ~up),
             (source[~up] + n, target[~up] + n, ~up)]  # fmt: skip
    start = np.concatenate([a for a, _, _ in moves])
    end = np.concatenate([b for _, b, _ in moves])
    link = np.concatenate([np.flatnonzero(which) for _, _, which in moves])
    order = np.lexsort((link, end, start))
    graph = make_graph(
        2 * n,
        start[order],
        end[order],
        topology.bandwidth_bytes_per_s[link[order]],
        np.tile(topology.forwards, 2),
    )
    return graph, link[order].astype(np.int32)


def _levels(topology: Topology) -> Ints:
    """[V] links to the root."""
    graph = graph_of(topology)
    kinds = np.array(topology.vertex_kinds)
    roots = np.flatnonzero(kinds == "switch")
    if not len(roots):
        roots = np.flatnonzero(topology.forwards)
    best: tuple[int, int] | None = None
    level = np.zeros(topology.n_vertices, np.int64)
    for root in roots.tolist():
        distance, ways = np.empty(topology.n_vertices, np.int64), np.empty(topology.n_vertices)
        farthest = distances(graph.out_ptr, graph.target, graph.forwards, root, distance, ways)
        reached = int((distance != NONE).sum())
        if best is None or (-reached, farthest) < best:
            best, level = (-reached, farthest), np.where(distance < 0, len(distance), distance)
    return level
