"""Shortest paths of many messages at once: one breadth-first search for each source."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ridgeline._jit import kernel, kernel_part
from ridgeline.errors import CutOffError
from ridgeline.network.topology import Floats, Indices, Topology

Ints = npt.NDArray[np.int64]
NONE = -1


class Routes(NamedTuple):
    """The links of many messages: those of message m are ``links[ptr[m]:ptr[m + 1]]``, in order."""

    ptr: Ints
    links: Indices


class LinkGraph(NamedTuple):
    """A directed graph as arrays; V vertices, L links."""

    out_ptr: Ints  # [V+1] links leaving v are out_ptr[v]:out_ptr[v+1]
    source: Ints  # [L] ascending
    target: Ints  # [L]
    in_ptr: Ints  # [V+1] links entering v are in_link[in_ptr[v]:in_ptr[v+1]], ascending
    in_link: Ints
    bandwidth: Floats  # [L]
    forwards: npt.NDArray[np.bool_]  # [V]


@lru_cache(maxsize=16)
def graph_of(topology: Topology) -> LinkGraph:
    """Return the graph of a topology."""
    return make_graph(
        topology.n_vertices,
        topology.source,
        topology.target,
        topology.bandwidth_bytes_per_s,
        topology.forwards,
    )


def make_graph(
    n_vertices: int,
    source: npt.NDArray[np.integer],
    target: npt.NDArray[np.integer],
    bandwidth: Floats,
    forwards: npt.NDArray[np.bool_],
) -> LinkGraph:
    """Index links, given in ascending order of their source, from both of their ends."""
    entering = np.argsort(target, kind="stable").astype(np.int64)
    return LinkGraph(
        _offsets(source, n_vertices),
        source.astype(np.int64),
        target.astype(np.int64),
        _offsets(target, n_vertices),
        entering,
        np.ascontiguousarray(bandwidth, dtype=np.float64),
        np.ascontiguousarray(forwards, dtype=np.bool_),
    )


def _offsets(ends: npt.NDArray[np.integer], n: int) -> Ints:
    count = np.bincount(ends, minlength=n)
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(count, dtype=np.int64)))


def widest_shortest(
    graph: LinkGraph, source: Ints, target: Ints, choice: Ints, *, hashed: bool = False
) -> tuple[Routes, Ints]:
    """Find for every message a path of fewest links and, of those, of the widest bottleneck.

    Where several equal links lead to a vertex of the way, they are taken in ascending order and
    the message's `choice` selects one, as a number of mixed radix whose lowest digit chooses
    nearest to the target; or, if `hashed`, a hash of the choice and the vertex does.

    Returns
    -------
    routes
        In the order of the messages; a message to itself, or without a path, has no links.
    lost
        Messages that have no path.
    """
    order = np.argsort(source, kind="stable").astype(np.int64)
    ptr, links = _trace(*graph, source[order], target[order], choice[order], hashed)
    links = links[: ptr[-1]].copy()
    lost = order[(np.diff(ptr) == 0) & (source[order] != target[order])]
    if (order[1:] > order[:-1]).all():
        return Routes(ptr, links), lost
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return take(Routes(ptr, links), back), np.sort(lost)


def take(routes: Routes, messages: Ints) -> Routes:
    """Return the routes of some messages, in their order."""
    start = routes.ptr[messages]
    length = routes.ptr[messages + 1] - start
    ptr = np.concatenate((np.zeros(1, np.int64), np.cumsum(length)))
    where = np.repeat(start - ptr[:-1], length) + np.arange(ptr[-1])
    return Routes(ptr, routes.links[where])


def join(*parts: Routes) -> Routes:
    """Concatenate the ways of the same messages: first those of the first part, and so on."""
    length = [np.diff(part.ptr) for part in parts]
    ptr = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.sum(length, axis=0))))
    links = np.empty(ptr[-1], np.int32)
    start = ptr[:-1].copy()
    for part, n in zip(parts, length, strict=True):
        where = np.repeat(start - part.ptr[:-1], n) + np.arange(part.ptr[-1])
        links[where] = part.links
        start += n
    return Routes(ptr, links)


def join_messages(*parts: Routes) -> Routes:
    """Return the routes of the messages of all parts, one part after the other."""
    length = np.concatenate([np.diff(part.ptr) for part in parts])
    ptr = np.concatenate((np.zeros(1, np.int64), np.cumsum(length)))
    return Routes(ptr, np.concatenate([part.links for part in parts]))


def no_route(topology: Topology, source: int, target: int) -> CutOffError:
    """Return the error of two vertices between which there is no way."""
    names = topology.vertex_names
    return CutOffError(
        f"there is no route from {names[source]} to {names[target]} in {topology.name!r} "
        "(devices of a node pass on messages of others where its file has devices_forward: true); "
        "add the missing links or switches"
    )


@kernel
def distances(
    out_ptr: Ints,
    target: Ints,
    forwards: npt.NDArray[np.bool_],
    start: int,
    distance: Ints,
    ways: Floats,
) -> int:
    """Fill in the links to every vertex (-1: none) and the number of shortest paths to it.

    Parallel links of one row count as one way. Returns the largest distance.
    """
    queue = np.empty(len(distance), np.int64)
    for v in range(len(distance)):
        distance[v] = NONE
        ways[v] = 0.0
    queue[0] = start
    distance[start] = 0
    ways[start] = 1.0
    tail = 1
    head = 0
    while head < tail:
        u = queue[head]
        head += 1
        if u != start and not forwards[u]:
            continue
        for link in range(out_ptr[u], out_ptr[u + 1]):
            v = target[link]
            if distance[v] == NONE:
                distance[v] = distance[u] + 1
                queue[tail] = v
                tail += 1
            if distance[v] == distance[u] + 1:
                ways[v] += ways[u]
    return int(distance[queue[tail - 1]])


@kernel
def _trace(  # noqa: PLR0915 - one search, written out: parts of kernels share no arrays
    out_ptr: Ints,
    link_source: Ints,
    link_target: Ints,
    in_ptr: Ints,
    in_link: Ints,
    bandwidth: Floats,
    forwards: npt.NDArray[np.bool_],
    source: Ints,
    target: Ints,
    choice: Ints,
    hashed: bool,
) -> tuple[Ints, Indices]:
    """Messages come in ascending order of their source, so that one search serves several."""
    n_vertices, n = len(forwards), len(source)
    distance = np.full(n_vertices, NONE, np.int64)
    width = np.zeros(n_vertices)
    queue = np.empty(n_vertices, np.int64)
    # the equal last links to a vertex, found when a route first passes it
    found_at = np.full(n_vertices, NONE, np.int64)
    n_found = np.zeros(n_vertices, np.int64)
    found = np.empty(len(link_source) + 1, np.int64)
    ptr = np.zeros(n + 1, np.int64)
    links = np.empty(8 * n + 64, np.int32)
    used = 0
    way = np.empty(n_vertices + 1, np.int64)
    first = 0
    while first < n:
        root = source[first]
        last = first
        while last < n and source[last] == root:
            last += 1
        # --- search, level by level, until all targets are reached
        distance[root] = 0
        width[root] = np.inf
        queue[0] = root
        head, tail, level = 0, 1, 0
        while head < tail:
            level_end = tail
            missing = 0
            # Looking back from the targets saves following all links of a large switch.
            for m in range(first, last):
                v = target[m]
                if distance[v] != NONE:
                    continue
                best = -1.0
                for i in range(in_ptr[v], in_ptr[v + 1]):
                    u = link_source[in_link[i]]
                    if distance[u] == level and (u == root or forwards[u]):
                        narrow = bandwidth[in_link[i]]
                        narrow = min(narrow, width[u])
                        best = max(best, narrow)
                if best < 0:
                    missing += 1
                    continue
                distance[v] = level + 1
                width[v] = best
                queue[tail] = v
                tail += 1
            if missing == 0:
                break
            while head < level_end:
                u = queue[head]
                head += 1
                if u != root and not forwards[u]:
                    continue
                for link in range(out_ptr[u], out_ptr[u + 1]):
                    v = link_target[link]
                    narrowest = min(width[u], bandwidth[link])
                    if distance[v] == NONE:
                        distance[v] = level + 1
                        width[v] = narrowest
                        queue[tail] = v
                        tail += 1
                    elif distance[v] == level + 1 and narrowest > width[v]:
                        width[v] = narrowest
            level += 1
        # --- trace every message back from its target
        filled = 0
        for m in range(first, last):
            v = target[m]
            left = choice[m]
            length = 0
            while v != root and distance[v] != NONE:
                if found_at[v] == NONE:
                    found_at[v] = filled
                    for i in range(in_ptr[v], in_ptr[v + 1]):
                        link = in_link[i]
                        u = link_source[link]
                        if (
                            distance[u] != NONE
                            and distance[u] == distance[v] - 1
                            and (u == root or forwards[u])
                            and min(width[u], bandwidth[link]) == width[v]
                        ):
                            found[filled] = link
                            filled += 1
                    n_found[v] = filled - found_at[v]
                key = _mixed(left ^ v) if hashed else left
                pick = key - key // n_found[v] * n_found[v]
                if not hashed:
                    left //= n_found[v]
                if length == 0 and distance[v] == 1:
                    pick = 0  # parallel links: always the first, whatever the number of the target
                link = found[found_at[v] + pick]
                way[length] = link
                length += 1
                v = link_source[link]
            if used + length > len(links):
                grown = np.empty(2 * len(links) + length, np.int32)
                for i in range(used):
                    grown[i] = links[i]
                links = grown
            for i in range(length):
                links[used + i] = way[length - 1 - i]
            used += length
            ptr[m + 1] = used
        for i in range(tail):
            distance[queue[i]] = NONE
            found_at[queue[i]] = NONE
        first = last
    return ptr, links


@kernel_part
def _mixed(key: int) -> int:
    """Spread a number over 0 ... 2^31 - 1 (xorshift-multiply in 31 bits: no overflow)."""
    key &= 0x7FFFFFFF
    for _ in range(3):
        key ^= key >> 15
        key = (key * 0x2C1B3C6D) & 0x7FFFFFFF
        key ^= key >> 12
    return key
