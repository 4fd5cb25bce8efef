"""Measures of a topology: counts, distances, shortest paths and bisection bandwidth."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np

from ridgeline.network.paths import NONE, Ints, distances, graph_of
from ridgeline.network.topology import Topology

EXHAUSTIVE = 1000
"""Largest number of ways to halve the devices that are all tried."""


@dataclass(frozen=True, slots=True)
class Measures:
    """What a topology amounts to.

    Attributes
    ----------
    n_devices, n_switches, n_nics
        Vertices; devices in use only.
    n_links
        Physical links, each carrying data both ways.
    diameter
        Links on the longest of the shortest paths between devices in use; -1 if two have none.
    bisection_bytes_per_s
        Bandwidth, one way, of the narrowest cut between two halves of the devices.
    bisection_method
        ``formula``; ``exhaustive`` (all halves tried); or ``bound``: the narrowest of the cuts
        between halves in rank order and across the dimensions, at least the true value.
    links
        What there is of each link class.
    cost_dollars, power_w, priced
        See `Topology`.
    """

    n_devices: int
    n_switches: int
    n_nics: int
    n_links: int
    diameter: int
    bisection_bytes_per_s: float
    bisection_method: str
    links: tuple[LinkClass, ...]
    cost_dollars: float | None
    power_w: float | None
    priced: str


@dataclass(frozen=True, slots=True)
class LinkClass:
    """Links of one class; bandwidth of one of them, in one direction."""

    name: str
    n_links: int
    bandwidth_bytes_per_s: float
    latency_s: float
    energy_j_per_bit: float


def link_classes(topology: Topology) -> tuple[LinkClass, ...]:
    """Return what there is of each link class; equal ones of different bandwidth stand apart."""
    each = topology.bandwidth_bytes_per_s / topology.count
    rows: dict[tuple[str, float, float, float], int] = {}
    for link, name in enumerate(topology.link_class):
        key = (name, float(each[link]), float(topology.latency_s[link]),
               float(topology.energy_j_per_byte[link]))  # fmt: skip
        rows[key] = rows.get(key, 0) + int(topology.count[link])
    return tuple(
        LinkClass(name, n // 2, bandwidth, latency_s, energy_j / 8)
        for (name, bandwidth, latency_s, energy_j), n in sorted(rows.items())
    )


def measure(topology: Topology) -> Measures:
    """Measure a topology; see `Measures`."""
    kinds = Counter(topology.vertex_kinds)
    bisection, method = bisection_bandwidth(topology)
    return Measures(
        topology.n_devices,
        kinds["switch"],
        kinds["nic"],
        int(topology.count.sum()) // 2,
        diameter(topology),
        bisection,
        method,
        link_classes(topology),
        topology.cost_dollars,
        topology.power_w,
        topology.priced,
    )


def diameter(topology: Topology) -> int:
    """Return the largest number of links between two devices in use; -1 if two have no path.

    Devices whose only neighbour is the same vertex are equally far from all others, so that one of
    them is searched from.
    """
    graph = graph_of(topology)
    devices = topology.devices.astype(np.int64)
    degree = topology.out_ptr[devices + 1] - topology.out_ptr[devices]
    only = np.where(degree == 1, topology.target[topology.out_ptr[devices] % topology.n_links], -1)
    starts: Ints = devices[(degree != 1)]
    _, first = np.unique(only[degree == 1], return_index=True)
    starts = np.concatenate((starts, devices[degree == 1][first]))
    distance = np.empty(topology.n_vertices, np.int64)
    ways = np.empty(topology.n_vertices)
    farthest = 0
    for start in starts.tolist():
        distances(graph.out_ptr, graph.target, graph.forwards, start, distance, ways)
        reached = distance[devices]
        if (reached == NONE).any():
            return NONE
        farthest = max(farthest, int(reached.max()))
    return farthest


def n_shortest_paths(topology: Topology, source: int, target: int) -> int:
    """Return how many shortest paths there are between two vertices; parallel links count once."""
    graph = graph_of(topology)
    distance = np.empty(topology.n_vertices, np.int64)
    ways = np.empty(topology.n_vertices)
    distances(graph.out_ptr, graph.target, graph.forwards, source, distance, ways)
    return int(ways[target])


def bisection_bandwidth(topology: Topology) -> tuple[float, str]:
    """Return the bandwidth of the narrowest cut into halves, one way, and how it was found."""
    if topology.bisection_bytes_per_s is not None:
        return topology.bisection_bytes_per_s, "formula"
    n = topology.n_devices
    if n < 2:
        return 0.0, "formula"
    if comb(n, n // 2) <= EXHAUSTIVE:
        halves = [np.array(half) for half in combinations(range(n), n // 2)]
        method = "exhaustive"
    else:
        halves, method = _straight_halves(topology), "bound"
    return min(_cut(topology, half) for half in halves), method


def _straight_halves(topology: Topology) -> list[Ints]:
    """Halves in rank order, and across the middle of every even dimension."""
    n = topology.n_devices
    halves = [np.arange(n // 2)]
    stride = 1
    for extent in topology.shape:
        if extent % 2 == 0:
            halves.append(np.flatnonzero(np.arange(n) // stride % extent < extent // 2))
        stride *= extent
    return halves


def _cut(topology: Topology, half: Ints) -> float:
    """Return the largest flow from some devices to all others, by augmenting shortest paths.

    Edmonds and Karp, J. ACM 19(2), 1972. Devices that do not forward are sources or sinks only.
    """
    source, target = topology.source.tolist(), topology.target.tolist()
    left = topology.bandwidth_bytes_per_s.tolist()
    members = set(topology.devices[half].tolist())
    others = set(topology.devices.tolist()) - members
    leaving: list[list[int]] = [[] for _ in range(topology.n_vertices)]
    for link, vertex in enumerate(source):
        leaving[vertex].append(link)
    back = {(a, b, name): i for i, (a, b, name) in enumerate(
        zip(source, target, topology.link_class, strict=True))}  # fmt: skip
    reverse = [back[target[i], source[i], topology.link_class[i]] for i in range(len(source))]
    tiny = 1e-12 * max(left, default=1.0)
    flow = 0.0
    while True:
        came: dict[int, int] = dict.fromkeys(members, NONE)
        queue = list(members)
        end = NONE
        for vertex in queue:  # grows while it is read
            if vertex in others:
                end = vertex
                break
            if vertex not in members and not topology.forwards[vertex]:
                continue
            for link in leaving[vertex]:
                if left[link] > tiny and target[link] not in came:
                    came[target[link]] = link
                    queue.append(target[link])
        if end == NONE:
            return flow
        path = []
        vertex = end
        while came[vertex] != NONE:
            path.append(came[vertex])
            vertex = source[came[vertex]]
        width = min(left[link] for link in path)
        for link in path:
            left[link] -= width
            left[reverse[link]] += width
        flow += width
