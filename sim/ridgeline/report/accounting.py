"""Accounting of a played Program: time, energy, memory and traffic that add up."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.engine.program import Floats, Ints
from ridgeline.engine.timeline import Timeline
from ridgeline.hardware.device import Device
from ridgeline.kernels import OpCost, power_capped_clock
from ridgeline.kernels.cost import OpSpans, peak_rates
from ridgeline.parallel.emit.host_launches import ISSUE
from ridgeline.parallel.lower import COLLECTIVE, Lowered
from ridgeline.workload.graph import Pass

ENERGY_PARTS = ("compute", "registers", "sram", "dram", "network", "static")
MEMORY_PARTS = ("weights", "gradients", "optimizer", "activations", "workspace")
EXPOSED = "exposed communication"
_KINDS = (
    *(("tensor",), ("context",), ("spatial",), ("expert",)),
    *(("data", "beyond"), ("pipeline",), ("host",)),
)
BUBBLE = "bubble"
ISSUING = "host issue"
CONTENTION = "collectives beside"
POWER_LIMIT = "power limit"
_ROUNDING = 1e-9


@dataclass(frozen=True)
class TimeAccount:
    """Wall clock of the critical rank.

    Attributes
    ----------
    parts_s
        The parts of ``time_s`` in a result, and their total.
    limits_s
        The same wall clock by what limited each op: an engine's arithmetic, a memory level's
        bandwidth, launch latency or another part of an op's latency (fill, drain, exchange,
        barrier, copy, a level's stall), the clock under a power limit; exposed communication and
        bubble.
    """

    parts_s: dict[str, float]
    limits_s: dict[str, float]


def time_account(lowered: Lowered, timeline: Timeline, device: Device) -> TimeAccount:
    """Split the step time of the rank that finishes last.

    A compute op's time is its arithmetic and launch (``compute``) and what memory adds to that
    (``memory_stall``); updates are ``optimizer`` altogether. When the compute stream is idle, the
    time is ``exposed_communication`` while the rank's network stream is busy; else it is counted as
    launch while the host issues ops, else ``bubble``. What ops take longer since something is sent
    beside them (`parallel.comm.contention`) counts as ``memory_stall``.
    """
    program = lowered.program
    rank = critical_rank(timeline)
    on_rank = program.stream_rank[program.stream] == rank
    is_collective = program.kind == _kind(program.kind_names, COLLECTIVE)
    is_issue = program.kind == _kind(program.kind_names, ISSUE)
    mine = np.flatnonzero(on_rank & ~is_collective & ~is_issue)
    total = timeline.makespan_s
    update = _kind(program.kind_names, Pass.UPDATE.value)

    of_row = np.bincount(2 * program.cost[mine] + (program.kind[mine] == update))
    compute, stall, optimizer = [], [], []
    rates = peak_rates(lowered.device_of_rank(rank, device))
    limits: dict[str, list[float]] = {}
    for found in np.flatnonzero(of_row).tolist():
        (row, is_update), count = divmod(found, 2), int(of_row[found])
        cost = lowered.cost_of_row[row]
        spans = cost.spans(rates)
        duration = spans.time_s
        computing_s = _computing_s(cost, spans)
        arithmetic = cost.latency_s - cost.waiting_s + computing_s
        if is_update:
            optimizer.append(count * duration)
        else:
            compute.append(count * arithmetic)
            stall.append(count * (duration - arithmetic))
        limits.setdefault(_limiting(cost, spans, computing_s), []).append(count * duration)

    busy = union(timeline.start_s[mine], timeline.end_s[mine])
    # what collectives take of the engines and the memory: waiting, for either
    slowed = math.fsum(timeline.durations_s[mine]) - math.fsum([*compute, *stall, *optimizer])
    if slowed > _ROUNDING * total:
        stall.append(slowed)
        limits[CONTENTION] = [slowed]
    network = union(*_collective_intervals(timeline, rank))
    idle = total - math.fsum(busy[:, 1] - busy[:, 0])
    exposed = math.fsum(network[:, 1] - network[:, 0]) - overlap(busy, network)
    exposed = min(max(exposed, 0.0), max(idle, 0.0))
    hosts = np.flatnonzero(on_rank & is_issue)
    issued = _alone(timeline.start_s[hosts], timeline.end_s[hosts], busy, network)
    issued = min(issued, max(idle - exposed, 0.0))
    parts = {
        "compute": math.fsum([*compute, issued]),
        "memory_stall": math.fsum(stall),
        "exposed_communication": exposed,
        "bubble": max(idle - exposed - issued, 0.0),
        "input": 0.0,
        "optimizer": math.fsum(optimizer),
    }
    limits_s = {name: math.fsum(times) for name, times in limits.items()}
    limits_s |= {
        **_exposed_by_kind(lowered, timeline, rank, busy, exposed),
        BUBBLE: parts["bubble"],
    }
    if len(hosts):
        limits_s[ISSUING] = issued
    ordered = dict(sorted(limits_s.items(), key=lambda item: -item[1]))
    return TimeAccount({**parts, "total": total}, ordered)


def _exposed_by_kind(
    lowered: Lowered, timeline: Timeline, rank: int, busy: Floats, exposed_s: float
) -> dict[str, float]:
    """Split exposed communication by the dimension of the plan that it goes along.

    Where several go on at once, the time counts to the first of them in the order of `_KINDS`.
    """
    tasks = _communication(timeline, rank)
    if len(tasks) == 0:
        return {EXPOSED: exposed_s}
    along = np.array([lowered.dimension_of_row.get(row, "") for row in range(_rows(timeline))])
    of_task = along[timeline.program.cost[tasks]]
    present = [kinds for kinds in _KINDS if np.isin(of_task, kinds).any()]
    if len(present) < 2:
        return {EXPOSED: exposed_s}
    found: dict[str, float] = {}
    chosen, before = np.zeros(len(tasks), np.bool_), 0.0
    for kinds in present:
        chosen |= np.isin(of_task, kinds)
        spans = union(timeline.start_s[tasks[chosen]], timeline.end_s[tasks[chosen]])
        so_far = math.fsum(spans[:, 1] - spans[:, 0]) - overlap(busy, spans)
        found[f"{EXPOSED} ({kinds[0]})"] = max(so_far - before, 0.0)
        before = max(so_far, before)
    scale = exposed_s / math.fsum(found.values()) if before > 0 else 0.0  # rounding
    return {name: time_s * scale for name, time_s in found.items()}


def _rows(timeline: Timeline) -> int:
    return len(timeline.program.event_ptr) - 1


def energy_account(timeline: Timeline, idle_power_w: float, devices: int) -> dict[str, float]:
    """Joules of one step over all devices by component, and their total.

    Every counted event is priced by its account; `static` is the idle power of all devices in use
    over the step.
    """
    parts: dict[str, list[float]] = {name: [] for name in ENERGY_PARTS}
    for index, count in timeline.ledger().items():
        account = timeline.program.accounts[index]
        parts[account.component].append(count * account.price_j)
    parts["static"].append(idle_power_w * devices * timeline.makespan_s)
    return with_total({name: math.fsum(values) for name, values in parts.items()})


def traffic_account(timeline: Timeline) -> dict[str, float]:
    """Bytes of one step over all devices, per memory level and link class."""
    traffic: dict[str, list[float]] = {}
    for index, count in timeline.ledger().items():
        account = timeline.program.accounts[index]
        if account.unit == "B":
            traffic.setdefault(account.place, []).append(count)
    return {place: math.fsum(counts) for place, counts in traffic.items()}


def kept_account(lowered: Lowered, timeline: Timeline) -> dict[str, float]:
    """Bytes of one step over all devices that a memory level kept from op to op, per level."""
    rows = {row: cost for row, cost in lowered.cost_of_row.items() if cost.kept_bytes}
    if not rows:
        return {}
    program = timeline.program
    times = np.bincount(
        program.cost, weights=program.multiplicity, minlength=_rows(timeline)
    ).tolist()
    kept: dict[str, list[float]] = {}
    for row, cost in rows.items():
        for level, size in cost.kept_bytes.items():
            kept.setdefault(level, []).append(times[row] * size)
    return {level: math.fsum(sizes) for level, sizes in kept.items()}


def memory_account(timeline: Timeline) -> dict[str, int]:
    """Bytes by kind of the fullest rank at its fullest moment, and their total."""
    return _by_kind(max(timeline.memory(), key=lambda rank: rank.peak_bytes).by_kind)


def fullest_account(timeline: Timeline, capacities: Sequence[int]) -> tuple[dict[str, int], int]:
    """Bytes by kind of the rank with the least room left at its fullest moment, and that rank."""
    room = [
        size - rank.peak_bytes for size, rank in zip(capacities, timeline.memory(), strict=True)
    ]
    fullest = room.index(min(room))
    return _by_kind(timeline.memory()[fullest].by_kind), fullest


def _by_kind(by_kind: Mapping[str, int]) -> dict[str, int]:
    unknown = set(by_kind) - set(MEMORY_PARTS)
    if unknown:
        raise ValueError(f"unknown kinds of memory: {sorted(unknown)}")
    parts = {name: int(by_kind.get(name, 0)) for name in MEMORY_PARTS}
    return {**parts, "total": sum(parts.values())}


def with_total(parts: dict[str, float]) -> dict[str, float]:
    """Add the exactly rounded sum of all parts as ``total``."""
    return {**parts, "total": math.fsum(parts.values())}


def _kind(names: tuple[str, ...], name: str) -> int:
    return names.index(name) if name in names else -1


def critical_rank(timeline: Timeline) -> int:
    """Return the simulated rank that finishes last."""
    last = int(np.argmax(timeline.end_s)) if len(timeline.end_s) else 0
    program = timeline.program
    return int(program.stream_rank[program.stream[last]]) if program.n_tasks else 0


def limiting(cost: OpCost, device: Device) -> str:
    """Name what takes the largest part of an op's time."""
    spans = cost.spans(peak_rates(device))
    return _limiting(cost, spans, _computing_s(cost, spans))


