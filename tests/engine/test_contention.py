"""Tasks that share their rank's processors and memory, against sums taken interval by interval."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.programs import programs
from ridgeline.engine.contention import Demand, contended
from ridgeline.engine.executor import run
from ridgeline.engine.program import Program
from ridgeline.engine.timeline import Timeline


def demand(program: Program, seed: int) -> Demand:
    """Draw shares of processors that collectives keep, and of memory that all tasks need."""
    rng = np.random.default_rng(seed)
    collective = np.array([name == "collective" for name in program.kind_names], np.bool_)
    takes = collective[program.kind] if program.n_tasks else np.zeros(0, np.bool_)
    taken = rng.uniform(0.0, 0.6, program.n_tasks) * takes
    used = rng.choice((0.0, 0.2, 0.5, 0.9, 1.0), program.n_tasks)
    return Demand(taken, ~takes & (rng.random(program.n_tasks) < 0.5), used)


def ranks_of(timeline: Timeline, task: int) -> set[int]:
    p = timeline.program
    group = p.group[task]
    ends = (p.group_ptr[group], p.group_ptr[group + 1])
    streams = [p.stream[task]] if group < 0 else p.group_stream[slice(*ends)]
    return {int(p.stream_rank[stream]) for stream in streams}


def level(needs: list[float]) -> float:
    """Return by bisection what each may have at most so that all together have 1."""
    if sum(needs) <= 1 + 1e-9:
        return np.inf
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(min(n, middle) for n in needs) < 1 else (low, middle)
    return low


def lost(timeline: Timeline, of: Demand, task: int) -> float:
    """Return what a task does without, on the rank where that is most."""
    p, (start, end) = timeline.program, (timeline.start_s, timeline.end_s)
    cuts = np.unique(np.clip(np.concatenate((start, end)), start[task], end[task]))
    found = dict.fromkeys(ranks_of(timeline, task), 0.0)
    for rank in found:
        for since, until in pairwise(cuts):
            there = [
                other
                for other in range(p.n_tasks)
                if start[other] <= since
                and until <= end[other]
                and rank in ranks_of(timeline, other)
            ]
            if len(there) < 2:
                continue
            keeps = min(sum(of.taken[other] for other in there), 0.9)
            fair = level([float(of.used[other]) for other in there])
            rate = 1.0 - keeps if of.bound[task] else 1.0
            if of.used[task] > fair:
                rate = min(rate, fair / of.used[task])
            found[rank] += (1.0 - rate) * (until - since)
    return max(found.values())


@settings(max_examples=25, deadline=None)
@given(programs(max_tasks=8), st.integers(0, 2**32))
def test_a_task_ends_later_by_what_it_did_without(program: Program, seed: int) -> None:
    timeline = run(program)
    of = demand(program, seed)
    slowed = contended(timeline, of)
    delays = slowed.durations_s - timeline.durations_s
    rounding = 1e-9 * (1 + slowed.makespan_s)
    unsettled = 2e-3 * delays.sum() + rounding
    for task in range(program.n_tasks):
        assert delays[task] == pytest.approx(lost(slowed, of, task), rel=1e-6, abs=unsettled)


@settings(max_examples=40, deadline=None)
@given(programs(), st.integers(0, 2**32))
def test_nothing_is_faster_and_everything_waits_as_before(program: Program, seed: int) -> None:
    timeline = run(program)
    slowed = contended(timeline, demand(program, seed))
    rounding = 1e-9 * (1 + slowed.makespan_s)
    assert (slowed.durations_s >= timeline.durations_s - rounding).all()
    assert (slowed.end_s >= timeline.end_s - rounding).all()
    for task in range(program.n_tasks):
        deps = program.dep_index[program.dep_ptr[task] : program.dep_ptr[task + 1]]
        assert (slowed.end_s[deps] <= slowed.start_s[task] + rounding).all()
    assert slowed.makespan_s >= timeline.makespan_s - rounding
    path = slowed.critical_path()
    assert len(path) or not program.n_tasks
    assert slowed.durations_s[path].sum() == pytest.approx(slowed.makespan_s)


@settings(max_examples=30, deadline=None)
@given(programs(), st.integers(0, 2**32))
def test_no_rank_uses_more_than_its_memory(program: Program, seed: int) -> None:
    timeline = run(program)
    of = demand(program, seed)
    slowed = contended(timeline, of)
    needed = np.zeros(len(program.rank_multiplicity))
    for task in range(program.n_tasks):
        for rank in ranks_of(timeline, task):
            needed[rank] += of.used[task] * timeline.durations_s[task]
    assert (needed <= slowed.makespan_s * (1 + 1e-2) + 1e-9).all()


@settings(max_examples=20, deadline=None)
@given(programs())
def test_where_nothing_is_asked_for_the_timeline_stays(program: Program) -> None:
    timeline = run(program)
    nothing = np.zeros(program.n_tasks)
    none = Demand(nothing, np.zeros(program.n_tasks, np.bool_), nothing)
    assert contended(timeline, none) is timeline
