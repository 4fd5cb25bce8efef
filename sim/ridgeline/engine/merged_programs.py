"""Merged programs: several jobs are played at once on the resources that they have in common.

Each job is a program of its own; resources of the same name that are *common* (links) are one in
the merged program, so that tasks of several jobs divide them max-min fairly. All else stays apart.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ridgeline.engine.program import Floats, Indices, Ints, Program, no_memory
from ridgeline.engine.timeline import Timeline
from ridgeline.errors import RidgelineError

GATE = "gate"
"""Kind of the tasks between steps, which take no resource."""


class Repeated(NamedTuple):
    """A program of several equal steps, one after the other.

    Attributes
    ----------
    program
        Tasks ``0 ... steps`` are gates: step k begins when gate k has ended, and has ended when
        gate k + 1 begins. Then follow the tasks of each step, in their order.
    steps
        How many there are.
    tasks_per_step
        Tasks of one step.
    """

    program: Program
    steps: int
    tasks_per_step: int

    def tasks_of(self, step: int) -> slice:
        """Return the numbers of the tasks of a step."""
        first = self.steps + 1 + step * self.tasks_per_step
        return slice(first, first + self.tasks_per_step)

    def step_times_s(self, timeline: Timeline) -> Floats:
        """Return [steps] how long each step took in a timeline of this program."""
        times: Floats = timeline.start_s[1 : self.steps + 1] - timeline.end_s[: self.steps]
        return times


def repeated(program: Program, steps: int, *, start_s: float, between_s: float = 0.0) -> Repeated:
    """Return a program that plays another so many times, each step when all of the last has ended.

    Parameters
    ----------
    start_s
        When the first step begins.
    between_s
        Idle time after each step.
    """
    p, n = program, program.n_tasks
    counts = np.diff(p.dep_ptr)
    roots = counts == 0
    sinks = np.ones(n, np.bool_)
    sinks[p.dep_index] = False
    last = np.flatnonzero(sinks)
    gates, first = steps + 1, np.arange(steps) * n + steps + 1
    n_costs, n_phases = len(p.phase_ptr) - 1, len(p.repeat)
    # gate k waits for the last tasks of step k - 1; what begins a step waits for its gate
    own_counts = np.where(roots, 1, counts)
    own_ptr = np.concatenate(([0], np.cumsum(own_counts)))
    of_root = np.zeros(own_ptr[-1], np.bool_)
    of_root[own_ptr[:-1][roots]] = True
    template = np.empty(own_ptr[-1], np.int64)
    template[~of_root] = p.dep_index
    deps = []
    for step in range(steps):
        own = template + first[step]
        own[of_root] = step
        deps.append(own)
    gate_deps = [last + start for start in first]
    dep_count = np.concatenate(([0], np.full(steps, len(last)), np.tile(own_counts, steps)))
    stream = len(p.stream_names)

    def column(of_gates: Ints | Indices, of_step: Ints | Indices) -> Indices:
        return np.concatenate((of_gates, np.tile(of_step, steps))).astype(np.int32)

    zeros = np.zeros(gates, np.int64)
    gate_kind = len(p.kind_names)
    gate_label = len(p.label_names)
    merged = replace(
        p,
        # three more rows: the start, the time between steps, and nothing
        phase_ptr=np.concatenate((p.phase_ptr, n_phases + np.arange(1, 4))),
        latency_s=np.concatenate((p.latency_s, [start_s, between_s, 0.0])),
        repeat=np.concatenate((p.repeat, np.ones(3, np.int64))),
        weight=np.concatenate((p.weight, np.ones(3))),
        work_ptr=np.concatenate((p.work_ptr, np.full(3, p.work_ptr[-1]))),
        event_ptr=np.concatenate((p.event_ptr, np.full(3, p.event_ptr[-1]))),
        kind=column(zeros + gate_kind, p.kind.astype(np.int32)).astype(np.uint8),
        stream=column(zeros + stream, p.stream),
        group=column(zeros - 1, p.group),
        cost=column(np.concatenate(([0], np.full(steps - 1, 1), [2])) + n_costs, p.cost),
        priority=column(zeros, p.priority),
        multiplicity=column(zeros + 1, p.multiplicity),
        label=column(zeros + gate_label, p.label),
        dep_ptr=np.concatenate(([0], np.cumsum(dep_count))),
        dep_index=np.concatenate((*gate_deps, *deps)).astype(np.int32),
        kind_names=(*p.kind_names, GATE),
        label_names=(*p.label_names, GATE),
        stream_names=(*p.stream_names, GATE),
        stream_rank=np.append(p.stream_rank, 0).astype(np.int32),
        **no_memory(gates + steps * n, len(p.rank_multiplicity)),
    )
    return Repeated(merged, steps, n)


class Merged(NamedTuple):
    """Several programs as one.

    Attributes
    ----------
    program
        All tasks, those of the first program first.
    first_task
        [J+1] where the tasks of each begin.
    parts
        The programs.
    """

    program: Program
    first_task: Ints
    parts: tuple[Program, ...]

    def part(self, timeline: Timeline, number: int) -> Timeline:
        """Return the timeline of one of the programs, from one of all."""
        own = slice(self.first_task[number], self.first_task[number + 1])
        return Timeline(self.parts[number], timeline.start_s[own], timeline.end_s[own])


def merged(parts: Sequence[Program], names: Sequence[str], common: Set[str]) -> Merged:
    """Return several programs as one.

    Parameters
    ----------
    names
        Of the programs: streams are called by them.
    common
        Names of resources that programs have in common. They are shared, also where one program
        alone had no need to divide them; so programs must simulate every rank. Without any, ranks
        may be folded.

    Raises
    ------
    RidgelineError
        If a program folds ranks, or a common resource differs between programs.
    """
    resources: dict[str | tuple[int, int], int] = {}
    capacity: list[float] = []
    shared: list[bool] = []
    resource_names: list[str] = []
    maps: list[Ints] = []
    for number, p in enumerate(parts):
        if common and (p.rank_multiplicity != 1).any():
            raise RidgelineError(f"{names[number]}: ranks are folded; simulate every rank")
        here = np.empty(len(p.capacity), np.int64)
        for own, name in enumerate(p.resource_names):
            key = name if name in common else (number, own)
            if key not in resources:
                resources[key] = len(capacity)
                capacity.append(float(p.capacity[own]))
                shared.append(name in common or bool(p.shared[own]))
                resource_names.append(name if name in common else f"{names[number]}: {name}")
            here[own] = resources[key]
            if capacity[here[own]] != p.capacity[own]:
                raise RidgelineError(f"{names[number]}: {name} has another capacity than before")
        maps.append(here)
    kinds = tuple(dict.fromkeys(name for p in parts for name in p.kind_names))
    offsets = _Offsets(parts)

    def joined(field: str, by: str = "") -> Ints:
        shift = offsets.of(by)
        return np.concatenate(
            [getattr(p, field) + start for p, start in zip(parts, shift, strict=True)]
        )

    def pointers(field: str) -> Ints:
        ends = [np.diff(getattr(p, field)) for p in parts]
        return np.concatenate((np.zeros(1, np.int64), np.cumsum(np.concatenate(ends))))

    group = [
        np.where(p.group >= 0, p.group + start, -1)
        for p, start in zip(parts, offsets.of("group_ptr"), strict=True)
    ]
    kind = [np.array([kinds.index(k) for k in p.kind_names], np.uint8)[p.kind] for p in parts]
    n_tasks = sum(p.n_tasks for p in parts)
    program = Program(
        resource_names=tuple(resource_names),
        capacity=np.array(capacity),
        shared=np.array(shared, np.bool_),
        phase_ptr=pointers("phase_ptr"),
        latency_s=np.concatenate([p.latency_s for p in parts]),
        repeat=joined("repeat"),
        weight=np.concatenate([p.weight for p in parts]),
        work_ptr=pointers("work_ptr"),
        work_resource=np.concatenate(
            [own[p.work_resource] for p, own in zip(parts, maps, strict=True)]
        ).astype(np.int32),
        work_amount=np.concatenate([p.work_amount for p in parts]),
        event_ptr=np.zeros(sum(len(p.phase_ptr) - 1 for p in parts) + 1, np.int64),
        event_account=np.zeros(0, np.int32),
        event_count=np.zeros(0),
        accounts=(),
        kind=np.concatenate(kind),
        stream=joined("stream", "stream_rank").astype(np.int32),
        group=np.concatenate(group).astype(np.int32),
        cost=joined("cost", "phase_ptr").astype(np.int32),
        priority=joined("priority").astype(np.int32),
        multiplicity=joined("multiplicity").astype(np.int32),
        label=joined("label", "label_names").astype(np.int32),
        dep_ptr=pointers("dep_ptr"),
        dep_index=joined("dep_index", "kind").astype(np.int32),
        kind_names=kinds,
        label_names=tuple(name for p in parts for name in p.label_names),
        group_ptr=pointers("group_ptr"),
        group_stream=joined("group_stream", "stream_rank").astype(np.int32),
        stream_names=tuple(
            f"{name}: {stream}"
            for name, p in zip(names, parts, strict=True)
            for stream in p.stream_names
        ),
        stream_rank=joined("stream_rank", "rank_multiplicity").astype(np.int32),
        rank_multiplicity=joined("rank_multiplicity").astype(np.int32),
        **no_memory(n_tasks, sum(len(p.rank_multiplicity) for p in parts)),
    )
    first = np.concatenate((np.zeros(1, np.int64), np.cumsum([p.n_tasks for p in parts])))
    return Merged(program, first, tuple(parts))


def with_dependencies(program: Program, tasks: Ints, on: Ints) -> Program:
    """Return a program in which each of some tasks waits for one more task.

    Parameters
    ----------
    tasks, on
        [D] Numbers of the tasks that wait, and of those that they wait for, which may come later.
    """
    own = np.repeat(np.arange(program.n_tasks), np.diff(program.dep_ptr))
    waits = np.concatenate((own, tasks))
    awaited = np.concatenate((program.dep_index, on))
    order = np.argsort(waits, kind="stable")
    counts = np.bincount(waits, minlength=program.n_tasks)
    return replace(
        program,
        dep_ptr=np.concatenate((np.zeros(1, np.int64), np.cumsum(counts))).astype(np.int64),
        dep_index=awaited[order].astype(np.int32),
    )


class _Offsets:
    """Where the rows of each program begin in the merged one."""

    def __init__(self, parts: Sequence[Program]) -> None:
        self.parts = parts

    def of(self, field: str) -> Ints:
        """Return [J] how many rows come before, of what a field has a row for."""
        pointers = field.endswith("_ptr")
        lengths = [len(getattr(p, field)) - pointers if field else 0 for p in self.parts]
        return np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))[:-1].astype(np.int64)


def divided_on(program: Program, links: Set[str], common: Set[str]) -> Program:
    """Return a program whose tasks are fair to each other in what they put on some links.

    Max-min fairness counts a task by the largest of its works on shared resources. A collective
    that moves eight times as much over the links of a node as over those of the fabric would so
    get an eighth of a fabric's link beside a single message. Here it counts by `links` (those of
    the fabric), wherever it uses them.

    Parameters
    ----------
    links
        Names of resources that are counted.
    common
        Names of resources that will be shared.
    """
    counted = np.array([name in links for name in program.resource_names], np.bool_)
    shared = program.shared | np.array([n in common for n in program.resource_names], np.bool_)
    phase = np.repeat(np.arange(len(program.repeat)), np.diff(program.work_ptr))
    largest = np.zeros((2, len(program.repeat)))
    for size, which in zip(largest, (shared, counted), strict=True):
        mine = which[program.work_resource]
        np.maximum.at(size, phase[mine], program.work_amount[mine])
    weight = np.divide(largest[0], largest[1], out=np.ones_like(largest[0]), where=largest[1] > 0)
    return replace(program, weight=weight)
