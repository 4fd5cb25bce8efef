"""Shortest paths: fewest links, then the widest, then spread over equals by destination."""

from __future__ import annotations

from ridgeline.network.paths import Ints, Routes, graph_of, no_route, widest_shortest
from ridgeline.network.routing import ROUTINGS
from ridgeline.network.topology import Topology


@ROUTINGS.register("shortest")
def shortest(topology: Topology, source: Ints, target: Ints) -> Routes:
    """Return the shortest paths; of several, one with the widest bottleneck.

    Hosts, switches and NICs pass messages on, and devices only where `Topology.devices_forward`
    says so. Where several equal links lead to a vertex, they are ordered by the vertex that they
    come from, and the destination's number among the vertices of its kind chooses one: the number
    modulo how many there are, then the quotient at the next choice further from the destination.
    On a fat tree that is D-mod-k routing, which keeps shift permutations such as rings free of
    contention (Zahavi, J. Parallel Distrib. Comput. 72(11), 2012); always choosing the first would
    send everything over one spine.
    """
    choice = topology.ordinal[target].astype(source.dtype)
    found, lost = widest_shortest(graph_of(topology), source, target, choice)
    if len(lost):
        raise no_route(topology, int(source[lost[0]]), int(target[lost[0]]))
    return found
