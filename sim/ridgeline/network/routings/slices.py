"""Routes on slices of a machine: what stays in a slice does not leave it."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from ridgeline.network.paths import (
    Ints,
    LinkGraph,
    Routes,
    graph_of,
    make_graph,
    no_route,
    take,
    widest_shortest,
)
from ridgeline.network.routing import ROUTINGS
from ridgeline.network.topology import Topology


@ROUTINGS.register("slices")
def slices(topology: Topology, source: Ints, target: Ints) -> Routes:
    """Take the shortest path, within a slice only through its nodes.

    Between slices there are fewer links than between distant nodes of a torus, and slower ones:
    the last dimension of the topology's shape, of several slices, are switches that join them.
    """
    of = _slice_of(topology)
    inside = of[source] == of[target]
    choice = topology.ordinal[target].astype(np.int64)
    found, order = [], []
    for which, graph in ((inside, _without_switches(topology)), (~inside, graph_of(topology))):
        at = np.flatnonzero(which)
        routes, lost = widest_shortest(graph, source[at], target[at], choice[at])
        if len(lost):
            raise no_route(topology, int(source[at[lost[0]]]), int(target[at[lost[0]]]))
        found.append(routes)
        order.append(at)
    back = np.argsort(np.concatenate(order))
    ptr = np.concatenate((found[0].ptr[:-1], found[0].ptr[-1] + found[1].ptr))
    return take(Routes(ptr, np.concatenate([routes.links for routes in found])), back)


@lru_cache(maxsize=16)
def _slice_of(topology: Topology) -> Ints:
    """[V] number of the slice of each vertex; -1 of switches."""
    outside = topology.node_of < 0  # the switch between slices, which are the last dimension
    nodes = math.prod(topology.shape[1:-1]) if outside.any() else topology.n_devices
    return np.where(outside, -1, topology.node_of // nodes).astype(np.int64)


@lru_cache(maxsize=16)
def _without_switches(topology: Topology) -> LinkGraph:
    """Return the graph in which switches pass nothing on."""
    forwards = topology.forwards & (np.array(topology.vertex_kinds) != "switch")
    return make_graph(
        topology.n_vertices,
        topology.source,
        topology.target,
        topology.bandwidth_bytes_per_s,
        forwards,
    )
