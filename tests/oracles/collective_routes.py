"""The shortest path by a plain breadth-first search, one message at a time."""

from __future__ import annotations

import math

from ridgeline.network.topology import Topology


def shortest_path(topology: Topology, source: int, target: int) -> tuple[int, ...]:
    """Fewest links, then the widest; of equal last links the target's number chooses."""
    if source == target:
        return ()
    bandwidth = topology.bandwidth_bytes_per_s
    direct = topology.links_between(source, target)
    if direct:
        return (max(direct, key=lambda link: (bandwidth[link], -link)),)
    width = {source: math.inf}
    last: dict[int, list[int]] = {source: []}
    level = [source]
    while target not in width and level:
        wide: dict[int, float] = {}
        into: dict[int, list[int]] = {}
        for vertex in level:
            if vertex != source and not topology.forwards[vertex]:
                continue
            for link in range(topology.out_ptr[vertex], topology.out_ptr[vertex + 1]):
                after = int(topology.target[link])
                narrow = min(width[vertex], float(bandwidth[link]))
                if after in width or narrow < wide.get(after, 0.0):
                    continue
                if narrow > wide.get(after, 0.0):
                    wide[after], into[after] = narrow, []
                into[after].append(link)
        width |= wide
        last |= into
        level = list(wide)
    choice = int(topology.ordinal[target])
    way: list[int] = []
    vertex = target
    while vertex != source:
        equal = sorted(last[vertex])
        way.append(equal[choice % len(equal)])
        choice //= len(equal)
        vertex = int(topology.source[way[-1]])
    return tuple(reversed(way))
