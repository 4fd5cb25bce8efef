"""Equal-cost multi-path: every message keeps to one of the shortest paths, chosen by a hash."""

from __future__ import annotations

import numpy as np

from ridgeline.network.paths import Ints, Routes, graph_of, no_route, widest_shortest
from ridgeline.network.routing import ROUTINGS
from ridgeline.network.topology import Topology


@ROUTINGS.register("ecmp")
def ecmp(topology: Topology, source: Ints, target: Ints) -> Routes:
    """Hash source, target and the vertex on the way to one of the equal links (RFC 2992).

    Messages between the same two vertices always take the same way, as flows with one address pair
    do. Unlike `shortest`, different messages may collide on a link while others stay idle.
    """
    key = source * np.int64(topology.n_vertices) + target
    choice = (key * np.int64(2654435761)) & np.int64(0x7FFFFFFF)  # Knuth's multiplicative hash
    found, lost = widest_shortest(graph_of(topology), source, target, choice, hashed=True)
    if len(lost):
        raise no_route(topology, int(source[lost[0]]), int(target[lost[0]]))
    return found
