"""Continuous batching: against a slow loop, conservation, Little's law, monotony, bad requests."""

from __future__ import annotations

import math

import numpy as np
import pytest

from oracles.slow_engine import generate_slowly
from ridgeline.errors import RidgelineError
from ridgeline.study.generation.batching import (
    BatchingRules,
    EngineRun,
    GenerationWork,
    StepPrice,
    run_engine,
)
from ridgeline.study.generation.kv_capacity import KvLayout
from ridgeline.study.generation.lengths import GenerationRequest
from ridgeline.workload.generation_step import CachedLayer
from thoroughly import further


class Linear:
    """Times of steps by a few numbers: fixed, a row, a position that is attended to."""

    def __init__(self, fixed: float = 1e-3, row: float = 1e-5, key: float = 1e-7) -> None:
        self.fixed, self.row, self.key = fixed, row, key

    def price(self, work: GenerationWork) -> StepPrice:
        rows = len(work.decoding) + sum(new for new, _ in work.prefilled)
        keys = float(work.decoding.sum()) + sum(new * (old + new) for new, old in work.prefilled)
        time_s = self.fixed + self.row * rows + self.key * keys
        return StepPrice(time_s, 100.0 * time_s)


def layout(page: int, window: int = 0, state: float = 0.0) -> KvLayout:
    layers = [CachedLayer("a", 8, 8, "bf16")]
    if window:
        layers.append(CachedLayer("b", 8, 4, "bf16", window))
    if state:
        layers.append(CachedLayer("c", 8, 0, "bf16", state_bytes=state))
    return KvLayout(tuple(layers), page_tokens=page)


def case(seed: int) -> tuple[list[GenerationRequest], Linear, BatchingRules]:
    """Draw requests, prices and rules, often with too little room for all."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 25))
    gaps = rng.exponential(rng.choice([0.0, 1e-3, 2e-2]), count).cumsum()
    requests = [
        GenerationRequest(int(rng.integers(1, 60)), int(rng.integers(1, 40)), float(gap))
        for gap in gaps
    ]
    of = layout(
        int(rng.choice([1, 4, 16])), int(rng.choice([0, 16])), float(rng.choice([0.0, 64.0]))
    )
    longest = max(of.sequence_bytes(r.prompt + r.output) for r in requests)
    rules = BatchingRules(
        room_bytes=longest * float(rng.choice([1.0, 1.3, 3.0, 50.0])),
        layout=of,
        most_sequences=int(rng.integers(1, 20)),
        most_prefilled=int(rng.integers(8, 200)),
        chunk=int(rng.choice([0, 0, 7, 64])),
        reserve=bool(rng.random() < 0.3),
    )
    return requests, Linear(*rng.uniform(1e-5, 1e-3, 3).tolist()), rules


def present(run: EngineRun) -> float:
    """Integral of the requests in the system, by their arrivals and ends."""
    return math.fsum(r.finish_s - r.request.arrival_s for r in run.records)


@pytest.mark.parametrize("seed", [*range(40), *further(*range(40, 1000))])
def test_the_engine_does_what_a_slow_loop_does(seed: int) -> None:
    requests, pricer, rules = case(seed)
    run = run_engine(requests, pricer, rules)
    slow, in_system = generate_slowly(requests, pricer, rules)
    for ours, theirs in zip(run.records, slow, strict=True):
        assert ours.first_s == pytest.approx(theirs.first_s, rel=1e-9)
        assert ours.finish_s == pytest.approx(theirs.finish_s, rel=1e-9)
        assert (ours.prefilled, ours.generated) == (theirs.prefilled, theirs.out)
        assert ours.preempted == theirs.preempted
    assert present(run) == pytest.approx(in_system, rel=1e-9)  # Little's law: L T = N W


@pytest.mark.parametrize("seed", [*range(40), *further(*range(40, 1000))])
def test_every_token_is_generated_once_and_nothing_is_taken_twice(seed: int) -> None:
    requests, pricer, rules = case(seed)
    run = run_engine(requests, pricer, rules)
    assert [r.generated for r in run.records] == [r.output for r in requests]
    emitted = sum(step.decoded for step in run.steps)
    again = sum(r.preempted > 0 for r in run.records)
    assert emitted <= sum(r.output for r in requests) - (again == 0) * len(requests)
    assert sum(step.prefilled for step in run.steps) == sum(r.prefilled for r in run.records)
    for record in run.records:
        assert record.recomputed >= 0
        assert (record.recomputed > 0) <= (record.preempted > 0)
        assert record.request.arrival_s <= record.admitted_s <= record.first_s <= record.finish_s
        if rules.reserve:
            assert record.preempted == 0
    for step, following in zip(run.steps, run.steps[1:], strict=False):
        assert step.start_s < step.end_s <= following.start_s
    assert max(step.kv_bytes for step in run.steps) <= rules.room_bytes * (1 + 1e-9)
    assert max(step.running for step in run.steps) <= rules.most_sequences


def test_preemption_happens_and_costs_what_is_computed_again() -> None:
    requests = [GenerationRequest(16, 48)] * 8
    of = layout(16)
    tight = BatchingRules(of.sequence_bytes(64) * 2, of, chunk=0)
    run = run_engine(requests, Linear(), tight)
    assert sum(r.preempted for r in run.records) > 0
    assert sum(r.recomputed for r in run.records) > 0
    wide = BatchingRules(of.sequence_bytes(64) * 8, of)
    assert run_engine(requests, Linear(), wide).makespan_s < run.makespan_s


@pytest.mark.parametrize("seed", range(12))
def test_faster_steps_never_end_later(seed: int) -> None:
    requests, pricer, rules = case(seed)
    closed = [GenerationRequest(r.prompt, r.output) for r in requests]
    faster = Linear(*(0.7 * x for x in (pricer.fixed, pricer.row, pricer.key)))
    slow, fast = (run_engine(closed, each, rules).makespan_s for each in (pricer, faster))
    assert fast == pytest.approx(0.7 * slow, rel=1e-9)  # the same steps, each in 0.7 of its time


def test_an_open_queue_obeys_littles_law_and_runs_full() -> None:
    rng = np.random.default_rng(5)
    times = rng.exponential(0.02, 400).cumsum()
    requests = [GenerationRequest(32, 16, float(t)) for t in times]
    of = layout(16)
    run = run_engine(requests, Linear(), BatchingRules(of.sequence_bytes(48) * 64, of))
    held = math.fsum((s.running + s.waiting) * (s.end_s - s.start_s) for s in run.steps)
    # requests that arrive within a step are seen by the next one: at most a step each
    longest = max(s.end_s - s.start_s for s in run.steps)
    assert 0 <= present(run) - held <= 400 * longest


def test_what_does_not_fit_is_refused() -> None:
    of = layout(16)
    rules = BatchingRules(of.sequence_bytes(32), of)
    with pytest.raises(RidgelineError, match=r"request 1 has 20 \+ 20 tokens.*sequence of 32"):
        run_engine([GenerationRequest(8, 8), GenerationRequest(20, 20)], Linear(), rules)


@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("window", [0, 40])
def test_pages_are_whole_and_windows_bound_them(page: int, window: int) -> None:
    of = layout(page, window, 100.0)
    for length in range(1, 200):
        pages = math.ceil(length / page)
        kept = min(pages, math.ceil(window / page) + (page > 1)) if window else 0
        assert of.sequence_bytes(length) == pytest.approx(pages * page * 16 + kept * page * 8 + 100)
    room = of.sequence_bytes(150)
    assert of.longest(room) == math.ceil(150 / page) * page
    assert of.longest(of.sequence_bytes(1) - 1) == 0
