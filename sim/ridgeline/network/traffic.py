"""Traffic: many messages between devices at once, their fair rates and when each arrives.

This is the flow level: a message takes the latency of its way and then moves like a fluid, at the
rate that max-min fairness gives it on the links of its way. `ridgeline.network.packets` plays the
same messages packet by packet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ridgeline.engine.executor import run
from ridgeline.engine.program import Program, no_memory
from ridgeline.engine.rates import fair_rates
from ridgeline.errors import RidgelineError
from ridgeline.network.paths import Ints, Routes, graph_of, no_route, widest_shortest
from ridgeline.network.routing import routes
from ridgeline.network.topology import Floats, Topology


@dataclass(frozen=True, eq=False)
class Flows:
    """Messages that all begin at time 0.

    Attributes
    ----------
    source, target
        [F] ranks of the topology, different ones.
    size_bytes
        [F] payload of each, above 0.
    """

    source: Ints
    target: Ints
    size_bytes: Floats

    def __post_init__(self) -> None:
        if not len(self.source) == len(self.target) == len(self.size_bytes):
            raise RidgelineError(
                f"flows: {len(self.source)} sources, {len(self.target)} targets and "
                f"{len(self.size_bytes)} sizes; there must be as many of each"
            )
        if (self.source == self.target).any():
            raise RidgelineError("flows: a message goes from a rank to itself")
        if not (np.isfinite(self.size_bytes) & (self.size_bytes > 0)).all():
            raise RidgelineError("flows: every size must be a finite number above 0 B")

    @property
    def n(self) -> int:
        """How many messages there are."""
        return len(self.source)

    def vertices(self, topology: Topology) -> tuple[Ints, Ints]:
        """Return the vertices of the sources and of the targets."""
        ends = np.concatenate((self.source, self.target))
        if self.n and (ends.min() < 0 or ends.max() >= topology.n_devices):
            raise RidgelineError(
                f"flows: ranks are from {ends.min()} to {ends.max()}; {topology.name!r} has 0 to "
                f"{topology.n_devices - 1}"
            )
        devices = topology.devices.astype(np.int64)
        return devices[self.source], devices[self.target]


class FlowLinks(NamedTuple):
    """Links of flows with the share of each flow that passes them, in CSR."""

    ptr: Ints
    links: Ints
    share: Floats
    latency_s: Floats
    """[F] of the slowest of the ways of each flow."""


MOST_MESSAGES = 20_000_000
"""Messages of a pattern at most: half a gigabyte."""
PATTERNS: dict[str, Callable[[int, int], tuple[Ints, Ints]]] = {}
"""Who sends to whom among n ranks, by name; the second argument is the pattern's number."""


def _pattern(
    name: str,
) -> Callable[[Callable[[int, int], tuple[Ints, Ints]]], Callable[[int, int], tuple[Ints, Ints]]]:
    def put(make: Callable[[int, int], tuple[Ints, Ints]]) -> Callable[..., tuple[Ints, Ints]]:
        PATTERNS[name] = make
        return make

    return put


@_pattern("stride")
def _stride(n: int, offset: int) -> tuple[Ints, Ints]:
    """Rank i sends to rank i + offset, modulo n."""
    source = np.arange(n, dtype=np.int64)
    return source, (source + (offset or 1)) % n


@_pattern("permutation")
def _permutation(n: int, seed: int) -> tuple[Ints, Ints]:
    """Every rank sends to one other, and gets from one other: a random cyclic order."""
    order = np.random.default_rng(seed).permutation(n).astype(np.int64)
    return order, np.roll(order, -1)


@_pattern("random")
def _random(n: int, seed: int) -> tuple[Ints, Ints]:
    """Every rank sends to another, drawn evenly."""
    source = np.arange(n, dtype=np.int64)
    other = np.random.default_rng(seed).integers(0, n - 1, n)
    return source, other + (other >= source)


@_pattern("incast")
def _incast(n: int, target: int) -> tuple[Ints, Ints]:
    """All others send to one rank."""
    source = np.delete(np.arange(n, dtype=np.int64), target)
    return source, np.full(n - 1, target, np.int64)


@_pattern("all-to-all")
def _all_to_all(n: int, _: int) -> tuple[Ints, Ints]:
    """Every rank sends to every other."""
    source, target = np.divmod(np.arange(n * n, dtype=np.int64), n)
    other = source != target
    return source[other], target[other]


def make_flows(pattern: str, n: int, size_bytes: float) -> Flows:
    """Return the messages of a pattern.

    Patterns are ``stride:4``, ``permutation:SEED``, ``random:SEED``, ``incast:TARGET`` and
    ``all-to-all``.

    Raises
    ------
    RidgelineError
        If there is no such pattern, or fewer than two ranks.
    """
    name, _, number = pattern.partition(":")
    if name not in PATTERNS or not (number.isdecimal() or not number):
        raise RidgelineError(
            f"no traffic pattern is called {pattern!r} (known: {', '.join(PATTERNS)}; a number "
            "may follow a colon, as in stride:4)"
        )
    value = int(number or 0)
    if n < 2:
        raise RidgelineError(f"traffic needs at least two ranks, found {n}")
    if (name == "incast" and value >= n) or (name == "stride" and (value or 1) % n == 0):
        raise RidgelineError(f"{pattern!r} does not fit {n} ranks")
    if name == "all-to-all" and n * n > MOST_MESSAGES:
        raise RidgelineError(
            f"{pattern!r} of {n} ranks is {n * n:,} messages; at most {MOST_MESSAGES:,} are held"
        )
    source, target = PATTERNS[name](n, value)
    return Flows(source, target, np.full(len(source), float(size_bytes)))


