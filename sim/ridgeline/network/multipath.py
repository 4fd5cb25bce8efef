"""Multipath: the equal ways to a target that a switch may choose between, hop by hop.

A *hop table* holds, for each target, how far every vertex is from it and how wide the widest of its
shortest ways is. A switch may send over any link that lies on such a way; that a link is slower
than others of its kind, it does not know. What it takes is

*ecmp*      settled by a hash of the connection, a seed and the switch (RFC 2992): all packets of a
            connection take one way, and connections may collide on it;
*spray*     drawn anew for every packet;
*adaptive*  the one with the shortest queue.

A connection may be cut into *queue pairs*, which are hashed each for itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ridgeline._jit import kernel, kernel_part
from ridgeline.engine.executor import run
from ridgeline.engine.rates import fair_rates
from ridgeline.errors import RidgelineError
from ridgeline.network.paths import Ints, LinkGraph, Routes, graph_of, no_route
from ridgeline.network.topology import Floats, Topology
from ridgeline.network.traffic import FlowLinks, Flows, flow_times, flows_program

MOST_CELLS = 60_000_000
"""Targets times vertices of a hop table: less than a gigabyte."""


class Hops(NamedTuple):
    """Distances and widths to some targets.

    Attributes
    ----------
    row
        [V] row of a target, -1 of vertices that are none.
    distance
        [N, V] links to the target; -1 where it is not reached.
    width
        [N, V] bandwidth of the narrowest link of the widest shortest way.
    bandwidth
        [L] of links, as ways are chosen by it: that of the fastest of their kind, so that a slow
        one is chosen as often.
    """

    row: Ints
    distance: npt.NDArray[np.int32]
    width: Floats
    bandwidth: Floats


def hops_to(topology: Topology, targets: Ints) -> Hops:
    """Return the hop table of some targets, given as vertices.

    Raises
    ------
    RidgelineError
        If the table would take too much memory.
    """
    distinct = np.unique(targets)
    cells = len(distinct) * topology.n_vertices
    if cells > MOST_CELLS:
        raise RidgelineError(
            f"{len(distinct)} targets on {topology.n_vertices} vertices are a table of {cells:,} "
            f"ways; at most {MOST_CELLS:,} are held: fewer targets, or a smaller network"
        )
    row = np.full(topology.n_vertices, -1, np.int64)
    row[distinct] = np.arange(len(distinct))
    distance = np.full((len(distinct), topology.n_vertices), -1, np.int32)
    width = np.zeros((len(distinct), topology.n_vertices))
    nominal = _nominal(topology)
    graph = graph_of(topology)._replace(bandwidth=nominal)
    _fill(*graph, distinct, distance, width)
    return Hops(row, distance, width, nominal)


def _nominal(topology: Topology) -> Floats:
    """Return [L] what links carry where none of their kind is slow."""
    each = topology.bandwidth_bytes_per_s / topology.count
    kinds = sorted(topology.link_classes)
    number = np.array([kinds.index(name) for name in topology.link_class], np.int64)
    fastest = np.zeros(len(kinds))
    np.maximum.at(fastest, number, each)
    nominal: Floats = fastest[number] * topology.count
    return nominal


@kernel
def _fill(
    out_ptr: Ints,
    source: Ints,
    target: Ints,
    in_ptr: Ints,
    in_link: Ints,
    bandwidth: Floats,
    forwards: npt.NDArray[np.bool_],
    targets: Ints,
    distance: npt.NDArray[np.int32],
    width: Floats,
) -> None:
    queue = np.empty(distance.shape[1], np.int64)
    for number in range(len(targets)):
        own, wide = distance[number], width[number]
        own[targets[number]], wide[targets[number]] = 0, np.inf
        queue[0] = targets[number]
        first, last = 0, 1
        while first < last:
            vertex = queue[first]
            first += 1
            if own[vertex] > 0 and not forwards[vertex]:
                continue
            for place in range(in_ptr[vertex], in_ptr[vertex + 1]):
                link = in_link[place]
                before = source[link]
                if own[before] == -1:
                    own[before] = own[vertex] + 1
                    queue[last] = before
                    last += 1
                if own[before] == own[vertex] + 1:
                    wide[before] = max(wide[before], min(wide[vertex], bandwidth[link]))


@kernel_part
def is_way(
    link: int,
    vertex: int,
    end: int,
    row: int,
    distance: npt.NDArray[np.int32],
    width: Floats,
    forwards: npt.NDArray[np.bool_],
    bandwidth: Floats,
) -> bool:
    """Tell whether a link from a vertex to its `end` lies on a widest shortest way to a target."""
    found: bool = (
        distance[row, end] == distance[row, vertex] - 1
        and (distance[row, end] == 0 or forwards[end])
        and min(bandwidth[link], width[row, end]) >= width[row, vertex] * 0.999999999999
    )
    return found


@kernel_part
def mixed(key: int) -> int:
    """Spread the bits of a number: the finaliser of MurmurHash3 on 32 bits."""
    key &= 0xFFFFFFFF
    key = ((key ^ (key >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    key = ((key ^ (key >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return key ^ (key >> 16)


@kernel_part
def hashed_way(
    choice: int,
    vertex: int,
    row: int,
    out_ptr: Ints,
    target: Ints,
    distance: npt.NDArray[np.int32],
    width: Floats,
    forwards: npt.NDArray[np.bool_],
    bandwidth: Floats,
) -> int:
    """Return the link that a switch takes for a connection; -1 if there is none."""
    count = 0
    for link in range(out_ptr[vertex], out_ptr[vertex + 1]):
        count += is_way(link, vertex, target[link], row, distance, width, forwards, bandwidth)
    if count == 0:
        return -1
    pick = mixed(choice ^ mixed(vertex + 1)) % count
    for link in range(out_ptr[vertex], out_ptr[vertex + 1]):
        if is_way(link, vertex, target[link], row, distance, width, forwards, bandwidth):
            if pick == 0:
                return link
            pick -= 1
    return -1


@kernel
def _walk(
    out_ptr: Ints,
    target: Ints,
    bandwidth: Floats,
    forwards: npt.NDArray[np.bool_],
    distance: npt.NDArray[np.int32],
    width: Floats,
    start: Ints,
    end: Ints,
    row: Ints,
    choice: Ints,
    ptr: Ints,
    links: Ints,
) -> None:
    for flow in range(len(start)):
        vertex, place = start[flow], ptr[flow]
        while vertex != end[flow]:
            link = hashed_way(
                choice[flow], vertex, row[end[flow]], out_ptr, target, distance, width, forwards,
                bandwidth,
            )  # fmt: skip
            links[place] = link
            place += 1
            vertex = target[link]


def choices_of(flows: int, queue_pairs: int, seed: int) -> Ints:
    """Return [flows * queue pairs] what each connection is hashed by, drawn by a seed."""
    draw = np.random.default_rng(seed)
    return draw.integers(0, 1 << 32, flows * queue_pairs, dtype=np.int64)


def checked_hops(topology: Topology, start: Ints, end: Ints) -> Hops:
    """Return the hop table of messages, each of which has a way.

    Raises
    ------
    CutOffError
        If one has none.
    """
    hops = hops_to(topology, end)
    lost = np.flatnonzero(hops.distance[hops.row[end], start] < 0)
    if len(lost):
        raise no_route(topology, int(start[lost[0]]), int(end[lost[0]]))
    return hops


def ecmp_ways(
    topology: Topology, start: Ints, end: Ints, choice: Ints, hops: Hops | None = None
) -> Routes:
    """Return the links of connections between vertices, hashed at every switch.

    Parameters
    ----------
    choice
        [F] what each is hashed by.
    hops
        The table of their targets, where it is there already.
    """
    hops = hops or checked_hops(topology, start, end)
    graph: LinkGraph = graph_of(topology)
    length = hops.distance[hops.row[end], start].astype(np.int64)
    ptr = np.concatenate((np.zeros(1, np.int64), np.cumsum(length)))
    links = np.empty(ptr[-1], np.int64)
    _walk(
        graph.out_ptr, graph.target, hops.bandwidth, graph.forwards, hops.distance, hops.width,
        start, end, hops.row, choice, ptr, links,
    )  # fmt: skip
    return Routes(ptr, links.astype(np.int32))


@dataclass(frozen=True)
class Collisions:
    """How connections collide, over draws of the hash.

    Attributes
    ----------
    rates
        [draws, F] bytes/s of each message while all are active: what its queue pairs get together,
        by max-min fairness.
    alone
        [F] what each gets alone.
    most
        [draws] connections on the link that has most of those that could be elsewhere.
    without
        [draws] whether no two connections meet on a link that both could have avoided.
    """

    rates: Floats
    alone: Floats
    most: Ints
    without: npt.NDArray[np.bool_]

    @property
    def share(self) -> Floats:
        """[draws, F] rate over the rate alone."""
        return self.rates / self.alone


def collisions(
    topology: Topology, flows: Flows, *, queue_pairs: int = 1, draws: int = 100, seed: int = 0
) -> Collisions:
    """Draw the hash of every connection so many times, and divide the links fairly each time.

    Parameters
    ----------
    queue_pairs
        Connections of each message, with as much of it each.
    """
    if draws < 1 or queue_pairs < 1:
        raise RidgelineError(
            f"draws and queue pairs are at least 1, found {draws} and {queue_pairs}"
        )
    start, end = flows.vertices(topology)
    hops = checked_hops(topology, start, end)
    many_start, many_end = (np.repeat(ends, queue_pairs) for ends in (start, end))
    bandwidth = topology.bandwidth_bytes_per_s
    elsewhere = _with_alternatives(topology, hops, start, end)
    rates, most = np.empty((draws, flows.n)), np.empty(draws, np.int64)
    for number in range(draws):
        choice = choices_of(flows.n, queue_pairs, seed + number)
        ways = ecmp_ways(topology, many_start, many_end, choice, hops)
        links = ways.links.astype(np.int64)
        each = fair_rates(bandwidth, ways.ptr, links, np.ones(len(links)))
        rates[number] = each.reshape(flows.n, queue_pairs).sum(axis=1)
        count = np.bincount(links, minlength=topology.n_links)
        most[number] = count[elsewhere].max(initial=0)
    alone = hops.width[hops.row[end], start]
    return Collisions(rates, alone, most, most <= 1)


def _with_alternatives(
    topology: Topology, hops: Hops, start: Ints, end: Ints
) -> npt.NDArray[np.bool_]:
    """Return [L] whether some message that may pass a link may pass another one instead."""
    found = np.zeros(topology.n_links, np.bool_)
    graph = graph_of(topology)
    _mark_alternatives(
        graph.out_ptr, graph.target, hops.bandwidth, graph.forwards, hops.distance, hops.width,
        start, end, hops.row, found,
    )  # fmt: skip
    return found


@kernel
def _mark_alternatives(
    out_ptr: Ints,
    target: Ints,
    bandwidth: Floats,
    forwards: npt.NDArray[np.bool_],
    distance: npt.NDArray[np.int32],
    width: Floats,
    start: Ints,
    end: Ints,
    row: Ints,
    found: npt.NDArray[np.bool_],
) -> None:
    n_vertices = distance.shape[1]
    seen = np.full(n_vertices, -1, np.int64)
    stack = np.empty(n_vertices, np.int64)
    for flow in range(len(start)):
        stack[0], size = start[flow], 1
        seen[start[flow]] = flow
        number = row[end[flow]]
        while size > 0:
            size -= 1
            vertex = stack[size]
            count = 0
            for link in range(out_ptr[vertex], out_ptr[vertex + 1]):
                count += is_way(
                    link, vertex, target[link], number, distance, width, forwards, bandwidth
                )
            for link in range(out_ptr[vertex], out_ptr[vertex + 1]):
                if is_way(link, vertex, target[link], number, distance, width, forwards, bandwidth):
                    found[link] |= count > 1
                    if seen[target[link]] != flow:
                        seen[target[link]] = flow
                        stack[size] = target[link]
                        size += 1


def sprayed_loads(topology: Topology, flows: Flows) -> FlowLinks:
    """Return the links of messages that are spread evenly over all equal ways, switch by switch.

    A message moves as one fluid, so that its slowest way sets its rate.
    """
    start, end = flows.vertices(topology)
    hops = checked_hops(topology, start, end)
    graph = graph_of(topology)
    ptr, links, share, latency = [0], [], [], []
    late_s = np.empty(topology.n_vertices)
    for a, b in zip(start.tolist(), end.tolist(), strict=True):
        on_link = np.zeros(topology.n_links)
        _spread(
            graph.out_ptr, graph.target, hops.bandwidth, graph.forwards, hops.distance, hops.width,
            topology.latency_s, a, hops.row[b], on_link, late_s,
        )  # fmt: skip
        used = np.flatnonzero(on_link)
        links.append(used)
        share.append(on_link[used])
        latency.append(late_s[b])
        ptr.append(ptr[-1] + len(used))
    return FlowLinks(np.array(ptr), np.concatenate(links), np.concatenate(share), np.array(latency))


def sprayed_rates(topology: Topology, flows: Flows) -> Floats:
    """Return [F] max-min fair rates, in bytes/s, of messages spread over all equal ways."""
    loads = sprayed_loads(topology, flows)
    return fair_rates(topology.bandwidth_bytes_per_s, loads.ptr, loads.links, loads.share)


def flow_completions_s(
    topology: Topology, flows: Flows, routing: str, *, queue_pairs: int = 1, seed: int = 0
) -> Floats:
    """Return [F] when each message has arrived, at the level of flows.

    Parameters
    ----------
    routing
        ``static``: the topology's own; ``ecmp``: hashed by the seed, each queue pair for itself;
        ``spray``: evenly over all equal ways; ``adaptive``: one after the other on the shortest way
        whose fullest link carries least.
    """
    if routing == "static":
        return flow_times(topology, flows)
    if routing == "adaptive":
        return flow_times(replace(topology, routing="flow-scheduler"), flows)
    if routing == "spray":
        return run(flows_program(topology, flows, loads=sprayed_loads(topology, flows))).end_s
    many = np.repeat(np.arange(flows.n), queue_pairs)
    each = Flows(flows.source[many], flows.target[many], flows.size_bytes[many] / queue_pairs)
    start, end = each.vertices(topology)
    ways = ecmp_ways(topology, start, end, choices_of(flows.n, queue_pairs, seed))
    last: Floats = along_s(topology, each, ways).reshape(flows.n, queue_pairs).max(axis=1)
    return last


def along_s(topology: Topology, flows: Flows, ways: Routes) -> Floats:
    """Return [F] when each message has arrived that takes a given way, at the level of flows."""
    latency_s = np.add.reduceat(topology.latency_s[ways.links], ways.ptr[:-1])
    links = ways.links.astype(np.int64)
    loads = FlowLinks(ways.ptr, links, np.ones(len(links)), latency_s)
    return run(flows_program(topology, flows, loads=loads)).end_s


@kernel
def _spread(
    out_ptr: Ints,
    target: Ints,
    bandwidth: Floats,
    forwards: npt.NDArray[np.bool_],
    distance: npt.NDArray[np.int32],
    width: Floats,
    latency_s: Floats,
    start: int,
    row: int,
    on_link: Floats,
    late_s: Floats,
) -> None:
    """Write what share of a message passes each link, and the latency of the slowest way."""
    n_vertices = distance.shape[1]
    part = np.zeros(n_vertices)
    late_s[:] = 0.0
    queue = np.empty(n_vertices, np.int64)
    part[start], queue[0] = 1.0, start
    first, last = 0, 1
    while first < last:  # breadth first: all of a vertex has come before it is spread
        vertex = queue[first]
        first += 1
        count = 0
        for link in range(out_ptr[vertex], out_ptr[vertex + 1]):
            count += is_way(link, vertex, target[link], row, distance, width, forwards, bandwidth)
        for link in range(out_ptr[vertex], out_ptr[vertex + 1]):
            if is_way(link, vertex, target[link], row, distance, width, forwards, bandwidth):
                if part[target[link]] == 0.0:
                    queue[last] = target[link]
                    last += 1
                on_link[link] = part[vertex] / count
                part[target[link]] += part[vertex] / count
                late_s[target[link]] = max(late_s[target[link]], late_s[vertex] + latency_s[link])
