"""What a step of parts takes: time, what each part's devices wait for, memory, energy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ridgeline.engine.program import Floats, Ints
from ridgeline.engine.timeline import Timeline
from ridgeline.hardware.cluster import Cluster
from ridgeline.parallel.emit.host_launches import ISSUE
from ridgeline.parallel.emit.rank_group import COLLECTIVE
from ridgeline.parallel.plan.plan import Plan
from ridgeline.report.accounting import (
    ENERGY_PARTS,
    MEMORY_PARTS,
    energy_account,
    overlap,
    traffic_account,
    union,
    with_total,
)
from ridgeline.simulation import peak_flops_per_s
from ridgeline.software.stack import Stack
from ridgeline.study.parts.part_plans import PartPlan, parse_parts
from ridgeline.study.parts.parts_step import (
    InTransit,
    PlayedPart,
    PlayedParts,
    play_parts,
)
from ridgeline.version import __version__
from ridgeline.workload.model import Model
from ridgeline.workload.network_parts import handed_to, taken_from

IN_TRANSIT = "in transit"
SPENT = (
    *("compute", "communication", "waiting for rows", "waiting for gradients"),
    *("turn of other parts", "idle", "after its end"),
)
"""What devices of a part do with the time of a step; idle otherwise: bubbles of its own pipeline,
and what the host issues late."""


@dataclass(frozen=True)
class PartResult:
    """One part in a step of all parts.

    Attributes
    ----------
    plan
        As it is run.
    trained
        Whether gradients come to it; `frozen`: whether its own weights are not trained.
    alone_s
        Its step without waiting for others.
    shares
        Of the time of its devices, by what they do (`SPENT`); they add up to 1.
    memory_bytes
        Of the fullest device at its fullest moment, by kind, of all parts on it together, and what
        passes between parts.
    energy_j
        Without what devices take while they idle.
    """

    name: str
    devices: int
    first_device: int
    colocated: bool
    plan: str
    software: str
    frozen: bool
    trained: bool
    micro_batches: int
    ahead: int
    parameters: int
    flops_per_step: int
    alone_s: float
    shares: Mapping[str, float]
    memory_bytes: Mapping[str, int]
    fits: bool
    energy_j: float
    notes: tuple[str, ...]


@dataclass(frozen=True)
class PartsResult:
    """A step of a network whose parts have plans of their own.

    Attributes
    ----------
    energy_j
        By component, of all devices, with `total`.
    traffic_bytes
        By memory level and link, of all devices.
    sent_bytes
        Of messages between parts on the links' ends: each message once.
    chosen_by
        Which software stack it was, and who chose it.
    manifest
        What repeats it.
    """

    model: str
    cluster: str
    devices: int
    global_batch: int
    step_time_s: float
    samples_per_s: float
    tokens_per_s: float | None
    flops_per_step: int
    mfu: float
    fits: bool
    energy_j: Mapping[str, float]
    traffic_bytes: Mapping[str, float]
    sent_bytes: float
    parts: tuple[PartResult, ...]
    chosen_by: str
    manifest: Mapping[str, Any]

    def part(self, name: str) -> PartResult:
        """Return a part by name."""
        return next(part for part in self.parts if part.name == name)

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return asdict(self)


def simulate_parts(
    model: Model | str,
    cluster: Cluster | str,
    plan: Plan,
    parts: Mapping[str, PartPlan] | str,
    *,
    software: Stack | str | None = None,
    fold: bool = True,
) -> PartsResult:
    """Simulate one step of a network whose parts have plans, and devices, of their own.

    Parameters
    ----------
    plan
        Of the rest of the network; its ``global_batch`` is the samples of the step.
    parts
        Plan of each part, or text: ``"vision: data=8,frozen; projector: data=8"``
        (docs/parts.md).
    software, fold
        As of `simulate`; unfolded, messages between parts share links with what parts send inside.

    Raises
    ------
    RidgelineError
        If a part does not exist, or its plan cannot be.
    """
    asked = parse_parts(parts) if isinstance(parts, str) else parts
    return parts_result(play_parts(model, cluster, plan, asked, software=software, fold=fold))


def parts_result(played: PlayedParts) -> PartsResult:
    """Make an account of a step that has been played."""
    time_s = played.step_time_s + max(p.step.run.stack.host.step_wait for p in played.parts)
    energy: dict[str, list[float]] = {name: [] for name in ENERGY_PARTS}
    traffic: dict[str, list[float]] = {}
    for timeline in (*(part.timeline for part in played.parts), played.sent):
        for name, value in energy_account(timeline, 0.0, 0).items():
            if name != "total":
                energy[name].append(value)
        for place, size in traffic_account(timeline).items():
            traffic.setdefault(place, []).append(size)
    kinds = played.cluster.devices_of(max(max(part.ranks) for part in played.parts) + 1)
    used = sorted({rank for part in played.parts for rank in part.ranks})
    energy["static"].append(time_s * math.fsum(kinds[r].idle_power.value for r in used))
    memory = [_pool_memory(played, number) for number in range(len(played.parts))]
    of_parts = tuple(
        _part_result(played, number, time_s, *memory[number]) for number in range(len(played.parts))
    )
    peaks = math.fsum(
        peak_flops_per_s(part.step.lowered, part.cluster, len(part.ranks))
        for part in played.parts
        if not part.plan.colocated
    )
    useful = sum(part.flops_per_step for part in of_parts)
    samples_per_s = played.global_batch / time_s
    rest = played.parts[-1].step
    return PartsResult(
        model=played.model.name,
        cluster=played.cluster.name,
        devices=played.devices,
        global_batch=played.global_batch,
        step_time_s=time_s,
        samples_per_s=samples_per_s,
        tokens_per_s=samples_per_s * rest.graph.tokens_per_sample or None,
        flops_per_step=useful,
        mfu=useful / time_s / peaks,
        fits=all(part.fits for part in of_parts),
        energy_j=with_total({name: math.fsum(values) for name, values in energy.items()}),
        traffic_bytes={place: math.fsum(sizes) for place, sizes in traffic.items()},
        sent_bytes=played.message_bytes,
        parts=of_parts,
        chosen_by=played.chosen_by,
        manifest={
            "model": {"name": played.model.name, "overrides": dict(played.model.overrides)},
            "cluster": played.cluster.name,
            "plan": str(rest.run),
            "parts": {part.name: asdict(part.plan) for part in played.parts[:-1]},
            "software": rest.run.stack.name,
            "version": __version__,
        },
    )


def _part_result(
    played: PlayedParts, number: int, time_s: float, memory: dict[str, int], fits: bool
) -> PartResult:
    part = played.parts[number]
    run, graph = part.step.run, part.step.graph
    wide = run.widest()
    return PartResult(
        name=part.name,
        devices=len(part.ranks),
        first_device=part.ranks[0],
        colocated=part.plan.colocated,
        plan=str(run),
        software=run.stack.name,
        frozen=part.plan.frozen,
        trained=part.trained,
        micro_batches=part.rounds.rounds,
        ahead=run.ahead,
        parameters=graph.parameters,
        flops_per_step=graph.useful_flops * wide.micro_batches * wide.data,
        alone_s=part.step.timeline.makespan_s,
        shares=_shares(played, number, time_s),
        memory_bytes=memory,
        fits=fits,
        energy_j=energy_account(part.timeline, 0.0, 0)["total"],
        notes=run.notes,
    )


def _shares(played: PlayedParts, number: int, time_s: float) -> dict[str, float]:
    """Return what the devices of a part do, as shares of their time in the step."""
    part, timeline = played.parts[number], played.parts[number].timeline
    program = timeline.program
    kinds = program.kind_names
    collective = np.array([name == COLLECTIVE for name in kinds])[program.kind]
    computes = ~np.array([name in (COLLECTIVE, ISSUE) for name in kinds])[program.kind]
    rank = program.stream_rank[program.stream]
    rows, gradients = _boundary_tasks(played, number)
    shared = any(p.plan.colocated for p in played.parts) and set(part.ranks) == set(
        played.parts[-1].ranks
    )
    spent: dict[str, list[float]] = {name: [] for name in SPENT}
    for one, times in enumerate(program.rank_multiplicity.tolist()):
        mine = np.flatnonzero(computes & (rank == one))
        busy = union(timeline.start_s[mine], timeline.end_s[mine])
        talks = np.flatnonzero(collective & _takes_part(timeline, one))
        network = union(timeline.start_s[talks], timeline.end_s[talks])
        busy_s = _length(busy)
        exposed_s = _length(network) - overlap(busy, network)
        played_tasks = np.concatenate((mine, talks))
        until_s = float(timeline.end_s[played_tasks].max(initial=0.0))
        turns_s = float(timeline.start_s[played_tasks].min(initial=until_s))
        waits = [
            _gaps_s(timeline, mine, np.intersect1d(mine, tasks), network)
            for tasks in (rows, gradients)
        ]
        after_s = time_s - until_s
        if shared:  # what is waited for, or comes later, is another part's turn
            turns_s, waits, after_s = turns_s + math.fsum(waits) + after_s, [0.0, 0.0], 0.0
        rest_s = time_s - math.fsum((busy_s, exposed_s, *waits, turns_s, after_s))
        values = (busy_s, exposed_s, *waits, turns_s, max(0.0, rest_s), after_s)
        for name, value in zip(SPENT, values, strict=True):
            spent[name].append(times * value)
    whole_s = time_s * len(part.ranks)
    return {name: math.fsum(values) / whole_s for name, values in spent.items()}


def _length(spans: Floats) -> float:
    return math.fsum(spans[:, 1] - spans[:, 0])


def _takes_part(timeline: Timeline, rank: int) -> Any:
    program = timeline.program
    streams = program.stream_rank == rank
    mine = streams[program.stream]
    if len(program.group_stream):
        member = np.logical_or.reduceat(streams[program.group_stream], program.group_ptr[:-1])
        mine |= (program.group >= 0) & member[program.group]
    return mine


def _gaps_s(timeline: Timeline, tasks: Ints, before: Ints, network: Floats) -> float:
    """Return how long the computing queue stands still before some tasks, and nothing is sent."""
    order = tasks[np.argsort(timeline.start_s[tasks], kind="stable")]
    place = np.flatnonzero(np.isin(order, before))
    place = place[place > 0]
    ended = np.maximum.accumulate(timeline.end_s[order])[place - 1]
    begun = timeline.start_s[order[place]]
    gaps = begun > ended
    spans = np.stack((ended[gaps], begun[gaps]), axis=1)
    return _length(spans) - overlap(spans, network)


def _boundary_tasks(played: PlayedParts, number: int) -> tuple[Ints, Ints]:
    """Return the tasks of a part that wait for rows, and those that wait for gradients."""
    parts, program = played.divided, played.parts[number].timeline.program
    rows = {taken_from(parts.names[b.source]) for b in parts.boundaries if b.target == number}
    gradients = {
        f"{handed_to(parts.names[b.target])}.input-gradient"
        for b in parts.boundaries
        if b.source == number
    }

    def named(names: set[str]) -> Ints:
        labels = [i for i, name in enumerate(program.label_names) if name in names]
        return np.flatnonzero(np.isin(program.label, labels))

    return named(rows), named(gradients)


def _pool_memory(played: PlayedParts, number: int) -> tuple[dict[str, int], bool]:
    """Return what the fullest device of a part holds, of all parts on it, and whether all fit."""
    part = played.parts[number]
    here = [p for p in played.parts if not set(p.ranks).isdisjoint(part.ranks)]
    transit = _in_transit(played)
    stands = [dict(zip(p.ranks, _simulated(p), strict=True)) for p in here]
    devices: dict[tuple[int, ...], int] = {}
    for rank in part.ranks:
        key = tuple(of[rank] for of in stands)
        devices[key] = max(devices.get(key, 0), transit.get(rank, 0))
    most: tuple[int, dict[str, int]] | None = None
    fits = True
    for ranks, waiting in sorted(devices.items()):
        held = _together([p.timeline for p in here], ranks)
        twice = math.fsum(p.step.run.stack.memory.runtime for p in here)
        twice -= max(p.step.run.stack.memory.runtime for p in here)
        held["workspace"] -= round(twice)
        total = sum(held.values()) + waiting
        device = part.step.lowered.device_of_rank(ranks[here.index(part)], part.cluster.device)
        capacity = int(device.capacity_bytes)
        fits &= total <= capacity
        found = {**held, IN_TRANSIT: waiting, "total": total, "capacity": capacity}
        if most is None or total - capacity > most[0]:
            most = total - capacity, found
    assert most is not None
    return most[1], fits


def _simulated(part: PlayedPart) -> list[int]:
    """Return the simulated rank that stands for each of a part's own ranks."""
    stands = [0] * len(part.ranks)
    for simulated, members in enumerate(part.step.lowered.classes):
        for rank in members:
            stands[rank] = simulated
    return stands


