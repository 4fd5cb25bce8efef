"""Replaying a played program with other durations, against the executor itself."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.programs import programs
from ridgeline.engine.executor import run
from ridgeline.engine.program import Floats, Program
from ridgeline.engine.replay import replay_s
from ridgeline.engine.timeline import Timeline


def in_order(timeline: Timeline) -> Program:
    """The order on every stream written down as dependencies."""
    p, (ptr, tasks) = timeline.program, timeline.tasks_by_stream
    deps = [set(p.dep_index[p.dep_ptr[t] : p.dep_ptr[t + 1]].tolist()) for t in range(p.n_tasks)]
    for stream in range(len(ptr) - 1):
        for before, after in pairwise(tasks[ptr[stream] : ptr[stream + 1]].tolist()):
            deps[after].add(before)
    return replace(
        p,
        dep_ptr=np.concatenate(([0], np.cumsum([len(each) for each in deps]))).astype(np.int64),
        dep_index=np.array([d for each in deps for d in sorted(each)], np.int32),
    )


def slower(program: Program, ratio: Floats) -> Program:
    """Every phase of a cost row takes `ratio` times as long."""
    of_phase = np.repeat(ratio, np.diff(program.phase_ptr))
    of_work = np.repeat(of_phase, np.diff(program.work_ptr))
    return replace(
        program,
        latency_s=program.latency_s * of_phase,
        work_amount=program.work_amount * of_work,
    )


@settings(max_examples=60, deadline=None)
@given(programs(numbers="few"))
def test_the_same_durations_end_at_the_same_moment(program: Program) -> None:
    timeline = run(program)
    ratios = np.ones((len(program.event_ptr) - 1, 3))
    assert replay_s(timeline, ratios) == pytest.approx([timeline.makespan_s] * 3, rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(programs(shared=False), st.integers(0, 2**32), st.integers(1, 11))
def test_other_durations_end_when_the_executor_says(
    program: Program, seed: int, n_samples: int
) -> None:
    timeline = run(program)
    rng = np.random.default_rng(seed)
    ratios = np.exp(rng.standard_normal((len(program.event_ptr) - 1, n_samples)))
    found = replay_s(timeline, ratios)
    ordered = in_order(timeline)
    for sample in range(n_samples):
        played = run(slower(ordered, ratios[:, sample]))
        assert found[sample] == pytest.approx(played.makespan_s, rel=1e-9)


@settings(max_examples=30, deadline=None)
@given(programs(), st.floats(0.1, 10))
def test_if_everything_takes_so_much_longer_so_does_the_whole(
    program: Program, factor: float
) -> None:
    timeline = run(program)
    ratios = np.full((len(program.event_ptr) - 1, 1), factor)
    assert replay_s(timeline, ratios)[0] == pytest.approx(factor * timeline.makespan_s, rel=1e-9)
