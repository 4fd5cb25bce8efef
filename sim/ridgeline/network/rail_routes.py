"""Rail routes: equal-hop paths over the rails that other paths leave free."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ridgeline.network.paths import Ints, Routes, make_graph, widest_shortest
from ridgeline.network.routing import routes
from ridgeline.network.topology import Floats, Topology

_SPENT = 1e-9
"""Of a link's bandwidth; what is left below it is a rounding error."""


def rails(topology: Topology, source: Ints, target: Ints) -> Iterator[tuple[Routes, float]]:
    """Yield ways of hops that are used at the same time, until the links have no room for more.

    The first ways are those of the topology's routing. The next are the widest shortest paths over
    what is left of the links of the node, and so on; all hops of one rail have the same bandwidth,
    that of the narrowest link divided by the hops that pass it. A rail is only as good as what it
    does not delay: no hop may pass more links than it does at first, and none may take longer than
    the slowest hop does at first, since the rounds of all rails begin and end together.

    Parameters
    ----------
    source, target
        [M] vertices of one node.

    Yields
    ------
    tuple
        The ways, and their bandwidth in bytes per second.
    """
    bandwidth = topology.bandwidth_bytes_per_s
    ways = routes(topology, source, target)
    most_links = np.diff(ways.ptr)
    most_s = float(_hop_s(topology, ways).max())
    left = bandwidth.copy()
    inside = topology.node_of == topology.node_of[source[0]]
    inside_link = inside[topology.source] & inside[topology.target]
    while True:
        hops = np.bincount(ways.links, minlength=topology.n_links)
        used = np.flatnonzero(hops)
        rate = float((left[used] / hops[used]).min())
        yield ways, rate
        left[used] -= rate * hops[used]
        left[(left <= _SPENT * bandwidth) | ~inside_link] = 0.0
        while True:
            found = _remaining(topology, source, target, left)
            if found is None or (np.diff(found.ptr) > most_links).any():
                return
            slow = np.flatnonzero(_hop_s(topology, found) > most_s * (1 + 1e-12))
            if not len(slow):
                break
            for hop in slow:
                links = found.links[found.ptr[hop] : found.ptr[hop + 1]]
                left[links[topology.latency_s[links].argmax()]] = 0.0
        ways = found


def _hop_s(topology: Topology, ways: Routes) -> Floats:
    """[M] latency of every hop; all have links."""
    hop_s: Floats = np.add.reduceat(topology.latency_s[ways.links], ways.ptr[:-1])
    return hop_s


def _remaining(topology: Topology, source: Ints, target: Ints, left: Floats) -> Routes | None:
    """Route all hops over the links that have bandwidth left, or return None."""
    links = np.flatnonzero(left)
    begin, end = topology.source[links], topology.target[links]
    if not (np.isin(source, begin).all() and np.isin(target, end).all()):
        return None  # as it is behind every single switch: nothing to search
    graph = make_graph(topology.n_vertices, begin, end, left[links], topology.forwards)
    # By their place in the node: equal nodes have equal rails.
    own = topology.devices[topology.node_of[topology.devices] == topology.node_of[source[0]]]
    first = int(topology.ordinal[own].min()) if len(own) else 0
    choice = topology.ordinal[target].astype(np.int64) - first
    found, lost = widest_shortest(graph, source, target, choice)
    return None if len(lost) else Routes(found.ptr, links[found.links].astype(np.int32))