def _together(timelines: list[Timeline], ranks: tuple[int, ...]) -> dict[str, int]:
    """Return bytes by kind at the fullest moment of a device that several parts are on."""
    profiles = [t.memory_profile(r) for t, r in zip(timelines, ranks, strict=True)]
    moments = np.unique(np.concatenate([times for times, _ in profiles]))
    total = np.zeros((len(moments), len(MEMORY_PARTS)), np.int64)
    for timeline, (times, held) in zip(timelines, profiles, strict=True):
        at = np.searchsorted(times, moments, side="right") - 1
        for column, kind in enumerate(timeline.program.memory_kinds):
            total[:, MEMORY_PARTS.index(kind)] += held[at, column]
    fullest = total[int(np.argmax(total.sum(axis=1)))]
    return dict(zip(MEMORY_PARTS, map(int, fullest), strict=True))


def _in_transit(played: PlayedParts) -> dict[int, int]:
    """Return the most bytes that each device holds for other parts at once."""
    timelines = [*(part.timeline for part in played.parts), played.sent]

    def moment(held: InTransit, *, gone: bool) -> float:
        found = []
        for part, task in held.until if gone else held.since:
            timeline = timelines[-1 if part is None else part]
            ends = part is None or not gone
            found.append(float((timeline.end_s if ends else timeline.start_s)[task]))
        return max(found)

    changes: dict[int, list[tuple[float, int]]] = {}
    for held in played.in_transit:
        of = changes.setdefault(held.rank, [])
        since_s, until_s = moment(held, gone=False), moment(held, gone=True)
        if until_s > since_s:
            of += [(since_s, held.size_bytes), (until_s, -held.size_bytes)]
    most = {}
    for key, of in changes.items():
        now = peak = 0
        for _, change in sorted(of):  # what leaves at a moment is gone before something comes
            now += change
            peak = max(peak, now)
        most[key] = peak
    return most
