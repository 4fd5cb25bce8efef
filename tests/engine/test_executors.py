"""Both executors play any program alike, and by the rules."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from engine.programs import dyadic_programs, programs, task_works
from ridgeline.engine.builder import ProgramBuilder, WorkPhase
from ridgeline.engine.executor import run
from ridgeline.engine.program import Program
from ridgeline.engine.reference import run_reference
from ridgeline.engine.timeline import Timeline
from ridgeline.errors import RidgelineError

Executor = Callable[[Program], Timeline]
EXECUTORS = (run, run_reference)


def examples(number: int) -> settings:
    """Return settings for `number` examples that may be large and slow to draw."""
    return settings(max_examples=number, deadline=None, suppress_health_check=list(HealthCheck))


def assert_identical(one: Timeline, other: Timeline) -> None:
    assert one.start_s.tobytes() == other.start_s.tobytes()
    assert one.end_s.tobytes() == other.end_s.tobytes()


@examples(500)
@given(programs(shared=False, numbers="few") | programs(shared=False))
def test_without_shared_resources_both_executors_agree_to_the_last_bit(program: Program) -> None:
    assert_identical(run(program), run_reference(program))


@examples(500)
@given(dyadic_programs())
def test_with_dyadic_sharing_both_executors_agree_to_the_last_bit(program: Program) -> None:
    assert_identical(run(program), run_reference(program))


@examples(500)
@given(programs() | programs(max_tasks=100, max_streams=40))
def test_with_sharing_both_executors_agree(program: Program) -> None:
    fast, slow = run(program), run_reference(program)
    np.testing.assert_allclose(fast.start_s, slow.start_s, rtol=1e-9, atol=0)
    np.testing.assert_allclose(fast.end_s, slow.end_s, rtol=1e-9, atol=0)


@examples(100)
@given(programs(numbers="few"))
def test_playing_is_deterministic(program: Program) -> None:
    assert_identical(run(program), run(program))


@examples(200)
@given(programs(numbers="few"))
def test_rules_of_order(program: Program) -> None:
    """Predecessors end before a task starts, streams play one task at a time, nothing idles."""
    p, timeline = program, run(program)
    moments = {0.0, *timeline.end_s.tolist()}
    for task in range(p.n_tasks):
        deps = p.dep_index[p.dep_ptr[task] : p.dep_ptr[task + 1]]
        assert (timeline.end_s[deps] <= timeline.start_s[task]).all()
        assert timeline.start_s[task] in moments
    for stream in range(len(p.stream_rank)):
        busy = timeline.busy(stream)
        assert (busy[1:, 0] >= busy[:-1, 1]).all()


@examples(200)
@given(programs())
def test_shared_resources_never_give_more_than_they_have(
    program: Program,
) -> None:
    timeline = run(program)
    for resource in np.flatnonzero(program.shared).tolist():
        works = np.array(task_works(program, resource))
        capacity = program.capacity[resource]
        for begin in [0.0, *timeline.start_s.tolist()]:
            for end in timeline.end_s.tolist():
                inside = (timeline.start_s >= begin) & (timeline.end_s <= end)
                most = capacity * max(end - begin, 0.0)
                assert works[inside].sum() <= most * (1 + 1e-9) + 1e-9


@examples(200)
@given(programs(), st.data())
def test_a_faster_resource_never_delays_a_chain(program: Program, data: st.DataObject) -> None:
    assume(program.n_tasks > 0)
    chain = replace(
        program,
        stream=np.zeros_like(program.stream),
        group=np.full_like(program.group, -1),
    )
    name = data.draw(st.sampled_from(program.resource_names))
    faster = chain.scaled({name: data.draw(st.floats(1.0, 10.0))})
    assert (run(faster).end_s <= run(chain).end_s * (1 + 1e-9)).all()


def links(*capacities: float) -> tuple[ProgramBuilder, list[int]]:
    builder = ProgramBuilder()
    return builder, [
        builder.add_resource(f"link{i}", capacity, shared=True)
        for i, capacity in enumerate(capacities)
    ]


def flow(builder: ProgramBuilder, *phases: WorkPhase, **options: Any) -> int:
    """Add a task on a stream of its own."""
    rank = builder.add_rank()
    stream = builder.add_stream(f"s{rank}", rank)
    return builder.add_task(
        "flow", f"flow {rank}", stream=stream, cost=builder.add_cost(phases), **options
    )


@pytest.mark.parametrize("execute", EXECUTORS)
def test_two_flows_on_one_link_with_different_starts(execute: Executor) -> None:
    builder, [link] = links(10.0)
    flow(builder, WorkPhase(0.0, {link: 100.0}))
    flow(builder, WorkPhase(4.0, {link: 50.0}))
    # Alone until 4 s (40 done); then 5 each, the second ends at 14; 10 are left for a free link.
    assert execute(builder.build()).end_s.tolist() == [15.0, 14.0]


@pytest.mark.parametrize("execute", EXECUTORS)
def test_three_flows_on_two_links(execute: Executor) -> None:
    builder, [narrow, wide] = links(10.0, 20.0)
    flow(builder, WorkPhase(0.0, {narrow: 10.0, wide: 10.0}))
    flow(builder, WorkPhase(0.0, {narrow: 20.0}))
    flow(builder, WorkPhase(0.0, {wide: 60.0}))
    # Max-min: 5, 5 and 15. At 2 s the first ends; 10 left at rate 10, 30 left at rate 20.
    assert execute(builder.build()).end_s.tolist() == [2.0, 3.0, 3.5]


@pytest.mark.parametrize("execute", EXECUTORS)
def test_what_a_capped_flow_leaves_goes_to_the_others(execute: Executor) -> None:
    builder, [link] = links(10.0)
    engine = builder.add_resource("engine", 3.0)
    flow(builder, WorkPhase(0.0, {link: 16.0, engine: 24.0}))  # at most 2 of the link
    flow(builder, WorkPhase(0.0, {link: 16.0}))
    assert execute(builder.build()).end_s.tolist() == [8.0, 2.0]


@pytest.mark.parametrize("execute", EXECUTORS)
def test_a_flow_advances_on_all_its_links_together(execute: Executor) -> None:
    builder, [one, two] = links(4.0, 8.0)
    flow(builder, WorkPhase(0.0, {one: 16.0, two: 4.0}))
    flow(builder, WorkPhase(0.0, {two: 14.0}))
    # The first is held to 4 on link one, so to 1 on link two, and leaves 7 of it.
    assert execute(builder.build()).end_s.tolist() == [4.0, 2.0]


@pytest.mark.parametrize("execute", EXECUTORS)
def test_a_round_begins_with_its_latency(execute: Executor) -> None:
    builder, [link] = links(8.0)
    flow(builder, WorkPhase(1.0, {link: 8.0}, repeat=3))
    flow(builder, WorkPhase(0.0, {link: 8.0}), WorkPhase(0.5), WorkPhase(0.25, {link: 8.0}))
    # First: 1-2, then latency, ... Second: 0-1, waits 0.75, shares from 1.75 with the first's
    # round (2 of 8 left), which ends at 2.25; the second's other 6 take until 3.
    assert execute(builder.build()).end_s.tolist() == [6.25, 3.0]


@pytest.mark.parametrize("execute", EXECUTORS)
def test_a_folded_flow_gets_what_its_flows_would_get(execute: Executor) -> None:
    """Three equal flows and a longer one, unfolded and with one task for the three."""
    unfolded, [link] = links(12.0)
    for _ in range(3):
        flow(unfolded, WorkPhase(0.0, {link: 9.0}))
    flow(unfolded, WorkPhase(0.0, {link: 21.0}))
    folded, [link] = links(12.0)
    flow(folded, WorkPhase(0.0, {link: 27.0}, weight=3.0), multiplicity=3)
    flow(folded, WorkPhase(0.0, {link: 21.0}))
    assert execute(unfolded.build()).end_s.tolist() == [3.0, 3.0, 3.0, 4.0]
    assert execute(folded.build()).end_s.tolist() == [3.0, 4.0]


@pytest.mark.parametrize("execute", EXECUTORS)
@pytest.mark.parametrize("n", [3, 7, 10, 49])
def test_equal_flows_end_at_one_moment(execute: Executor, n: int) -> None:
    """Shares of 1/n are rounded, but equally for all that began together."""
    builder, [link] = links(0.3)
    for i in range(n):
        flow(builder, WorkPhase(0.1 * (i % 2), {link: 0.7}))
    assert len(set(execute(builder.build()).end_s.tolist())) == 2  # from 0 s and from 0.1 s


EARLY = {"size": 0.3, "rate": 0.1}  # 3 s, or 2.9999999999999996 in float64
LATE = {"size": 2.1, "rate": 0.7}  # 3 s, or 3.0000000000000004


@pytest.mark.parametrize("execute", EXECUTORS)
@pytest.mark.parametrize(
    ("first", "second", "moment"),
    [(EARLY, LATE, 0.3 / 0.1), (EARLY, None, 3.0), (None, LATE, 3.0)],
)
def test_ends_that_only_rounding_sets_apart_are_one_moment(
    execute: Executor,
    first: dict[str, float] | None,
    second: dict[str, float] | None,
    moment: float,
) -> None:
    """After both, the more urgent of two tasks starts, though it waits for the later end."""
    builder = ProgramBuilder()
    target = builder.add_stream("target", builder.add_rank())
    second_long = builder.add_cost([WorkPhase(1.0)])
    ends = []
    for work in (first, second):
        if work is None:
            ends.append(flow(builder, WorkPhase(3.0)))
        else:
            link = builder.add_resource("link", work["rate"], shared=True)
            ends.append(flow(builder, WorkPhase(0.0, {link: work["size"]})))
    for priority, end in zip((1, 0), ends, strict=True):
        builder.add_task("x", "x", stream=target, cost=second_long, deps=[end], priority=priority)
    timeline = execute(builder.build())
    assert timeline.end_s[:2].tolist() == [moment, moment]
    assert timeline.start_s[2:].tolist() == [moment + 1.0, moment]


@pytest.mark.parametrize("execute", EXECUTORS)
def test_a_gang_waits_for_all_its_streams_and_is_not_overtaken(execute: Executor) -> None:
    builder = ProgramBuilder()
    rank = builder.add_rank()
    a, b = builder.add_stream("a", rank), builder.add_stream("b", rank)
    second = builder.add_cost([WorkPhase(1.0)])
    long = builder.add_cost([WorkPhase(3.0)])
    builder.add_task("x", "a0", stream=a, cost=second)
    builder.add_task("x", "b0", stream=b, cost=long)
    gang = builder.add_task("x", "gang", group=builder.add_group([a, b]), cost=second)
    after = builder.add_task("x", "a1", stream=a, cost=second)
    urgent = builder.add_task("x", "a2", stream=a, cost=second, priority=-1, deps=[0])
    timeline = execute(builder.build())
    assert timeline.start_s.tolist() == [0.0, 0.0, 3.0, 4.0, 1.0]
    assert timeline.tasks_of(a).tolist() == [0, urgent, gang, after]
    assert timeline.tasks_of(b).tolist() == [1, gang]


@pytest.mark.parametrize("execute", EXECUTORS)
def test_all_that_ends_at_a_moment_ends_before_anything_starts(execute: Executor) -> None:
    builder = ProgramBuilder()
    rank = builder.add_rank()
    a, b, c = (builder.add_stream(name, rank) for name in "abc")
    one, none = builder.add_cost([WorkPhase(1.0)]), builder.add_cost([])
    first = builder.add_task("x", "first", stream=a, cost=one)
    other = builder.add_task("x", "other", stream=b, cost=one)
    low = builder.add_task("x", "low", stream=c, cost=one, deps=[first], priority=1)
    high = builder.add_task("x", "high", stream=c, cost=one, deps=[other])
    instant = builder.add_task("x", "instant", stream=a, cost=none, deps=[first])
    too_late = builder.add_task("x", "too late", stream=c, cost=one, deps=[instant], priority=-1)
    timeline = execute(builder.build())
    assert timeline.tasks_of(c).tolist() == [high, too_late, low]
    assert timeline.end_s[instant] == 1.0
    assert timeline.end_s[low] == 4.0


@pytest.mark.parametrize("execute", EXECUTORS)
def test_tasks_in_a_circle_are_named(execute: Executor) -> None:
    builder = ProgramBuilder()
    stream = builder.add_stream("s", builder.add_rank())
    row = builder.add_cost([WorkPhase(1.0)])
    for task, label in enumerate(("free", "egg", "hen", "chick")):
        builder.add_task("x", label, stream=stream, cost=row, deps=[task - 1] if task else [])
    program = builder.build()
    program.dep_ptr[1:] = [0, 1, 2, 3]
    program.dep_index[:] = [2, 1, 2]  # egg waits for hen, hen for egg, chick for hen
    with pytest.raises(RidgelineError) as caught:
        execute(program)
    assert "3 of 4 tasks" in str(caught.value)
    assert "'egg' (task 1) waits for 'hen' (task 2) waits for 'egg' (task 1)" in str(caught.value)


@pytest.mark.parametrize("execute", EXECUTORS)
def test_an_empty_program_takes_no_time(execute: Executor) -> None:
    timeline = execute(ProgramBuilder().build())
    assert timeline.makespan_s == 0.0
    assert timeline.critical_path().tolist() == []
    assert timeline.memory() == []
    assert timeline.ledger() == {}


def test_max_min_rates_are_fair() -> None:
    """Each flow meets its cap, or a full resource on which no flow has a higher level."""
    from ridgeline.engine.reference import _Flow, _Play

    rng = np.random.default_rng(7)
    for _ in range(300):
        n_links, n_flows = rng.integers(1, 6), rng.integers(1, 9)
        builder, numbers = links(*rng.uniform(1, 10, n_links))
        play = _Play(builder.build())
        flows = [
            _Flow(
                {r: rng.uniform(0.1, 1) for r in numbers if rng.random() < 0.5} or {0: 1.0},
                1.0,
                rng.choice([math.inf, rng.uniform(0.1, 5)]),
                rng.uniform(0.5, 4),
                play.env.event(),
            )
            for _ in range(n_flows)
        ]
        rates = play.fair_rates(flows)
        use = np.array([[f.shares.get(r, 0.0) for r in numbers] for f in flows])
        total, capacity = np.array(rates) @ use, play.program.capacity
        assert (total <= capacity * (1 + 1e-12)).all()
        is_full = total >= capacity * (1 - 1e-12)
        levels = np.array(rates) / [f.weight for f in flows]
        highest = np.where(use > 0, levels[:, None], 0.0).max(axis=0)  # on each link
        has_bottleneck = ((use > 0) & is_full & (levels[:, None] >= highest * (1 - 1e-12))).any(
            axis=1
        )
        caps = np.array([f.cap for f in flows])
        assert ((rates == caps) | ((rates < caps) & has_bottleneck)).all()
