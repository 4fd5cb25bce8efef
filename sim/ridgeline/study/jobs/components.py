"""Components: jobs that share no link with others are played apart from them, here or elsewhere.

What is done for a job, or for a component, depends on nothing but the file and the placement, so
that any process does it alike. A process keeps what it has lowered last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ridgeline.engine.executor import run
from ridgeline.engine.merged_programs import Repeated, divided_on, merged, repeated
from ridgeline.engine.program import Flags, Floats, Program
from ridgeline.engine.timeline import Timeline
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.hardware.cluster import Cluster
from ridgeline.hardware.device import Device
from ridgeline.network.faults import read_faults
from ridgeline.network.placement import Free, seen_by
from ridgeline.network.resolve import load_cluster
from ridgeline.network.topology import Topology
from ridgeline.parallel.comm.contention import with_contention
from ridgeline.parallel.lower import COLLECTIVE
from ridgeline.simulation import SimulatedStep, play_step, shared_topology
from ridgeline.study.jobs.background_traffic import MESSAGE, Flow, flows_of, traffic_program
from ridgeline.study.jobs.job_file import JobFile, OneJob, cluster_fields, jobs_of
from ridgeline.study.jobs.results import Completion, JobResult, TrafficResult
from ridgeline.study.jobs.shared_links import SharedLink, bytes_on_links, shared_links

MOST_TASKS = 20_000_000
"""Tasks of all steps of the jobs of a component: some minutes, and some gigabytes."""
_LONGER = 4.0  # how much longer background traffic is drawn for than the jobs took alone


class JobRequest(NamedTuple):
    """A file of jobs, as text that travels to other processes, and a placement in its place."""

    text: str
    placement: str | None

    @classmethod
    def of(cls, file: JobFile, placement: str | None) -> JobRequest:
        """Return what is asked by a file."""
        return cls(file.model_dump_json(by_alias=True, exclude_defaults=True), placement)


class OfJob(NamedTuple):
    """A job of what is asked, by its number in the file."""

    asked: JobRequest
    number: int


class OfComponent(NamedTuple):
    """Jobs of what is asked that share links, and whether the background does."""

    asked: JobRequest
    numbers: tuple[int, ...]
    background: bool


class Passed(NamedTuple):
    """What a job is to others: the links that it uses, and the tasks of all its steps."""

    links: frozenset[str]
    tasks: int


class Part(NamedTuple):
    """What is found of a component: its jobs in their order, and when the last of them ends."""

    jobs: tuple[JobResult, ...]
    background: tuple[TrafficResult, ...]
    links: tuple[SharedLink, ...]
    end_s: float


@dataclass(frozen=True, eq=False)
class _Setting:
    """What all jobs of a file have in common, and where each of them is."""

    file: JobFile
    sound: Cluster
    jobs: list[OneJob]
    topology: Topology
    places: list[tuple[int, ...]]
    fabric: _Fabric


@lru_cache(maxsize=2)
def _setting(asked: JobRequest) -> _Setting:
    """Draw the fabric and place the jobs."""
    file = JobFile.model_validate_json(asked.text)
    cluster = load_cluster(file.cluster, cluster_fields(file))
    _check(cluster)
    jobs = jobs_of(file, asked.placement)
    plans = [job.point.load("plan") for job in jobs]
    topology = _fabric(file, cluster, jobs, sum(plan.devices for plan in plans))
    places = _placed(topology, jobs, [plan.devices for plan in plans], file.seed)
    sound = cluster.model_copy(update={"faults": ()})
    return _Setting(file, sound, jobs, topology, places, _Fabric(topology))


def fabric_name(asked: JobRequest) -> str:
    """Return the name of the fabric that the jobs share."""
    return _setting(asked).topology.name


def names_of(asked: JobRequest) -> list[str]:
    """Return the names of all jobs."""
    return [job.name for job in _setting(asked).jobs]


@lru_cache(maxsize=64)
def _step(of: OfJob) -> SimulatedStep:
    """Lower the step of a job."""
    setting, number = _setting(of.asked), of.number
    seen = seen_by(setting.topology, setting.places[number])
    return _lowered(setting.jobs[number], _cluster_of(setting, number), seen)


def _cluster_of(setting: _Setting, number: int) -> Cluster:
    """Return the cluster as a job sees it: its ranks are on the devices that it has."""
    return setting.sound.seen_from(setting.places[number])


def passed(of: OfJob) -> Passed:
    """Return which links a job uses, and how many tasks it has."""
    setting, program = _setting(of.asked), _step(of).lowered.program
    used = {program.resource_names[r] for r in np.unique(program.work_resource).tolist()}
    tasks = program.n_tasks * setting.jobs[of.number].steps
    return Passed(frozenset(used & setting.fabric.links), tasks)


def play_component(of: OfComponent) -> Part:
    """Play jobs together, and each alone."""
    setting = _setting(of.asked)
    file, fabric, topology = setting.file, setting.fabric, setting.topology
    jobs = [setting.jobs[i] for i in of.numbers]
    steps = [_step(OfJob(of.asked, i)) for i in of.numbers]
    programs = [_program(s, j, fabric) for s, j in zip(steps, jobs, strict=True)]
    alone = [
        fabric.play([_program(s, replace(j, steps=1, arrival_s=0.0), fabric).program], [j.name])
        for s, j in zip(steps, jobs, strict=True)
    ]
    others = file.background if of.background else []
    traffic = [(one, flows_of(one, topology)) for one in others]
    names = [*(job.name for job in jobs), *(one.name for one in others)]
    expected_s = max(
        job.arrival_s + job.steps * float(one.timeline.end_s.max())
        for job, one in zip(jobs, alone, strict=True)
    )
    until_s = _LONGER * expected_s
    while True:
        more = [traffic_program(one, flows, topology, until_s) for one, flows in traffic]
        played = fabric.play([*(p.program for p in programs), *more], names)
        end_s = max(float(played.part(i).end_s.max()) for i in range(len(jobs)))
        if not traffic or end_s <= until_s:
            break
        until_s *= 2
    results = tuple(
        _job_result(
            job,
            setting.places[number],
            step,
            program,
            one,
            played.part(i),
            fabric,
            _cluster_of(setting, number).device,
        )
        for i, (job, number, step, program, one) in enumerate(
            zip(jobs, of.numbers, steps, programs, alone, strict=True)
        )
    )
    return Part(
        results,
        tuple(
            _traffic_result(one.name, flows, played.part(len(jobs) + i), end_s)
            for i, (one, flows) in enumerate(traffic)
        ),
        tuple(
            shared_links(
                played.merged, played.timeline, names, fabric.are_links(played.merged.program),
                end_s,
            )
        ),
        end_s,
    )  # fmt: skip


def _check(cluster: Cluster) -> None:
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


def _lowered(job: OneJob, cluster: Cluster, topology: Topology) -> SimulatedStep:
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


def _program(step: SimulatedStep, job: OneJob, fabric: _Fabric) -> Repeated:
    program = divided_on(step.lowered.program, fabric.between_nodes, fabric.links)
    wait_s = step.run.stack.host.step_wait
    return repeated(program, job.steps, start_s=job.arrival_s, between_s=wait_s)


def _job_result(
    job: OneJob,
    ranks: tuple[int, ...],
    step: SimulatedStep,
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


def _final(timeline: Timeline, step: SimulatedStep, device: Device) -> Timeline:
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