def _computing_s(cost: OpCost, spans: OpSpans) -> float:
    """Seconds of arithmetic, without waits for the ports before the engine."""
    if cost.mapped is None:
        return spans.compute_s
    return spans.compute_s * (1.0 - cost.port_wait_share)


def _limiting(cost: OpCost, spans: OpSpans, computing_s: float) -> str:
    if power_capped_clock.NOTE in cost.notes:
        return POWER_LIMIT
    limit, longest = "launch latency", -1.0
    for name, time_s in spans.memory_s.items():
        if time_s > longest:
            limit, longest = f"{name} bandwidth", time_s
    if cost.engine_work and computing_s > longest:
        limit, longest = f"{next(iter(cost.engine_work))} arithmetic", computing_s
    if cost.latency_s <= longest:
        return limit
    return "launch latency" if cost.latency_parts is None else cost.latency_parts.largest


def _collective_intervals(timeline: Timeline, rank: int) -> tuple[Floats, Floats]:
    """Start and end of the communication that a rank takes part in."""
    tasks = _communication(timeline, rank)
    return timeline.start_s[tasks], timeline.end_s[tasks]


def _communication(timeline: Timeline, rank: int) -> Ints:
    """Return the communication tasks that a rank takes part in."""
    program = timeline.program
    streams = program.stream_rank == rank
    mine = streams[program.stream]
    if len(program.group_stream):
        takes_part = np.logical_or.reduceat(streams[program.group_stream], program.group_ptr[:-1])
        mine |= (program.group >= 0) & takes_part[program.group]
    return np.flatnonzero(mine & (program.kind == _kind(program.kind_names, COLLECTIVE)))


