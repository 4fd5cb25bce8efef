"""Collective flows: what every rank group puts on the links of the routed fabric.

The groups of a stage do the same at the same time; the schedules of groups that lie inside of equal
nodes are one, moved from node to node.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise
from threading import Lock
from typing import NamedTuple

import numpy as np

from ridgeline.errors import CutOffError
from ridgeline.network.equal_nodes import EqualNodes
from ridgeline.network.node_constants import of_ranks
from ridgeline.network.routing import ADAPTIVE, ROUTINGS, routes
from ridgeline.network.schedule import CollectiveSchedule, loads_of
from ridgeline.network.topology import Floats, Topology
from ridgeline.parallel.comm.collective_selection import schedule_of
from ridgeline.parallel.comm.colour_refinement import Colours, digits, hash_of, mixed
from ridgeline.parallel.plan.mesh import Ranks


class StageCollective(NamedTuple):
    """What all groups of ranks of a stage do at the same time.

    Attributes
    ----------
    op, size_bytes
        As `collective_selection.schedule_of`.
    groups
        [G, n] ranks.
    """

    op: str
    groups: Ranks
    size_bytes: float


class OnLinks(NamedTuple):
    """Flows, links that they load, and a colour of what they put there in all phases."""

    flow: Ranks
    link: Ranks
    code: Colours


@dataclass(frozen=True, eq=False)
class CollectiveFlows:
    """What the groups of a call put on links.

    Attributes
    ----------
    group, phase, link, size_bytes
        [E] bytes that a group puts on a link in one round of a phase.
    repeat
        [E] rounds of the phase.
    colour
        [G] equal where algorithm, latencies and repetitions are.
    latency_s
        [G] of all phases.
    by_link
        Every group with every link that it loads once.
    """

    group: Ranks
    phase: Ranks
    link: Ranks
    size_bytes: Floats
    repeat: Ranks
    colour: Colours
    latency_s: Floats
    by_link: OnLinks

    @classmethod
    def of(cls, topology: Topology, call: StageCollective) -> CollectiveFlows:
        """Find what every group puts on links."""
        if call.op == "send" and ROUTINGS[topology.routing] not in ADAPTIVE:
            return _messages(topology, call)
        groups = range(len(call.groups))
        schedules = dict(_schedules(topology, call))
        parts = [(g, p, loads_of(of)) for g in groups for p, of in enumerate(schedules[g].phases)]
        counts = np.array([len(loads) for _, _, loads in parts], np.int64)
        ends = np.array([(g, p) for g, p, _ in parts], np.int64).reshape(-1, 2)
        none: list[Floats] = [np.zeros(0)]
        rounds = [schedules[g].phases[p].repeat for g, p, _ in parts]
        late = [[of.latency_s * of.repeat for of in schedules[g].phases] for g in groups]
        return cls.joined(
            np.repeat(ends[:, 0], counts),
            np.repeat(ends[:, 1], counts),
            np.concatenate([*none, *(loads.links for _, _, loads in parts)]).astype(np.int64),
            np.concatenate([*none, *(loads.bytes for _, _, loads in parts)]),
            np.repeat(np.array(rounds, np.int64), counts),
            np.array([hash_of(_kind(schedules[g], topology)) for g in groups], np.uint64),
            np.array([math.fsum(each) for each in late]),
        )

    @classmethod
    def joined(
        cls,
        group: Ranks,
        phase: Ranks,
        link: Ranks,
        size_bytes: Floats,
        repeat: Ranks,
        colour: Colours,
        latency_s: Floats,
    ) -> CollectiveFlows:
        """Colour what each group puts on each link."""
        n_links = int(link.max(initial=0)) + 1
        keys, which = np.unique(group * n_links + link, return_inverse=True)
        code = np.zeros(len(keys), np.uint64)
        np.add.at(code, which.ravel(), mixed(phase, digits(size_bytes)))
        by_link = OnLinks(*np.divmod(keys, n_links), code)
        return cls(group, phase, link, size_bytes, repeat, colour, latency_s, by_link)


def _messages(topology: Topology, call: StageCollective) -> CollectiveFlows:
    """Route all messages of a call together."""
    ends = topology.devices.astype(np.int64)[call.groups]
    found = routes(topology, ends[:, 0], ends[:, 1])
    hops = np.diff(found.ptr)
    group = np.repeat(np.arange(len(ends)), hops)
    links = found.links.astype(np.int64)
    latency_s = np.bincount(group, topology.latency_s[links], len(ends)).astype(np.float64)
    sizes = np.full(len(links), float(call.size_bytes))
    started = [of_ranks(topology, group).collective_latency_s for group in call.groups]
    start_s = latency_s + np.array(started)
    colour = mixed(digits(start_s))
    for name in sorted(topology.link_classes):
        hops_of = np.bincount(group[topology.of_class(name)[links]], minlength=len(ends))
        colour = mixed(colour, hops_of)
    once, first = np.ones_like(group), np.zeros_like(group)
    return CollectiveFlows.joined(group, first, links, sizes, once, colour, start_s)


def _kind(schedule: CollectiveSchedule, topology: Topology) -> tuple[object, ...]:
    """Return the algorithm of a schedule, its rounds, and its bytes by class of link."""
    rounds = [(f"{phase.latency_s:.10e}", phase.repeat) for phase in schedule.phases]
    on_wire: dict[str, float] = {}
    for link, size in schedule.bytes_on_wire().items():
        name = topology.link_class[link]
        on_wire[name] = on_wire.get(name, 0.0) + size
    sizes = [(name, f"{size:.10e}") for name, size in sorted(on_wire.items())]
    return schedule.algorithm, *rounds, *sizes


def _schedules(
    topology: Topology, call: StageCollective
) -> Iterator[tuple[int, CollectiveSchedule]]:
    """Yield the schedule of every group; of those inside equal nodes one is moved to all others."""
    nodes = _Nodes.of(topology)
    here = nodes.of_rank[call.groups]
    inside = (here == here[:, :1]).all(axis=1)
    known: dict[tuple[int, bytes], tuple[int, CollectiveSchedule]] = {}
    for g, group in enumerate(call.groups):
        node = int(here[g, 0])
        if not inside[g]:
            yield g, schedule_of(call.op, topology, group, call.size_bytes)
            continue
        key = int(nodes.kind[node]), nodes.place[group].tobytes()
        if key not in known:
            known[key] = node, schedule_of(call.op, topology, group, call.size_bytes)
        of_node, schedule = known[key]
        moved = schedule if of_node == node else nodes.moved(schedule, of_node, node)
        yield g, moved or schedule_of(call.op, topology, group, call.size_bytes)


@dataclass(frozen=True, eq=False)
class _Nodes:
    """Nodes of a topology that are wired alike inside.

    Attributes
    ----------
    of_rank, place
        [ranks] node, and number of the device there.
    kind
        [nodes] equal where nodes are, and the ways between their devices: of equally short ones,
        routing may take others in another node.
    links
        By node, its own links: those of equal nodes in the same order.
    """

    of_rank: Ranks
    place: Ranks
    kind: Ranks
    links: tuple[Ranks, ...]

    @classmethod
    @lru_cache(maxsize=4)
    def of(cls, topology: Topology) -> _Nodes:
        """Compare the nodes of a topology."""
        equal = EqualNodes.of(topology)
        ways = _ways_inside(topology, len(equal.kind), equal.links)
        numbers: dict[tuple[int, bytes], int] = {}
        kinds = zip(equal.kind.tolist(), ways, strict=True)
        keys = ((kind, way.tobytes()) for kind, way in kinds)
        kind = np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)
        of_rank = topology.node_of[topology.devices].astype(np.int64)
        return cls(of_rank, equal.place[topology.devices], kind, equal.links)

    def moved(
        self, schedule: CollectiveSchedule, source: int, target: int
    ) -> CollectiveSchedule | None:
        """Return a schedule of one node in an equal one; None: it uses links outside of it."""
        phases = []
        for phase in schedule.phases:
            loads = loads_of(phase)
            at = np.searchsorted(self.links[source], loads.links)
            if (at >= len(self.links[source])).any():
                return None
            if (self.links[source][at] != loads.links).any():
                return None
            links = self.links[target][at].astype(np.int32)
            phases.append(phase._replace(bytes_on_link=type(loads)(links, loads.bytes)))
        return CollectiveSchedule(
            schedule.op, schedule.algorithm, schedule.n_ranks, schedule.size_bytes, tuple(phases)
        )


def _ways_inside(topology: Topology, n_nodes: int, links: Sequence[Ranks]) -> list[Ranks]:
    """Return of every node the ways between its devices: links by their number there, or -1.

    -2 divides them. Where messages are spread over all ways, none has to be told from others; where
    there is no way, no two nodes are alike.
    """
    none = np.zeros(0, np.int64)
    if ROUTINGS[topology.routing] in ADAPTIVE:
        return [none] * n_nodes
    devices = topology.devices.astype(np.int64)
    home = topology.node_of[devices].astype(np.int64)
    by_node = [devices[home == node] for node in range(n_nodes)]
    pairs = [
        np.array([(a, b) for a in own.tolist() for b in own.tolist() if a != b], np.int64)
        for own in by_node
    ]
    ends = np.concatenate([none.reshape(0, 2), *(of.reshape(-1, 2) for of in pairs)])
    if not len(ends):
        return [none] * n_nodes
    try:
        found = routes(topology, ends[:, 0], ends[:, 1])
    except CutOffError:
        return [np.array([-3, node]) for node in range(n_nodes)]
    number = np.full(topology.n_links, -1)
    for own in links:
        number[own] = np.arange(len(own))
    hops = np.diff(found.ptr)
    at = np.arange(len(found.links)) + np.repeat(np.arange(len(ends)), hops)
    ways = np.full(len(found.links) + len(ends), -2)
    ways[at] = number[found.links]
    first = np.concatenate([[0], np.cumsum(hops + 1)])
    count = np.cumsum([0, *(len(of) for of in pairs)])
    return [ways[first[a] : first[b]] for a, b in pairwise(count.tolist())]


def key_of(call: StageCollective) -> tuple[object, ...]:
    """Return what tells a call from others."""
    digest = blake2b(np.ascontiguousarray(call.groups).tobytes(), digest_size=16).digest()
    return call.op, call.groups.shape, digest, call.size_bytes


_MOST_LOADS = 4_000_000  # loads of links that are kept
_flows: OrderedDict[tuple[int, tuple[object, ...]], tuple[Topology, CollectiveFlows]] = (
    OrderedDict()
)
_lock = Lock()  # workers of a cluster simulate in several threads


def flows_of(topology: Topology, call: StageCollective) -> CollectiveFlows:
    """Return what all groups of a call put on links; those of the last calls are kept.

    Messages are those of one byte.
    """
    if call.op == "send":
        call = call._replace(size_bytes=1.0)
    key = id(topology), key_of(call)
    with _lock:
        known = _flows.get(key)
        if known is not None and known[0] is topology:
            _flows.move_to_end(key)
            return known[1]
    found = CollectiveFlows.of(topology, call)
    with _lock:
        _flows[key] = topology, found
        while sum(len(flows.link) for _, flows in _flows.values()) > _MOST_LOADS:
            _flows.popitem(last=False)
    return found
