"""In-network reduction: switches add up what comes from below and send the sum back down.

Graham et al., "Scalable Hierarchical Aggregation Protocol (SHARP)", COMHPC 2016. Data stream
through the tree: 2·depth·α + Sβ, about half of a ring's time. Every switch on the way is taken to
add at line rate, so these are chosen only by name, never by "auto".
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ridgeline.network.algorithm import CollectiveGroup, DoesNotApplyError, algorithm
from ridgeline.network.message_schedule import (
    MessageRounds,
    MessageSchedule,
    make_script,
    make_step,
    merged,
)
from ridgeline.network.paths import Ints, Routes, distances, graph_of, no_route, widest_shortest
from ridgeline.network.topology import DEVICE, Indices, Topology


class _Tree:
    """The aggregation tree: positions of the group, then the switches between them."""

    def __init__(self, group: CollectiveGroup) -> None:
        topology = group.topology
        root = _root(topology, group.vertex)
        choice = np.zeros(group.n, np.int64)  # the same for all, so that the ways are a tree
        down, lost = widest_shortest(
            graph_of(topology), np.full(group.n, root), group.vertex, choice
        )
        if len(lost):
            raise no_route(topology, root, int(group.vertex[lost[0]]))
        hop = np.arange(len(down.links)) - np.repeat(down.ptr[:-1], np.diff(down.ptr))
        link, first = np.unique(down.links, return_index=True)
        self.link: Indices = link  # a link down per vertex
        self.depth = hop[first] + 1
        parent, child = topology.source[self.link], topology.target[self.link]
        self.vertices = sorted(set(parent.tolist()))
        if any(topology.vertex_kinds[vertex] == DEVICE for vertex in self.vertices):
            raise DoesNotApplyError(f"{topology.name!r} has devices on the way to a switch")
        place = {vertex: i for i, vertex in enumerate(group.vertex.tolist())}
        place |= {vertex: group.n + i for i, vertex in enumerate(self.vertices)}
        self.parent = np.array([place[v] for v in parent.tolist()])
        self.child = np.array([place[v] for v in child.tolist()])
        self.height = int(self.depth.max())
        back = [
            max(
                topology.links_between(b, a),
                key=lambda i: (topology.bandwidth_bytes_per_s[i], -i),
            )
            for a, b in zip(parent.tolist(), child.tolist(), strict=True)
        ]
        self.back: Indices = np.array(back, np.int32)

    def up(self) -> MessageRounds:
        """Everyone sends towards the root, one wave per level."""
        step = make_step(
            self.child, self.parent, 0, span=1, combine=True, wave=self.height - self.depth
        )
        return replace(step, routes=_single(self.back))

    def down(self, first_wave: int) -> MessageRounds:
        """Send from the root to everyone."""
        step = make_step(self.parent, self.child, 0, span=1, wave=first_wave + self.depth - 1)
        return replace(step, routes=_single(self.link))


def _single(links: Indices) -> Routes:
    return Routes(np.arange(len(links) + 1), links)


def _root(topology: Topology, vertex: Ints) -> int:
    """Return the switch with the least distance to the farther of the first and the last."""
    graph = graph_of(topology)
    away = np.zeros(topology.n_vertices, np.int64)
    for end in (int(vertex[0]), int(vertex[-1])):
        distance, ways = np.empty(topology.n_vertices, np.int64), np.empty(topology.n_vertices)
        distances(graph.out_ptr, graph.target, graph.forwards, end, distance, ways)
        away = np.maximum(away, np.where(distance < 0, topology.n_vertices, distance))
    switches = np.flatnonzero(np.array(topology.vertex_kinds) == "switch")
    if not len(switches):
        raise DoesNotApplyError(f"{topology.name!r} has no switch that could add anything up")
    return int(switches[away[switches].argmin()])


def _all_reduce(group: CollectiveGroup, size_bytes: float) -> MessageSchedule:
    tree = _Tree(group)
    both = merged([tree.up(), tree.down(tree.height)])
    return make_script(np.full(1, size_bytes), [both], vertices=tree.vertices)


@algorithm("all-reduce", "in-network", automatic=False)
def all_reduce_in_network(group: CollectiveGroup) -> MessageSchedule:
    """2·depth·α + Sβ."""
    return _all_reduce(group, group.size_bytes)


@algorithm("barrier", "in-network", automatic=False)
def barrier_in_network(group: CollectiveGroup) -> MessageSchedule:
    """2·depth·α."""
    return _all_reduce(group, 0.0)


@algorithm("reduce", "in-network", automatic=False)
def reduce_in_network(group: CollectiveGroup) -> MessageSchedule:
    """Up the tree and down to the root alone: 2·depth·α + Sβ."""
    tree = _Tree(group)
    way = []
    place = 0  # from the first rank up to the root
    edge_of = {int(child): i for i, child in enumerate(tree.child)}
    while place in edge_of:
        way.append(edge_of[place])
        place = int(tree.parent[edge_of[place]])
    down = tree.down(tree.height)
    edges = np.array(way)
    chosen = make_step(down.source[edges], down.target[edges], 0, span=1, wave=down.wave[edges])
    chosen = replace(chosen, routes=_single(tree.link[edges]))
    size = np.full(1, group.size_bytes)
    return make_script(size, [merged([tree.up(), chosen])], vertices=tree.vertices)


@algorithm("broadcast", "in-network", automatic=False)
def broadcast_in_network(group: CollectiveGroup) -> MessageSchedule:
    """Multicast by the switches: depth·α on the way from the first rank to all, and Sβ."""
    tree = _Tree(group)
    up = tree.up()
    edge_of = {int(child): i for i, child in enumerate(tree.child)}
    way = []
    place = 0
    while place in edge_of:
        way.append(edge_of[place])
        place = int(tree.parent[edge_of[place]])
    edges = np.array(way)
    rise = make_step(up.source[edges], up.target[edges], 0, span=1, wave=up.wave[edges])
    rise = replace(rise, routes=_single(tree.back[edges]))
    down = tree.down(tree.height)
    size = np.full(1, group.size_bytes)
    return make_script(size, [merged([rise, down])], vertices=tree.vertices)