def _alone(start_s: Floats, end_s: Floats, *others: Floats) -> float:
    """Length of some intervals outside of those of others."""
    covered = np.concatenate(others)
    mine = union(start_s, end_s)
    return math.fsum(mine[:, 1] - mine[:, 0]) - overlap(mine, union(covered[:, 0], covered[:, 1]))


def union(start: Floats, end: Floats) -> Floats:
    """Merge intervals that touch or overlap; returns [n, 2] disjoint intervals in order."""
    if len(start) == 0:
        return np.zeros((0, 2))
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    first = np.concatenate([[True], start[1:] > end[:-1]])
    last = np.concatenate([first[1:], [True]])
    return np.stack([start[first], end[last]], axis=1)


def overlap(a: Floats, b: Floats) -> float:
    """Length of the intersection of two sets of disjoint, ordered intervals."""
    if len(a) == 0 or len(b) == 0:
        return 0.0
    # Time covered by `a` up to t is piecewise linear in t, with knots at the ends of intervals.
    knots = a.ravel()
    covered = np.concatenate([[0.0], np.cumsum(a[:, 1] - a[:, 0])])
    values = np.repeat(covered, 2)[1:-1]
    at = np.interp(b, knots, values)
    return math.fsum(at[:, 1] - at[:, 0])
