"""Two-level routing tables of the k-ary fat tree (Al-Fares et al., SIGCOMM 2008, section 3)."""

from __future__ import annotations

import numpy as np

from ridgeline.errors import RidgelineError
from ridgeline.network.paths import Ints, Routes
from ridgeline.network.routing import ROUTINGS
from ridgeline.network.topology import Topology


@ROUTINGS.register("two-level-table")
def two_level_table(topology: Topology, source: Ints, target: Ints) -> Routes:
    """Route between hosts of ``FatTree(k, ...)`` as its two-level tables do.

    Down by prefix: there is one way. Up by the suffix of the destination's address: edge switch e
    and aggregation switch e of a pod both send to the host with the number j at its edge switch
    through their uplink (j + e) mod k/2 (the paper's Algorithm 1).

    Raises
    ------
    RidgelineError
        If the topology is another one, or an end is not a host.
    """
    hosts = topology.n_devices
    k = round((4 * hosts) ** (1 / 3))
    half = k // 2
    if k**3 != 4 * hosts or topology.n_vertices != hosts + 5 * half * half:
        raise RidgelineError(
            f"{topology.name!r} is no FatTree(k, ...), to which two-level tables belong; use the "
            "routing 'shortest' or 'ecmp'"
        )
    if (source >= hosts).any() or (target >= hosts).any():
        raise RidgelineError("two-level tables lead from host to host")
    edge = hosts  # first vertices of the levels, in the order of drawing
    aggregation, core = edge + k * half, edge + 2 * k * half
    edge_from, edge_to = source // half, target // half  # counted over all pods
    pod_from, pod_to = edge_from // half, edge_to // half
    up = (target % half + edge_from % half) % half  # which aggregation switch
    through = up * half + (target % half + up) % half  # which core
    far, near = pod_from != pod_to, edge_from != edge_to
    none = np.full_like(source, -1)
    stations = np.stack(
        [
            source,
            edge + edge_from,
            np.where(near, aggregation + pod_from * half + up, none),
            np.where(far, core + through, none),
            np.where(far, aggregation + pod_to * half + up, none),
            np.where(near, edge + edge_to, none),
            target,
        ],
        axis=1,
    )
    stations[source == target, 1:] = -1
    return along(topology, stations)


def along(topology: Topology, stations: Ints) -> Routes:
    """Return the links that join the stations [M, n] of each message; -1 is no station."""
    message, column = np.nonzero(stations >= 0)
    vertex = stations[message, column]
    joined = message[1:] == message[:-1]
    key = topology.source.astype(np.int64) * topology.n_vertices + topology.target
    links = np.searchsorted(key, vertex[:-1][joined] * topology.n_vertices + vertex[1:][joined])
    count = np.bincount(message[1:][joined], minlength=len(stations))
    ptr = np.concatenate((np.zeros(1, np.int64), np.cumsum(count)))
    return Routes(ptr, links.astype(np.int32))
