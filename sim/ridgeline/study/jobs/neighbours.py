"""Neighbours: jobs that share a fabric, each with what its step takes alone and beside the others.

The step of every job is lowered as `simulate` does it, rank by rank, on the devices that it has;
all steps of all jobs are then one program (`engine.merging`), in which the links of the fabric are
divided max-min fairly between whatever is on them. Alone means: the same job on the same devices,
and nothing else on the fabric.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.engine.executor import run
from ridgeline.engine.merging import Repeated, divided_on, merged, repeated
from ridgeline.engine.program import Flags, Floats, Program
from ridgeline.engine.timeline import Timeline
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.hardware.cluster import Cluster
from ridgeline.hardware.device import Device
from ridgeline.network.faults import read_faults
from ridgeline.network.placement import Free, check_placement, seen_by
from ridgeline.network.topology import Topology
from ridgeline.network.where import load_cluster
from ridgeline.parallel.lower import COLLECTIVE
from ridgeline.parallel.sending.contention import with_contention
from ridgeline.simulation import PlayedStep, play_step, shared_topology
from ridgeline.study.jobs.background_traffic import MESSAGE, Flow, flows_of, traffic_program
from ridgeline.study.jobs.job_file import (
    JobFile,
    OneJob,
    cluster_fields,
    jobs_of,
    read_jobs,
)
from ridgeline.study.jobs.shared_links import SharedLink, bytes_on_links, shared_links
from ridgeline.version import __version__

MOST_TASKS = 20_000_000
"""Tasks of all steps of all jobs: some minutes, and some gigabytes."""
_PERCENTILES = (50, 95, 99)
_LONGER = 4.0  # how much longer background traffic is drawn for than the jobs took alone


@dataclass(frozen=True)
class Completion:
    """Flow-completion times: from the start of a message or a collective to its end.

    Attributes
    ----------
    flows
        How many there are.
    p50_s, p95_s, p99_s
        Percentiles; None of no flows.
    """

    flows: int
    p50_s: float | None
    p95_s: float | None
    p99_s: float | None

    @classmethod
    def of(cls, times_s: Floats) -> Completion:
        """Return the percentiles of some times."""
        if not len(times_s):
            return cls(0, None, None, None)
        return cls(len(times_s), *(float(x) for x in np.percentile(times_s, _PERCENTILES)))


@dataclass(frozen=True)
class JobResult:
    """A job beside its neighbours.

    Attributes
    ----------
    devices
        Its devices, as ranks of the fabric, in the order of its own ranks.
    arrival_s, end_s
        When it begins and ends.
    step_times_s
        Of each of its steps.
    alone_s
        What a step takes alone on the same devices.
    completion, completion_alone
        Of its collectives and messages.
    sent_bytes
        What one step puts on the links.
    """

    name: str
    model: str
    plan: str
    software: str
    placement: str
    devices: tuple[int, ...]
    arrival_s: float
    end_s: float
    step_times_s: tuple[float, ...]
    alone_s: float
    completion: Completion
    completion_alone: Completion
    sent_bytes: float

    @property
    def step_time_s(self) -> float:
        """Mean time of a step."""
        return math.fsum(self.step_times_s) / len(self.step_times_s)

    @property
    def slowdown(self) -> float:
        """Mean time of a step over that alone."""
        return self.step_time_s / self.alone_s

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return {
            **asdict(self),
            "step_time_s": self.step_time_s,
            "slowdown": self.slowdown,
        }


@dataclass(frozen=True)
class TrafficResult:
    """Background traffic while the jobs ran.

    Attributes
    ----------
    flows
        Pairs of devices.
    rate_bytes_per_s
        What they offered together.
    completion
        Of messages that ended before the last job; none of steady streams.
    """

    name: str
    flows: int
    rate_bytes_per_s: float
    completion: Completion


@dataclass(frozen=True)
class Neighbours:
    """Jobs that share a fabric, and what they do to each other.

    Attributes
    ----------
    level
        How the network was simulated.
    end_s
        When the last job ended.
    manifest
        What repeats it: the file as it was read, the placement that was asked for, the version.
    links
        Those that several jobs were at work on together, the most wanted first.
    """

    name: str
    cluster: str
    level: str
    jobs: tuple[JobResult, ...]
    background: tuple[TrafficResult, ...]
    links: tuple[SharedLink, ...]
    end_s: float
    manifest: dict[str, Any]

    @property
    def fairness(self) -> float:
        """Jain's index of the progress of the jobs, each over its progress alone.

        (Sum x)^2 / (n sum x^2) with x = step time alone / step time: 1 if all are slowed alike, 1/n
        if one alone goes on (R. Jain, D. Chiu, W. Hawe, DEC-TR-301, 1984).
        """
        progress = [1.0 / job.slowdown for job in self.jobs]
        return sum(progress) ** 2 / (len(progress) * sum(x * x for x in progress))

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return {
            "name": self.name,
            "cluster": self.cluster,
            "level": self.level,
            "end_s": self.end_s,
            "fairness": self.fairness,
            "jobs": [job.to_dict() for job in self.jobs],
            "background": [asdict(one) for one in self.background],
            "links": [{**asdict(link), "wanted_s": link.wanted_s} for link in self.links],
            "manifest": self.manifest,
        }


def simulate_jobs(file: JobFile | str | Path, *, placement: str | None = None) -> Neighbours:
    """Simulate the jobs of a file on one fabric, each also alone.

    Parameters
    ----------
    placement
        packed, striped or random, in the place of the file's, for jobs that name no devices.

    Raises
    ------
    RidgelineError
        If the jobs need more devices than there are, or one of them cannot run.
    """
    file = file if isinstance(file, JobFile) else read_jobs(file)
    if placement is not None:
        check_placement(placement)
    cluster = load_cluster(file.cluster, cluster_fields(file))
    _check(cluster)
    jobs = jobs_of(file, placement)
    plans = [job.point.load("plan") for job in jobs]
    topology = _fabric(file, cluster, jobs, sum(plan.devices for plan in plans))
    places = _placed(topology, jobs, [plan.devices for plan in plans], file.seed)
    sound = cluster.model_copy(update={"faults": ()})
    steps = [
        _lowered(job, sound, seen_by(topology, ranks))
        for job, ranks in zip(jobs, places, strict=True)
    ]
    tasks = sum(s.lowered.program.n_tasks * j.steps for s, j in zip(steps, jobs, strict=True))
    if tasks > MOST_TASKS:
        raise RidgelineError(
            f"{file.name}: {tasks:,} tasks of all steps; at most {MOST_TASKS:,} are played: fewer "
            "steps, or larger micro-batches"
        )
    fabric = _Fabric(topology)
    programs = [_program(s, j, fabric) for s, j in zip(steps, jobs, strict=True)]
    alone = [
        fabric.play([_program(s, replace(j, steps=1, arrival_s=0.0), fabric).program], [j.name])
        for s, j in zip(steps, jobs, strict=True)
    ]
    traffic = [(of, flows_of(of, topology)) for of in file.background]
    names = [*(job.name for job in jobs), *(of.name for of in file.background)]
    expected_s = max(
        job.arrival_s + job.steps * float(one.timeline.end_s.max())
        for job, one in zip(jobs, alone, strict=True)
    )
    until_s = _LONGER * expected_s
    while True:
        others = [traffic_program(of, flows, topology, until_s) for of, flows in traffic]
        played = fabric.play([*(p.program for p in programs), *others], names)
        end_s = max(float(played.part(i).end_s.max()) for i in range(len(jobs)))
        if not traffic or end_s <= until_s:
            break
        until_s *= 2
    results = tuple(
        _job_result(job, ranks, step, program, one, played.part(i), fabric, cluster.device)
        for i, (job, ranks, step, program, one) in enumerate(
            zip(jobs, places, steps, programs, alone, strict=True)
        )
    )
    return Neighbours(
        name=file.name,
        cluster=topology.name,
        level="flows: links divided max-min fairly between the collectives and messages on them",
        jobs=results,
        background=tuple(
            _traffic_result(of.name, flows, played.part(len(jobs) + i), end_s)
            for i, (of, flows) in enumerate(traffic)
        ),
        links=tuple(
            shared_links(
                played.merged, played.timeline, names, fabric.are_links(played.merged.program),
                end_s,
            )
        ),
        end_s=end_s,
        manifest={
            "ridgeline": __version__,
            "placement": placement or file.placement,
            "jobs": file.model_dump(mode="json", by_alias=True, exclude_defaults=True),
        },
    )  # fmt: skip


def _check(cluster: Cluster) -> None:
    if cluster.is_mixed:
        raise ConfigError(
            f"{cluster.name} has devices of several kinds; jobs are simulated on those of one kind",
            field="cluster",
        )
    faults = read_faults(cluster.faults)
    if faults.slow or faults.jitter:
        raise ConfigError(
            "slow ranks and jitter are of one job (ridgeline run --fault); jobs share links, which "
            "may be down or slow",
            field="cluster.faults",
        )


def _fabric(file: JobFile, cluster: Cluster, jobs: Sequence[OneJob], needed: int) -> Topology:
    """Draw the fabric: of so many devices as are said, or as the jobs need."""
    named = [name for job in jobs if isinstance(job.placement, tuple) for name in job.placement]
    ranks = [int(name) for name in named if isinstance(name, int) or name.isdecimal()]
    if file.devices is None and len(ranks) < len(named):
        raise ConfigError(
            "devices named by vertex or node need the size of the fabric: add `devices`",
            field="devices",
        )
    for of in file.background:
        ranks += [*of.devices, *(end for flow in of.flows for end in (flow.source, flow.target))]
    least = max([needed, *(rank + 1 for rank in ranks)])
    size = least if file.devices is None else file.devices
    if size < needed:
        raise ConfigError(f"the jobs need {needed} devices, found {size}", field="devices")
    return shared_topology(cluster, size)


def _placed(
    topology: Topology, jobs: Sequence[OneJob], sizes: Sequence[int], seed: int
) -> list[tuple[int, ...]]:
    """Place jobs: first those with devices of their own, then the others in their order."""
    free = Free(topology)
    found: dict[int, tuple[int, ...]] = {}
    order = sorted(range(len(jobs)), key=lambda i: isinstance(jobs[i].placement, str))
    for i in order:
        asked = jobs[i].placement
        try:
            if isinstance(asked, tuple):
                found[i] = free.take_named(asked)
            else:
                found[i] = free.take(asked, sizes[i], seed + i)
        except ConfigError as error:
            raise ConfigError(error.message, field=f"jobs.{jobs[i].name}.placement") from error
        if len(found[i]) != sizes[i]:
            raise ConfigError(
                f"the plan has {sizes[i]} devices, and {len(found[i])} are named",
                field=f"jobs.{jobs[i].name}.placement",
            )
    return [found[i] for i in range(len(jobs))]


def _lowered(job: OneJob, cluster: Cluster, topology: Topology) -> PlayedStep:
    """Lower the step of a job, every rank, on the devices that it has."""
    point = job.point
    model, plan = point.load("model"), point.load("plan")
    try:
        stack = point.choice(model, cluster, plan).stack
        step = play_step(model, cluster, plan, stack, topology=topology, fold=False)
    except RidgelineError as error:
        raise RidgelineError(f"job {job.name}: {error}") from error
    if step.run.stack.gradients.update_interval != 1:
        raise RidgelineError(
            f"job {job.name}: {stack.name} does not update in every step "
            "(gradients.update_interval), which jobs do not model"
        )
    return step


class _Played:
    """Programs that were played together."""

    def __init__(self, parts: Sequence[Program], names: Sequence[str], common: set[str]) -> None:
        self.merged = merged(parts, names, common)
        self.timeline = run(self.merged.program)

    def part(self, number: int) -> Timeline:
        """Return the timeline of one of them."""
        return self.merged.part(self.timeline, number)


class _Fabric:
    """The links that jobs have in common."""

    def __init__(self, topology: Topology) -> None:
        names = [topology.link_name(link) for link in range(topology.n_links)]
        node = topology.node_of
        out = (node[topology.source] != node[topology.target]) | (node[topology.source] < 0)
        self.links = set(names)
        self.between_nodes = {
            name for name, is_out in zip(names, out.tolist(), strict=True) if is_out
        }

    def play(self, parts: Sequence[Program], names: Sequence[str]) -> _Played:
        return _Played(parts, names, self.links)

    def are_links(self, program: Program) -> Flags:
        """Return [R] whether each resource of a program is a link."""
        return np.array([name in self.links for name in program.resource_names], np.bool_)


def _program(step: PlayedStep, job: OneJob, fabric: _Fabric) -> Repeated:
    program = divided_on(step.lowered.program, fabric.between_nodes, fabric.links)
    wait_s = step.run.stack.host.step_wait
    return repeated(program, job.steps, start_s=job.arrival_s, between_s=wait_s)


def _job_result(
    job: OneJob,
    ranks: tuple[int, ...],
    step: PlayedStep,
    program: Repeated,
    alone: _Played,
    timeline: Timeline,
    fabric: _Fabric,
    device: Device,
) -> JobResult:
    links = fabric.are_links(program.program)
    wait_s = step.run.stack.host.step_wait
    once = alone.part(0)
    first = _final(once, step, device)
    last = _final(timeline, step, device)
    end_s = float(last.start_s[program.steps])
    return JobResult(
        name=job.name,
        model=job.point.model,
        plan=str(step.run),
        software=step.run.stack.name,
        placement=job.placement if isinstance(job.placement, str) else "by name",
        devices=ranks,
        arrival_s=job.arrival_s,
        end_s=end_s,
        step_times_s=tuple((program.step_times_s(last) + wait_s).tolist()),
        alone_s=float(first.start_s[1] - first.end_s[0]) + wait_s,
        completion=Completion.of(_completions_s(timeline, links)),
        completion_alone=Completion.of(np.tile(_completions_s(once, links), job.steps)),
        sent_bytes=float(
            bytes_on_links(once.program, links, np.ones(once.program.n_tasks, np.bool_)).sum()
        ),
    )


def _final(timeline: Timeline, step: PlayedStep, device: Device) -> Timeline:
    """Return a timeline with what tasks of a rank take from each other's memory and processors."""
    lowered = step.lowered
    if not lowered.talks:
        return timeline
    channels = step.run.stack.overlap.contention
    return with_contention(timeline, lowered, device, channels=channels)


def _completions_s(timeline: Timeline, links: Flags) -> Floats:
    """Return how long each collective and message took, of those that use links."""
    program = timeline.program
    phase = np.repeat(np.arange(len(program.repeat)), np.diff(program.work_ptr))
    row = np.repeat(np.arange(len(program.phase_ptr) - 1), np.diff(program.phase_ptr))
    uses = np.zeros(len(program.phase_ptr) - 1, np.bool_)
    uses[row[phase[links[program.work_resource]]]] = True
    kinds = np.array([name == COLLECTIVE for name in program.kind_names])
    times: Floats = timeline.durations_s[kinds[program.kind] & uses[program.cost]]
    return times


def _traffic_result(
    name: str, flows: Sequence[Flow], timeline: Timeline, end_s: float
) -> TrafficResult:
    program = timeline.program
    messages = np.array([kind == MESSAGE for kind in program.kind_names])[program.kind]
    steady = int(messages.sum()) == len(flows) == program.n_tasks
    ended = messages & (timeline.end_s <= end_s) & (not steady)
    return TrafficResult(
        name,
        len(flows),
        math.fsum(flow.rate_bytes_per_s for flow in flows),
        Completion.of(timeline.durations_s[ended]),
    )
