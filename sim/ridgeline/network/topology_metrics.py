"""Topology metrics: counts, distances, shortest paths, bisection bandwidth."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np

from ridgeline._jit import kernel
from ridgeline.network.message_schedule import Flags
from ridgeline.network.paths import NONE, Ints, distances, graph_of
from ridgeline.network.topology import Floats, Topology

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
        between halves in rank order along each dimension, at least the true value; or
        ``not connected``, of devices that cannot all reach each other, and 0 B/s.
    bisection_is, bisection_reason
        ``proven``, ``upper bound`` or ``none``, and why.
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
    bisection_is: str
    bisection_reason: str
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
    farthest = diameter(topology)
    connected = farthest != NONE
    bisection, method = bisection_bandwidth(topology) if connected else (0.0, "not connected")
    return Measures(
        topology.n_devices,
        kinds["switch"],
        kinds["nic"],
        int(topology.count.sum()) // 2,
        farthest,
        bisection,
        method,
        *_SAID[method],
        link_classes(topology),
        topology.cost_dollars,
        topology.power_w,
        topology.priced,
    )


_SAID = {
    "formula": ("proven", "a formula of the family gives it"),
    "exhaustive": ("proven", "all ways to halve the devices were tried"),
    "bound": (
        "upper bound",
        "the narrowest of the cuts in rank order and along each dimension; another cut may be"
        " narrower",
    ),
    "not connected": ("none", "devices cannot all reach each other"),
}
"""By the method that found a bisection, whether it is proven, and the reason."""


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
    """Halves in rank order, and along every dimension: straight where it is even, else stepped."""
    n = topology.n_devices
    halves = [np.arange(n // 2)]
    stride = 1
    for extent in topology.shape:
        along = np.argsort(np.arange(n) // stride % extent, kind="stable")
        halves.append(along[: n // 2])
        stride *= extent
    return halves


def _cut(topology: Topology, half: Ints) -> float:
    """Return the largest flow from some devices to all others, by augmenting shortest paths.

    Edmonds and Karp, J. ACM 19(2), 1972. Devices that do not forward are sources or sinks only.
    """
    begins, ends = (np.zeros(topology.n_vertices, np.bool_) for _ in range(2))
    begins[topology.devices[half]] = True
    ends[topology.devices] = ~begins[topology.devices]
    graph = graph_of(topology)
    return float(
        _largest_flow(
            graph.out_ptr, graph.source, graph.target, _reverse(topology),
            topology.bandwidth_bytes_per_s.copy(), graph.forwards, begins, ends,
        )
    )  # fmt: skip


def _reverse(topology: Topology) -> Ints:
    """[L] the link of the same class in the other direction."""
    names = {name: i for i, name in enumerate(dict.fromkeys(topology.link_class))}
    kind = np.array([names[name] for name in topology.link_class], np.int64)
    n = topology.n_vertices
    key = (topology.source.astype(np.int64) * n + topology.target) * len(names) + kind
    back = (topology.target.astype(np.int64) * n + topology.source) * len(names) + kind
    order = np.argsort(key, kind="stable").astype(np.int64)
    return order[np.searchsorted(key[order], back)]


@kernel
def _largest_flow(
    out_ptr: Ints,
    source: Ints,
    target: Ints,
    reverse: Ints,
    left: Floats,
    forwards: Flags,
    begins: Flags,
    ends: Flags,
) -> float:
    n = len(forwards)
    tiny = 1e-12 * left.max() if len(left) else 0.0
    queue, came = np.empty(n, np.int64), np.empty(n, np.int64)
    flow = 0.0
    while True:
        tail = 0
        for v in range(n):
            came[v] = -2  # not reached
            if begins[v]:
                came[v] = -1  # from nowhere
                queue[tail] = v
                tail += 1
        head, end = 0, -1
        while head < tail and end < 0:
            v = queue[head]
            head += 1
            if not begins[v] and not forwards[v]:
                continue
            for link in range(out_ptr[v], out_ptr[v + 1]):
                u = target[link]
                if left[link] > tiny and came[u] == -2:
                    came[u] = link
                    queue[tail] = u
                    tail += 1
                    if ends[u]:
                        end = u
                        break
        if end < 0:
            return flow
        width, v = np.inf, end
        while came[v] >= 0:
            width = min(width, left[came[v]])
            v = source[came[v]]
        v = end
        while came[v] >= 0:
            left[came[v]] -= width
            left[reverse[came[v]]] += width
            v = source[came[v]]
        flow += width
