"""A Timeline: when every task of a Program started and ended, and what follows from that."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ridgeline.engine.memory import RankMemory, memory_profile, memory_use
from ridgeline.engine.program import Floats, Ints, Program
from ridgeline.errors import RidgelineError


class TaskRow(NamedTuple):
    """One task in words, for exports."""

    task: int
    label: str
    kind: str
    stream: str
    rank: int
    start_s: float
    end_s: float
    multiplicity: int


@dataclass(frozen=True)
class Timeline:
    """A played Program.

    Attributes
    ----------
    program
        What was played.
    start_s, end_s
        [T] Absolute times of every task; the first tasks start at 0.

    Raises
    ------
    RidgelineError
        If some task never ended (its end is NaN).
    """

    program: Program
    start_s: Floats
    end_s: Floats

    def __post_init__(self) -> None:
        stuck = np.flatnonzero(np.isnan(self.end_s))
        if len(stuck):
            raise RidgelineError(_why_stuck(self.program, stuck))

    def __repr__(self) -> str:
        p = self.program
        return f"Timeline({p.n_tasks} tasks on {len(p.stream_rank)} streams, {self.makespan_s:g} s)"

    @property
    def makespan_s(self) -> float:
        """When the last task ended; 0 for an empty program."""
        return float(self.end_s.max(initial=0.0))

    @property
    def durations_s(self) -> Floats:
        """[T] Seconds from start to end of each task."""
        return self.end_s - self.start_s

    def tasks_of(self, stream: int) -> Ints:
        """Return the numbers of the tasks that occupied a stream, alone or in a group, by start."""
        ptr, tasks = self.tasks_by_stream
        return tasks[ptr[stream] : ptr[stream + 1]]

    def busy(self, stream: int) -> Floats:
        """Return the (n, 2) starts and ends of the tasks that occupied a stream, by start."""
        tasks = self.tasks_of(stream)
        return np.stack((self.start_s[tasks], self.end_s[tasks]), axis=1)

    def rows(self, tasks: Iterable[int]) -> list[TaskRow]:
        """Return tasks in words; a gang is given with the stream that leads it."""
        p = self.program
        return [
            TaskRow(
                task=task,
                label=p.label_names[p.label[task]],
                kind=p.kind_names[p.kind[task]],
                stream=p.stream_names[p.stream[task]],
                rank=int(p.stream_rank[p.stream[task]]),
                start_s=float(self.start_s[task]),
                end_s=float(self.end_s[task]),
                multiplicity=int(p.multiplicity[task]),
            )
            for task in map(int, tasks)
        ]

    def ledger(self) -> dict[int, float]:
        """Return how many units each account counted: its events times the tasks' multiplicity."""
        p = self.program
        n_rows = len(p.event_ptr) - 1
        times = np.bincount(p.cost, weights=p.multiplicity, minlength=n_rows)
        units = p.event_count * np.repeat(times, np.diff(p.event_ptr))
        totals = np.bincount(p.event_account, weights=units, minlength=len(p.accounts))
        return dict(enumerate(totals.tolist()))

    def energy_j(self) -> dict[int, float]:
        """Return the joules of each account: its units times its price."""
        accounts = self.program.accounts
        return {number: units * accounts[number].price_j for number, units in self.ledger().items()}

    def memory(self) -> list[RankMemory]:
        """Return the peak memory of every rank and what it consisted of.

        Raises
        ------
        RidgelineError
            If a rank gives back more of a kind than it holds.
        """
        return self._memory

    @cached_property
    def _memory(self) -> list[RankMemory]:
        return memory_use(self.program, self.start_s, self.end_s)

    def memory_profile(self, rank: int) -> tuple[Floats, Ints]:
        """Return a rank's memory over time.

        Returns
        -------
        times
            [N] Moments at which something was taken or given back; the first is 0.
        held_bytes
            [N, Q] Bytes of each kind from that moment to the next.
        """
        return memory_profile(self.program, self.start_s, self.end_s, rank)

    def critical_path(self) -> Ints:
        """Return tasks that follow each other without a gap, from time 0 to the last end.

        Each one ended exactly when the next one started, and is either a predecessor of it or
        had occupied one of its streams; predecessors are preferred. Of several last tasks the
        one with the least number is taken.
        """
        from ridgeline.engine.critical_path import (
            critical_path,
        )  # compiled; most timelines do without

        return critical_path(self.program, self.start_s, self.end_s, self.tasks_by_stream)

    def slack_s(self) -> Floats:
        """Return how much later every task could end without delaying the last, [T] seconds."""
        from ridgeline.engine.critical_path import slack_s  # compiled; most timelines do without

        return slack_s(self.program, self.start_s, self.end_s, self.by_start, self.tasks_by_stream)

    @cached_property
    def by_start(self) -> Ints:
        """[T] Tasks by start; of one moment by end, then by number."""
        from ridgeline.engine.task_order import by_start  # compiled; most timelines do without

        return by_start(self.start_s, self.end_s)

    @cached_property
    def tasks_by_stream(self) -> tuple[Ints, Ints]:
        """The tasks that occupied each stream, alone or in a group, by start, as CSR."""
        from ridgeline.engine.task_order import on_streams

        return on_streams(self.program, self.by_start)


def _why_stuck(program: Program, stuck: npt.NDArray[np.intp]) -> str:
    """Name the first tasks that never ended and a circle of dependencies among them."""
    waiting = set(stuck.tolist())

    def name(task: int) -> str:
        return f"{program.label_names[program.label[task]]!r} (task {task})"

    def awaited(task: int) -> int:
        deps = program.dep_index[program.dep_ptr[task] : program.dep_ptr[task + 1]]
        return next(int(dep) for dep in deps if dep in waiting)

    walk = [int(stuck[0])]
    while walk[-1] not in walk[:-1]:
        walk.append(awaited(walk[-1]))
    circle = walk[walk.index(walk[-1]) :]
    first = ", ".join(name(task) for task in stuck[:5].tolist())
    more = f" and {len(stuck) - 5} more" if len(stuck) > 5 else ""
    return (
        f"{len(stuck)} of {program.n_tasks} tasks can never run: {first}{more}; "
        f"they wait in a circle: {' waits for '.join(name(task) for task in circle[:10])}"
    )
