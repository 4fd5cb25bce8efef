"""A step, or a trace, with its collectives between nodes packet by packet.

Collectives and messages that go on at the same time in all groups of a kind (all rings of the
replicas, all sends between two stages) are played together, twice: as flows and packet by packet,
both round by round and with nothing else on the network. What packets take longer, besides
latencies, is put on the links' work in the step's cost rows, and the step is played again. So
hashes that collide, pauses and cut rates of one kind of collective are in the step; what
collectives of different kinds do to each other is still divided as flows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ridgeline.engine.executor import run
from ridgeline.engine.program import Program
from ridgeline.errors import RidgelineError
from ridgeline.network.algorithm import DoesNotApplyError
from ridgeline.network.collectives import ALGORITHMS, written
from ridgeline.network.levels import KNOWN_ERROR
from ridgeline.network.multipath import along_s
from ridgeline.network.packet_collective import MOST_PACKETS, Round, packets_in, rounds_of
from ridgeline.network.paths import join_messages
from ridgeline.network.routing import routes
from ridgeline.network.topology import Topology
from ridgeline.network.traffic import Flows, flow_times
from ridgeline.network.transport import Transport, TransportResult, play_transport
from ridgeline.parallel.comm.collective_selection import schedule_of
from ridgeline.parallel.comm.contention import with_contention
from ridgeline.parallel.lower import COLLECTIVE, Lowered
from ridgeline.report.execution import ExecutionResult
from ridgeline.report.result import Result
from ridgeline.simulation import shared_topology
from ridgeline.workload.execution import COLLECTIVES, TaskKind

Group = tuple[int, ...]


class ConcurrentCollectives(NamedTuple):
    """Collectives of equal size that go on in several groups at once.

    Attributes
    ----------
    op
        The operation; ``send`` is a message from the first rank of a group to the second.
    rows
        Their cost rows.
    """

    label: str
    op: str
    size_bytes: float
    groups: tuple[Group, ...]
    rows: frozenset[int]


@dataclass(frozen=True)
class PacketCall:
    """Collectives at both levels.

    Attributes
    ----------
    algorithm
        Whose messages were played; "" where none were.
    flows_s, packets_s
        Alone on the network, without what the library does besides.
    factor
        What the work of their links is multiplied with in the step.
    kept
        Why they stay at the level of flows; "": they do not.
    """

    label: str
    op: str
    size_bytes: float
    ranks: int
    groups: int
    algorithm: str
    flows_s: float
    packets_s: float
    factor: float
    packets: int
    marked: int
    pauses: int
    kept: str = ""


@dataclass(frozen=True)
class PacketStep:
    """A step with its collectives packet by packet.

    Attributes
    ----------
    flows_s, packets_s
        Time of the step at both levels.
    """

    transport: str
    flows_s: float
    packets_s: float
    calls: tuple[PacketCall, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return {
            "level": "packets for collectives between nodes, flows between these",
            "known_error": KNOWN_ERROR["packets"],
            **asdict(self),
        }


def packet_step(result: Result | ExecutionResult, transport: Transport) -> PacketStep:
    """Play the collectives of a step, or of a trace, packet by packet.

    Parameters
    ----------
    result
        Of a step whose every rank was simulated (``fold=False``).

    Raises
    ------
    RidgelineError
        If ranks stand for others, or there are too many packets.
    """
    lowered, cluster = result.details.lowered, result.details.cluster
    program = lowered.program
    if isinstance(result, ExecutionResult):
        topology: Topology = result.details.lowered.topology
        calls = _calls_of_execution(result)
    else:
        assert isinstance(lowered, Lowered)
        if any(len(members) > 1 for members in lowered.classes):
            raise RidgelineError("packets need every rank: simulate with fold=False")
        topology = shared_topology(cluster, len(lowered.classes))
        calls = _calls_of_step(lowered, topology)
    planned = [_planned(call, topology) for call in calls]
    packets = sum(packets_in(one, transport) for one, _, kept in planned if not kept)
    if packets > MOST_PACKETS:
        raise RidgelineError(
            f"{packets:,.0f} packets in {len(calls)} kinds of collectives; at most "
            f"{MOST_PACKETS:,} are played one by one: fewer ranks, or larger packets, which "
            "switches store longer"
        )
    played = [
        _played(call, plan, topology, transport) for call, plan in zip(calls, planned, strict=True)
    ]
    slower = _with_factors(program, topology, calls, played)
    before, after = run(program), run(slower)
    if isinstance(lowered, Lowered) and lowered.talks and isinstance(result, Result):
        channels = result.details.plan.stack.overlap.contention
        before, after = (
            with_contention(one, replace(lowered, program=one.program), cluster.device,
                            channels=channels)
            for one in (before, after)
        )  # fmt: skip
    more_s = after.makespan_s - before.makespan_s
    return PacketStep(
        transport.text, result.step_time_s, result.step_time_s + more_s, tuple(played)
    )


def _calls_of_step(lowered: Lowered, topology: Topology) -> list[ConcurrentCollectives]:
    """Return what the simulated ranks send, each kind of collective once."""
    p = lowered.program
    found: dict[tuple[str, str, float], dict[Group, int]] = {}
    for task in np.flatnonzero(p.kind == p.kind_names.index(COLLECTIVE)).tolist():
        row, label = int(p.cost[task]), p.label_names[p.label[task]]
        talk = lowered.talks.get((row, label))
        if talk is None:
            continue
        group = int(p.group[task])
        streams = (
            p.group_stream[p.group_ptr[group] : p.group_ptr[group + 1]]
            if group >= 0
            else p.stream[task : task + 1]
        )
        ranks = tuple(lowered.classes[rank][0] for rank in p.stream_rank[streams].tolist())
        if talk.op == "send":
            ranks = (ranks[0], _receiver(p, row, ranks[0], topology))
        found.setdefault((label, talk.op, talk.size_bytes), {})[ranks] = row
    return _distinct(
        ConcurrentCollectives(label, op, size, tuple(sorted(groups)), frozenset(groups.values()))
        for (label, op, size), groups in found.items()
    )


def _receiver(program: Program, row: int, sender: int, topology: Topology) -> int:
    """Return the rank at the end of the links that a message passes."""
    first, last = program.phase_ptr[row], program.phase_ptr[row + 1]
    works = program.work_resource[program.work_ptr[first] : program.work_ptr[last]]
    names = {program.resource_names[resource] for resource in works.tolist()}
    links = [link for link in range(topology.n_links) if topology.link_name(link) in names]
    ends = {int(topology.target[link]) for link in links}
    ends -= {int(topology.source[link]) for link in links}
    (end,) = ends or {int(topology.devices[sender])}
    ranks: list[int] = topology.devices.tolist()
    return ranks.index(end)


def _calls_of_execution(result: ExecutionResult) -> list[ConcurrentCollectives]:
    lowered = result.details.lowered
    e, lead, cost = lowered.execution, lowered.units.first, lowered.program.cost
    found: dict[tuple[str, str, float], dict[Group, int]] = {}
    for unit, task in enumerate(lead.tolist()):
        kind, size = e.kind[task], float(e.size_bytes[task])
        if kind == TaskKind.COLLECTIVE:
            op, ranks = COLLECTIVES[int(e.op[task])], tuple(e.members(int(e.group[task])).tolist())
        elif kind in {TaskKind.SEND, TaskKind.RECEIVE}:
            ends = int(e.ranks[e.rank_of_task()[task]]), int(e.peer[task])
            op, ranks = "send", ends if kind == TaskKind.SEND else ends[::-1]
        else:
            continue
        if len(ranks) > 1 and size > 0:
            label = e.label_names[e.label[task]]
            found.setdefault((label, op, size), {})[ranks] = int(cost[unit])
    return _distinct(
        ConcurrentCollectives(label, op, size, tuple(sorted(groups)), frozenset(groups.values()))
        for (label, op, size), groups in found.items()
    )


def _distinct(calls: Iterable[ConcurrentCollectives]) -> list[ConcurrentCollectives]:
    """Return calls that differ in more than their label, with the cost rows of all their like."""
    found: dict[tuple[object, ...], ConcurrentCollectives] = {}
    for call in calls:
        key = call.op, call.size_bytes, call.groups
        before = found.get(key)
        found[key] = call if before is None else before._replace(rows=before.rows | call.rows)
    return list(found.values())


Plan = tuple[list[Round], str, str]


def _planned(call: ConcurrentCollectives, topology: Topology) -> Plan:
    """Return the rounds of all groups together, the algorithm, and why there are none."""
    try:
        rounds, algorithm = _rounds(call, topology)
    except DoesNotApplyError as reason:
        return [], "", str(reason)
    return rounds, algorithm, ""


def _rounds(call: ConcurrentCollectives, topology: Topology) -> tuple[list[Round], str]:
    """Return the rounds of all groups together, and the algorithm.

    Raises
    ------
    DoesNotApplyError
        If they stay at the level of flows: why.
    """
    if call.size_bytes <= 0:
        raise DoesNotApplyError("nothing is sent")
    if _is_inside(call, topology):
        raise DoesNotApplyError("inside of nodes")
    if call.op == "send":
        ends = np.array(call.groups, np.int64)
        flows = Flows(ends[:, 0], ends[:, 1], np.full(len(ends), call.size_bytes))
        ways = routes(topology, *flows.vertices(topology))
        late = np.add.reduceat(topology.latency_s[ways.links], ways.ptr[:-1])
        return [Round(flows, ways, float(late.max()), 1)], "direct"
    if " " in call.op or call.op not in {op for op, _ in ALGORITHMS}:
        raise DoesNotApplyError("messages of uneven sizes, which are known by their links alone")
    group = np.array(call.groups[0], np.int64)
    chosen = schedule_of(call.op, topology, group, call.size_bytes).algorithm
    name = _BY_MESSAGES.get(chosen, written(call.op, chosen))
    if (call.op, name) not in ALGORITHMS:
        raise DoesNotApplyError(
            f"the library takes {chosen!r}, whose messages are not written down"
        )
    every = [
        rounds_of(ALGORITHMS[call.op, name], topology, one, call.size_bytes) for one in call.groups
    ]
    if len({tuple(one.repeat for one in rounds) for rounds in every}) > 1:
        raise DoesNotApplyError("its groups send in different rounds")
    return [_together(ones, topology) for ones in zip(*every, strict=True)], name


def _is_inside(call: ConcurrentCollectives, topology: Topology) -> bool:
    """Tell whether no way from a rank to the next of its group leaves a node."""
    ends = np.concatenate([np.array(group, np.int64) for group in call.groups])
    after = np.concatenate([np.roll(np.array(group, np.int64), -1) for group in call.groups])
    devices = topology.devices.astype(np.int64)
    links = routes(topology, devices[ends], devices[after]).links
    first, last = (topology.node_of[of[links]] for of in (topology.source, topology.target))
    return bool(((first == last) & (first >= 0)).all())


_BY_MESSAGES = {"two-level": "hierarchical"}
"""Algorithms that have the messages of those that steps know by their links alone."""


def _together(rounds: Sequence[Round], topology: Topology) -> Round:
    """Return rounds of several groups as one."""
    some = [(one.flows, one.ways) for one in rounds if one.flows is not None]
    latency_s = max(one.latency_s for one in rounds)
    if not some:
        return Round(None, None, latency_s, rounds[0].repeat)
    flows = Flows(
        np.concatenate([of.source for of, _ in some]),
        np.concatenate([of.target for of, _ in some]),
        np.concatenate([of.size_bytes for of, _ in some]),
    )
    ways = [
        routes(topology, *of.vertices(topology)) if given is None else given for of, given in some
    ]
    return Round(flows, join_messages(*ways), latency_s, rounds[0].repeat)


def _played(
    call: ConcurrentCollectives, plan: Plan, topology: Topology, transport: Transport
) -> PacketCall:
    rounds, algorithm, kept = plan
    flows_s = packets_s = late_s = 0.0
    found: list[TransportResult] = []
    for one in rounds:
        late_s += one.repeat * one.latency_s
        if one.flows is None:
            flows_s += one.repeat * one.latency_s
            packets_s += one.repeat * one.latency_s
            continue
        times = (
            flow_times(topology, one.flows)
            if one.ways is None
            else along_s(topology, one.flows, one.ways)
        )
        flows_s += one.repeat * float(times.max())
        result = play_transport(topology, one.flows, transport, ways=one.ways)
        packets_s += one.repeat * float(result.done_s.max())
        found.append(result)
    factor = (packets_s - late_s) / (flows_s - late_s) if flows_s > late_s else 1.0
    return PacketCall(
        call.label,
        call.op,
        call.size_bytes,
        len(call.groups[0]),
        len(call.groups),
        algorithm,
        flows_s,
        packets_s,
        factor,
        sum(one.packets for one in found),
        sum(one.marked for one in found),
        sum(one.pauses for one in found),
        kept,
    )


def _with_factors(
    program: Program,
    topology: Topology,
    calls: Sequence[ConcurrentCollectives],
    played: Sequence[PacketCall],
) -> Program:
    """Return a program whose rows of collectives have more, or less, to do on links."""
    of_row = np.ones(len(program.phase_ptr) - 1)
    for call, one in zip(calls, played, strict=True):
        if not one.kept:
            rows = list(call.rows)
            known = of_row[rows] != 1.0  # of another call, too: the slower counts
            of_row[rows] = np.where(known, np.maximum(of_row[rows], one.factor), one.factor)
    names = {topology.link_name(link) for link in range(topology.n_links)}
    is_link = np.array([name in names for name in program.resource_names], np.bool_)
    phase = np.repeat(np.arange(len(program.repeat)), np.diff(program.work_ptr))
    row = np.repeat(np.arange(len(of_row)), np.diff(program.phase_ptr))[phase]
    factor = np.where(is_link[program.work_resource], of_row[row], 1.0)
    return replace(program, work_amount=program.work_amount * factor)
