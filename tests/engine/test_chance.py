"""Jitter, failures, chunks, slack, pruning and slices: what is done to Programs and Timelines."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.programs import programs
from engine.test_executors import assert_identical, examples
from ridgeline.engine import (
    Program,
    ProgramBuilder,
    WorkPhase,
    executor,
    in_chunks,
    run,
    run_reference,
    with_failures,
    with_jitter,
)
from ridgeline.engine.stochastic import DISTRIBUTIONS, row_times_s
from ridgeline.errors import RidgelineError


def lonely(n: int, seconds: float) -> Program:
    """Tasks of equal length on a stream each."""
    builder = ProgramBuilder()
    row = builder.add_cost([WorkPhase(seconds)])
    for i in range(n):
        rank = builder.add_rank()
        stream = builder.add_stream(f"s{i}", rank)
        builder.add_task("compute", "op", stream=stream, cost=row)
    return builder.build()


@pytest.mark.parametrize("n", [2, 16, 100])
def test_the_slowest_of_n_exponential_delays_takes_the_harmonic_number(n: int) -> None:
    program = lonely(n, 0.0)
    slowest = np.array(
        [
            run(with_jitter(program, "exponential", seed, mean_s=1.0)).makespan_s
            for seed in range(400)
        ]
    )
    expected = sum(1 / k for k in range(1, n + 1))
    assert abs(slowest.mean() - expected) <= 3 * slowest.std(ddof=1) / math.sqrt(len(slowest))


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_delays_have_a_mean_of_one(name: str) -> None:
    draws = DISTRIBUTIONS[name](np.random.default_rng(1), 400_000)
    assert (draws >= 0).all()
    assert draws.mean() == pytest.approx(1.0, rel=0.02)


@examples(60)
@given(programs(max_tasks=14), st.integers(0, 9), st.sampled_from(sorted(DISTRIBUTIONS)))
def test_both_executors_play_jitter_and_failures_alike(
    program: Program, seed: int, name: str
) -> None:
    hit = with_jitter(program, name, seed, mean_s=0.3, relative=0.5)
    longest = row_times_s(hit).max(initial=1.0)
    hit = with_failures(hit, 0.3 * longest, 0.1, seed)
    fast, slow = run(hit), run_reference(hit)
    np.testing.assert_allclose(fast.end_s, slow.end_s, rtol=1e-9, atol=0)
    assert fast.ledger() == run(program).ledger()
    again = with_failures(
        with_jitter(program, name, seed, mean_s=0.3, relative=0.5), 0.3 * longest, 0.1, seed
    )
    assert_identical(run(again), fast)


def test_failures_take_what_poisson_restarts_take() -> None:
    seconds, between, repair = 2.0, 3.0, 0.5
    played = run(with_failures(lonely(20_000, seconds), between, repair, 7)).durations_s
    expected = (between + repair) * math.expm1(seconds / between)
    assert abs(played.mean() - expected) <= 3 * played.std() / math.sqrt(len(played))
    with pytest.raises(RidgelineError, match="hardly ever end"):
        with_failures(lonely(1, 100.0), 1.0, 0.0, 0)


def test_chance_says_what_is_wrong() -> None:
    program = lonely(2, 1.0)
    with pytest.raises(RidgelineError, match="exponential"):
        with_jitter(program, "exponental", 0, mean_s=1.0)
    with pytest.raises(RidgelineError, match="compute"):
        with_jitter(program, "constant", 0, mean_s=1.0, kinds=["compte"])
    with pytest.raises(RidgelineError, match="0 or more"):
        with_jitter(program, "constant", 0, mean_s=-1.0)
    with pytest.raises(RidgelineError, match="between failures"):
        with_failures(program, 0.0, 1.0, 0)


def test_an_urgent_task_goes_between_the_chunks_of_another() -> None:
    builder = ProgramBuilder()
    link = builder.add_resource("link", 1.0, shared=True)
    rank = builder.add_rank()
    network, other = builder.add_stream("network", rank), builder.add_stream("compute", rank)
    large = builder.add_cost([WorkPhase(0.0, {link: 8.0})])
    small = builder.add_cost([WorkPhase(0.0, {link: 1.0})])
    late = builder.add_task(
        "compute", "late", stream=other, cost=builder.add_cost([WorkPhase(3.0)])
    )
    builder.add_task("collective", "large", stream=network, cost=large, priority=1)
    urgent = builder.add_task("urgent", "small", stream=network, cost=small, deps=[late])
    program = builder.build()
    assert run(program).end_s[urgent] == 9.0
    cut = in_chunks(program, "collective", 4)  # borders at 2, 4, 6
    for played in (run(cut), run_reference(cut)):
        small_number = int(np.flatnonzero(cut.kind == cut.kind_names.index("urgent"))[0])
        assert played.start_s[small_number] == 4.0
        assert played.makespan_s == 9.0
    with pytest.raises(RidgelineError, match="one chunk"):
        in_chunks(program, "collective", 0)
    with pytest.raises(RidgelineError, match="collective"):
        in_chunks(program, "colective", 2)


@examples(60)
@given(programs(max_tasks=12), st.integers(1, 4))
def test_chunks_keep_events_memory_and_agreement(program: Program, chunks: int) -> None:
    cut = program
    for kind in program.kind_names:
        cut = in_chunks(cut, kind, chunks)
    assert cut.n_tasks == chunks * program.n_tasks
    fast, slow = run(cut), run_reference(cut)
    np.testing.assert_allclose(fast.end_s, slow.end_s, rtol=1e-9, atol=0)
    for account, units in run(program).ledger().items():
        assert fast.ledger()[account] == pytest.approx(units)
    assert cut.memory_start.sum() == program.memory_start.sum()
    assert cut.memory_end.sum() == program.memory_end.sum()


@examples(100)
@given(programs(shared=False, numbers="few"))
def test_slack_is_what_a_task_can_be_late(program: Program) -> None:
    """With the order of every stream written down as dependencies, and one task delayed."""
    timeline = run(program)
    slack = timeline.slack_s()
    assert (slack >= 0).all()
    path = timeline.critical_path()
    path = path[timeline.durations_s[path] > 0]  # those of no length need not hold up anything
    assert (slack[path] <= 1e-9 * max(timeline.makespan_s, 1)).all()
    p, (ptr, tasks) = program, timeline.tasks_by_stream
    deps: list[set[int]] = [
        set(p.dep_index[p.dep_ptr[t] : p.dep_ptr[t + 1]].tolist()) for t in range(p.n_tasks)
    ]
    for stream in range(len(ptr) - 1):
        row = tasks[ptr[stream] : ptr[stream + 1]].tolist()
        for before, after in pairwise(row):
            deps[after].add(before)
    flat = [d for each in deps for d in sorted(each)]
    ordered = replace(
        p,
        dep_ptr=np.concatenate(([0], np.cumsum([len(each) for each in deps]))).astype(np.int64),
        dep_index=np.array(flat, np.int32),
    )
    for task in np.flatnonzero(slack > 0)[:3].tolist():
        late = with_jitter(ordered, "constant", 0, mean_s=float(slack[task]))
        cost = ordered.cost.copy()
        cost[task] = late.cost[task]
        delayed = run(replace(late, cost=cost)).makespan_s
        assert delayed <= timeline.makespan_s * (1 + 1e-12)


def test_what_if_scales_by_pattern() -> None:
    builder = ProgramBuilder()
    for name in ("up 0", "up 1", "down 0"):
        builder.add_resource(name, 2.0)
    program = builder.build()
    assert program.scaled({"up *": 3.0}).capacity.tolist() == [6.0, 6.0, 2.0]
    with pytest.raises(RidgelineError, match="no machine"):
        program.scaled({"up 0": 0.0})


def test_long_runs_report_their_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    program = lonely(1000, 1.0)
    staggered = with_jitter(program, "uniform", 3, mean_s=1.0)
    monkeypatch.setattr(executor, "SLICE", 100)
    seen: list[tuple[int, int]] = []
    timeline = run(staggered, lambda done, of: seen.append((done, of)))
    assert len(seen) >= 9
    assert seen == sorted(seen)
    assert seen[-1] == (1000, 1000)
    monkeypatch.undo()
    assert_identical(timeline, run(staggered))


def test_an_interruption_is_raised_and_breaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    program = with_jitter(lonely(1000, 1.0), "uniform", 3, mean_s=1.0)
    before = run(program)
    monkeypatch.setattr(executor, "SLICE", 100)

    def interrupt(done: int, of: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(program, interrupt)
    assert_identical(run(program), before)
