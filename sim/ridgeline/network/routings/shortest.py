"""Shortest paths: fewest links, then the widest, then spread over equals by destination."""

from __future__ import annotations

import math
from functools import lru_cache

from ridgeline.errors import RidgelineError
from ridgeline.network.routing import ROUTINGS, Route
from ridgeline.network.topology import Topology


@ROUTINGS.register("shortest")
def shortest(topology: Topology, source: int, target: int) -> Route:
    """Return the shortest path; of several, one with the widest bottleneck.

    Hosts, switches and NICs pass messages on, devices do not. Where several equal links lead to a
    vertex, they are ordered by the vertex that they come from, and the destination's number among
    the vertices of its kind chooses one cyclically. On a fat tree that is D-mod-k routing, which
    keeps shift permutations such as rings free of contention (Zahavi, J. Parallel Distrib. Comput.
    72(11), 2012); always choosing the first would send everything over one spine.
    """
    direct = topology.links_between(source, target)
    if direct:
        return (max(direct, key=lambda link: (topology.bandwidth_bytes_per_s[link], -link)),)
    tree = _tree(topology, source)
    choice = int(topology.ordinal[target])
    links: list[int] = []
    vertex = target
    while vertex != source:
        equal = tree.last_links(vertex)
        if not equal:
            names = topology.vertex_names
            raise RidgelineError(
                f"there is no route from {names[source]} to {names[target]} in {topology.name!r} "
                "(devices do not pass on messages of others); add the missing links or switches"
            )
        links.append(equal[choice % len(equal)])
        vertex = tree.graph.source[links[-1]]
    return tuple(reversed(links))


class _Tree:
    """Breadth-first search from one vertex, a level at a time and only as far as asked for."""

    def __init__(self, graph: _Graph, source: int) -> None:
        self.graph = graph
        self._last: dict[int, list[int]] = {source: []}
        self._width = {source: math.inf}  # bytes per second of the narrowest link on the way
        self._level = [source]  # vertices whose outgoing links have not been followed

    def last_links(self, target: int) -> list[int]:
        """Return the last links of the widest of the shortest paths to a vertex, ascending.

        Links are numbered by the vertex that they leave. There are none if there is no path.
        """
        while target not in self._last and self._level:
            # Looking back from the target saves following all links of a large switch.
            level = set(self._level)
            found = [i for i in self.graph.entering[target] if self.graph.source[i] in level]
            if found:
                width = {i: self._width_over(i) for i in found}
                widest = max(width.values())
                return [i for i in found if width[i] == widest]
            self._next_level()
        return sorted(self._last.get(target, []))

    def _next_level(self) -> None:
        last: dict[int, list[int]] = {}
        width: dict[int, float] = {}
        for vertex in self._level:
            for link in self.graph.leaving[vertex]:
                target, narrowest = self.graph.target[link], self._width_over(link)
                if target in self._last:
                    continue
                if narrowest > width.get(target, 0.0):
                    last[target], width[target] = [link], narrowest
                elif narrowest == width[target]:
                    last[target].append(link)
        self._last.update(last)
        self._width.update(width)
        self._level = [vertex for vertex in last if self.graph.forwards[vertex]]

    def _width_over(self, link: int) -> float:
        return min(self._width[self.graph.source[link]], self.graph.bandwidth[link])


class _Graph:
    """A topology's arrays as lists, which are faster one element at a time."""

    def __init__(self, topology: Topology) -> None:
        self.source: list[int] = topology.source.tolist()
        self.target: list[int] = topology.target.tolist()
        self.bandwidth: list[float] = topology.bandwidth_bytes_per_s.tolist()
        self.forwards: list[bool] = topology.forwards.tolist()
        self.leaving: list[list[int]] = [[] for _ in self.forwards]
        self.entering: list[list[int]] = [[] for _ in self.forwards]
        for link, (source, target) in enumerate(zip(self.source, self.target, strict=True)):
            self.leaving[source].append(link)
            self.entering[target].append(link)


@lru_cache(maxsize=16)
def _graph(topology: Topology) -> _Graph:
    return _Graph(topology)


@lru_cache(maxsize=4096)
def _tree(topology: Topology, source: int) -> _Tree:
    return _Tree(_graph(topology), source)
