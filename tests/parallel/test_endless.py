"""Pipelines that never flush: their rate, what hides in it, and what they hold."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from pods import write_pod

from ridgeline.hardware import load_cluster
from ridgeline.parallel.emit.async_pipeline import period_before
from ridgeline.parallel.plan.plan import Plan
from ridgeline.report.result import Result
from ridgeline.simulation import simulate
from ridgeline.workload.files import load_model
from thoroughly import sample_of

FOLDER = tempfile.TemporaryDirectory()
POD = str(write_pod(Path(FOLDER.name)))


def step(model: str, **fields: Any) -> Result:
    plan = Plan(**{"precision": "fp16-mixed", "micro_batch": 4, "global_batch": 4, **fields})
    return simulate(load_model(model), load_cluster(POD), plan)


@sample_of(
    4,
    12,
    st.sampled_from(("pipedream", "continuous")),
    st.sampled_from((2, 4)),
    st.sampled_from((1, 2)),
    st.sampled_from((1, 2, 5)),
)
def test_a_period_is_as_long_as_its_fullest_queue(
    schedule: str, stages: int, data: int, micro_batches: int
) -> None:
    result = step(
        "resnet18", schedule=schedule, pipeline=stages, data=data,
        global_batch=4 * data * micro_batches,
    )  # fmt: skip
    timeline = result.details.timeline
    program = timeline.program
    alone = program.stream >= 0
    busy = [
        timeline.durations_s[alone & (program.stream == stream)].sum()
        for stream in range(len(program.stream_names))
    ]
    # Ops that wait inside a block for a collective of their own block are the only pauses.
    assert result.step_time_s == pytest.approx(max(busy), rel=1e-6)


def test_many_micro_batches_without_a_pause_are_the_limit_of_1f1b() -> None:
    endless = step("gpt2", schedule="pipedream", pipeline=4, global_batch=256).samples_per_s
    rates = [
        step("gpt2", schedule="1f1b", pipeline=4, global_batch=4 * m).samples_per_s
        for m in (4, 16, 64)
    ]
    assert rates == sorted(rates)
    assert rates[-1] < endless < 1.2 * rates[-1]


def test_stashed_weights_and_activations_by_the_formula() -> None:
    """Stage k of K holds K - k versions and micro-batches (PipeDream, section 3.3)."""
    alike = {"pipeline": 4, "precision": "fp32", "stage_balance": "layers"}  # the same stages
    stashed = step("gpt2", schedule="pipedream", **alike).details
    single = step("gpt2", schedule="continuous", **alike).details
    flushed = step("gpt2", schedule="1f1b", global_batch=64, **alike).details
    kinds = list(stashed.timeline.program.memory_kinds)
    weights = kinds.index("weights")
    for stage in range(4):
        more = stashed.timeline.program.memory_initial[stage, weights]
        one = single.timeline.program.memory_initial[stage, weights]
        assert more == pytest.approx((4 - stage) * one, rel=1e-3)
    peaks = [
        max(rank.by_kind["activations"] for rank in details.timeline.memory())
        for details in (single, flushed)
    ]
    assert peaks[0] == pytest.approx(peaks[1], rel=0.1)


def test_what_a_micro_batch_meets_is_of_the_one_before() -> None:
    import numpy as np

    assert period_before(np.array([5, 6, 7])).tolist() == [-1, 5, 6]
    assert period_before(np.array([[5, 1]])).tolist() == [[-1, -1]]
