"""Tasks beside what takes shares of their rank, against integrals taken interval by interval."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.programs import programs
from ridgeline.engine.contention import _Beside, contended
from ridgeline.engine.executor import run
from ridgeline.engine.program import Floats, Ints, Program
from ridgeline.engine.timeline import Timeline


def shares(program: Program, seed: int) -> tuple[Floats, Ints]:
    """Shares that collectives take of two things, and which of them bounds the other tasks."""
    rng = np.random.default_rng(seed)
    collective = np.array([name == "collective" for name in program.kind_names], np.bool_)
    takes = collective[program.kind] if program.n_tasks else np.zeros(0, np.bool_)
    taken = rng.uniform(0.0, 0.6, (program.n_tasks, 2)) * takes[:, np.newaxis]
    bound = np.where(takes, -1, rng.integers(0, 2, program.n_tasks))
    return taken, bound


def ranks_of(timeline: Timeline, task: int) -> set[int]:
    p = timeline.program
    group = p.group[task]
    ends = (p.group_ptr[group], p.group_ptr[group + 1])
    streams = [p.stream[task]] if group < 0 else p.group_stream[slice(*ends)]
    return {int(p.stream_rank[stream]) for stream in streams}


def lost(timeline: Timeline, task: int, taken: Floats, thing: int) -> dict[int, float]:
    """By rank, the sum over the intervals of a task of the share that is taken there."""
    p, (start, end) = timeline.program, (timeline.start_s, timeline.end_s)
    cuts = np.unique(np.clip(np.concatenate((start, end)), start[task], end[task]))
    found = dict.fromkeys(ranks_of(timeline, task), 0.0)
    for rank in found:
        for since, until in pairwise(cuts):
            there = [
                taken[other, thing]
                for other in range(p.n_tasks)
                if start[other] <= since
                and until <= end[other]
                and rank in ranks_of(timeline, other)
            ]
            found[rank] += min(1.0, sum(there)) * (until - since)
    return found


@settings(max_examples=25, deadline=None)
@given(programs(max_tasks=8), st.integers(0, 2**32))
def test_a_task_ends_later_by_what_was_taken_while_it_ran(program: Program, seed: int) -> None:
    timeline = run(program)
    taken, bound = shares(program, seed)
    delays = np.zeros(program.n_tasks)
    for rank in _Beside.of_ranks(timeline, taken.max(axis=1, initial=0.0) > 0):
        rank.delay(timeline.start_s, timeline.end_s, taken, bound, delays)
    for task in range(program.n_tasks):
        if bound[task] < 0:
            assert delays[task] == 0.0
            continue
        expected = lost(timeline, task, taken, int(bound[task]))
        assert any(delays[task] == pytest.approx(s, rel=1e-6, abs=1e-9) for s in expected.values())


@settings(max_examples=40, deadline=None)
@given(programs(), st.integers(0, 2**32))
def test_nothing_is_faster_and_everything_waits_as_before(program: Program, seed: int) -> None:
    timeline = run(program)
    taken, bound = shares(program, seed)
    slowed = contended(timeline, taken, bound)
    rounding = 1e-9 * (1 + slowed.makespan_s)
    assert (slowed.durations_s >= timeline.durations_s - rounding).all()
    assert (slowed.end_s >= timeline.end_s - rounding).all()
    for task in range(program.n_tasks):
        deps = program.dep_index[program.dep_ptr[task] : program.dep_ptr[task + 1]]
        assert (slowed.end_s[deps] <= slowed.start_s[task] + rounding).all()
    takers = taken.max(axis=1, initial=0.0)
    most = float(np.sum(takers * timeline.durations_s))
    assert slowed.makespan_s <= timeline.makespan_s + most * program.n_tasks + rounding
    assert slowed.makespan_s >= timeline.makespan_s - rounding
    path = slowed.critical_path()
    assert len(path) or not program.n_tasks
    assert slowed.durations_s[path].sum() == pytest.approx(slowed.makespan_s)


@settings(max_examples=20, deadline=None)
@given(programs())
def test_where_nothing_is_taken_the_timeline_stays(program: Program) -> None:
    timeline = run(program)
    nothing = np.zeros((program.n_tasks, 2))
    assert contended(timeline, nothing, np.zeros(program.n_tasks, np.int64)) is timeline
