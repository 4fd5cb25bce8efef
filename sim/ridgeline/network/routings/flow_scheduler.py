"""Flow scheduling: every message takes the shortest path that is least loaded when it comes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ridgeline._jit import kernel
from ridgeline.network.paths import Ints, Routes, distances, graph_of, no_route, take
from ridgeline.network.routing import ROUTINGS, adaptive
from ridgeline.network.topology import Floats, Topology


@adaptive
@ROUTINGS.register("flow-scheduler")
def flow_scheduler(topology: Topology, source: Ints, target: Ints) -> Routes:
    """Place messages one by one on the shortest path whose fullest link carries least.

    This is a central scheduler that knows all large flows (Al-Fares et al., SIGCOMM 2008, section
    3.6), and the best that adaptive routing over shortest paths does when queues tell it where the
    others are: of all shortest paths, the one with the smallest maximum over its links of messages
    over bandwidth, then with the smallest sum. Messages count as equal; those that are routed in
    one call are placed together, by source and then in their order.
    """
    graph = graph_of(topology)
    order = np.argsort(source, kind="stable").astype(np.int64)
    ptr, links = _place(
        graph.out_ptr, graph.target, graph.in_ptr, graph.in_link, graph.source, graph.bandwidth,
        graph.forwards, source[order], target[order],
    )  # fmt: skip
    lost = order[(np.diff(ptr) == 0) & (source[order] != target[order])]
    if len(lost):
        raise no_route(topology, int(source[lost[0]]), int(target[lost[0]]))
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return take(Routes(ptr, links), back)


@kernel
def _place(
    out_ptr: Ints,
    link_target: Ints,
    in_ptr: Ints,
    in_link: Ints,
    link_source: Ints,
    bandwidth: Floats,
    forwards: npt.NDArray[np.bool_],
    source: Ints,
    target: Ints,
) -> tuple[Ints, npt.NDArray[np.int32]]:
    """Search back from each target, level by level, for the way whose fullest link is emptiest."""
    n, n_messages = len(forwards), len(source)
    distance, ways = np.empty(n, np.int64), np.empty(n)
    load = np.zeros(len(bandwidth))
    fullest, total = np.full(n, np.inf), np.full(n, np.inf)
    after = np.full(n, -1, np.int64)  # the link from here towards the target
    queue = np.empty(n, np.int64)
    ptr = np.zeros(n_messages + 1, np.int64)
    links = np.empty(8 * n_messages + n, np.int32)
    start = -1
    for message in range(n_messages):
        if source[message] != start:
            start = source[message]
            distances(out_ptr, link_target, forwards, start, distance, ways)
        used, end = ptr[message], target[message]
        if distance[end] > 0:
            queue[0], head, tail = end, 0, 1
            fullest[end] = total[end] = 0.0
            while head < tail:
                v = queue[head]
                head += 1
                for at in range(in_ptr[v], in_ptr[v + 1]):
                    link = in_link[at]
                    u = link_source[link]
                    if distance[u] != distance[v] - 1 or (u != start and not forwards[u]):
                        continue
                    own = load[link] + 1.0 / bandwidth[link]
                    most, all_ = max(fullest[v], own), total[v] + own
                    if fullest[u] == np.inf:
                        queue[tail] = u
                        tail += 1
                    if most < fullest[u] or (most == fullest[u] and all_ < total[u]):
                        fullest[u], total[u], after[u] = most, all_, link
            if used + distance[end] > len(links):
                longer = np.empty(2 * len(links) + n, np.int32)
                longer[:used] = links[:used]
                links = longer
            v = start
            while v != end:
                links[used] = after[v]
                load[after[v]] += 1.0 / bandwidth[after[v]]
                used += 1
                v = link_target[after[v]]
            for i in range(tail):
                fullest[queue[i]] = total[queue[i]] = np.inf
        ptr[message + 1] = used
    return ptr, links[: ptr[n_messages]].copy()