def flow_loads(topology: Topology, flows: Flows, spray: int = 1) -> FlowLinks:
    """Route flows.

    Parameters
    ----------
    spray
        1: each flow takes the way of the topology's routing. More: its packets are spread evenly
        over that many choices among the shortest paths (all of them, if it is a multiple of their
        number and the topology has equal numbers of uplinks).
    """
    source, target = flows.vertices(topology)
    if spray == 1:
        found = routes(topology, source, target)
        return _loads(topology, flows.n, 1, found)
    choice = np.tile(np.arange(spray, dtype=np.int64), flows.n)
    many, lost = widest_shortest(
        graph_of(topology), np.repeat(source, spray), np.repeat(target, spray), choice
    )
    if len(lost):
        first = int(lost[0]) // spray
        raise no_route(topology, int(source[first]), int(target[first]))
    return _loads(topology, flows.n, spray, many)


def _loads(topology: Topology, n: int, spray: int, found: Routes) -> FlowLinks:
    hops = np.diff(found.ptr)
    way_s = np.add.reduceat(np.append(topology.latency_s[found.links], 0.0), found.ptr[:-1])
    latency_s: Floats = (way_s * (hops > 0)).reshape(n, spray).max(axis=1, initial=0.0)
    links = found.links.astype(np.int64)
    if spray == 1:
        return FlowLinks(found.ptr, links, np.ones(len(links)), latency_s)
    flow = np.repeat(np.arange(n), hops.reshape(n, spray).sum(axis=1))
    key, times = np.unique(flow * topology.n_links + links, return_counts=True)
    ptr = np.searchsorted(key, np.arange(n + 1) * topology.n_links).astype(np.int64)
    return FlowLinks(ptr, key % topology.n_links, times / spray, latency_s)


def flow_rates(topology: Topology, flows: Flows, spray: int = 1) -> Floats:
    """Return the max-min fair rates that flows have while all of them are active, in bytes/s."""
    loads = flow_loads(topology, flows, spray)
    return fair_rates(topology.bandwidth_bytes_per_s, loads.ptr, loads.links, loads.share)


def flow_times(topology: Topology, flows: Flows, spray: int = 1) -> Floats:
    """Return when each flow has arrived: its latency, and its bytes at the fair rate.

    Played by the event engine: rates are divided anew whenever a flow begins or ends.
    """
    return run(flows_program(topology, flows, spray)).end_s


def flows_program(
    topology: Topology, flows: Flows, spray: int = 1, loads: FlowLinks | None = None
) -> Program:
    """Return flows as a Program: one task on a stream of its own for each, on shared links.

    Parameters
    ----------
    loads
        Where flows go, if not as `flow_loads` routes them.
    """
    loads = loads or flow_loads(topology, flows, spray)
    n, one_each = flows.n, np.arange(flows.n + 1, dtype=np.int64)
    zeros = np.zeros(n, np.int32)
    return Program(
        resource_names=tuple(topology.link_name(link) for link in range(topology.n_links)),
        capacity=topology.bandwidth_bytes_per_s,
        shared=np.ones(topology.n_links, np.bool_),
        phase_ptr=one_each,
        latency_s=loads.latency_s,
        repeat=np.ones(n, np.int64),
        weight=np.ones(n),
        work_ptr=loads.ptr,
        work_resource=loads.links.astype(np.int32),
        work_amount=loads.share * np.repeat(flows.size_bytes, np.diff(loads.ptr)),
        event_ptr=np.zeros(n + 1, np.int64),
        event_account=np.zeros(0, np.int32),
        event_count=np.zeros(0),
        accounts=(),
        kind=np.zeros(n, np.uint8),
        stream=np.arange(n, dtype=np.int32),
        group=np.full(n, -1, np.int32),
        cost=np.arange(n, dtype=np.int32),
        priority=zeros,
        multiplicity=np.ones(n, np.int32),
        label=zeros,
        dep_ptr=np.zeros(n + 1, np.int64),
        dep_index=np.zeros(0, np.int32),
        kind_names=("flow",),
        label_names=("flow",),
        group_ptr=np.zeros(1, np.int64),
        group_stream=np.zeros(0, np.int32),
        stream_names=tuple(
            f"{a}->{b}" for a, b in zip(flows.source.tolist(), flows.target.tolist(), strict=True)
        ),
        stream_rank=flows.source.astype(np.int32),
        rank_multiplicity=np.ones(topology.n_devices, np.int32),
        **no_memory(n, topology.n_devices),
    )
