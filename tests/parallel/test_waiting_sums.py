"""Programs that gather beside other work, and wait for sums (`overlap=gathers`)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from pods import on_pod

import ridgeline as rl
from ridgeline.parallel.plan.resolved import resolved
from ridgeline.parallel.plan.text import make_plan
from ridgeline.report.result import Result
from ridgeline.simulation import simulate
from stacked import stacked
from thoroughly import sample_of

TEXT = """
kind: model
name: small
family: decoder
title: Waiting
citation: made for tests
vocabulary: 512
sequence: 128
layers: 2
hidden: {hidden}
attention: {{heads: 8, kv_heads: 8, bias: false, output_bias: false, kernel: flash}}
feed_forward: {{width: 512, activation: swiglu, bias: false}}
norm: rms-norm
positions: rotary
tied: false
"""
SHARED: tuple[dict[str, Any], ...] = (
    {"tensor": 4, "sequence": 4},
    {"data": 4, "zero_stage": 3},
    {"data": 4},
    {"data": 2, "tensor": 2, "sequence": 2, "zero_stage": 3},
    {"data": 4, "zero_stage": 3, "hybrid_shard_size": 2},
)


def step(hidden: int, how: bool | str, *, reference: bool = False, **fields: Any) -> Result:
    plan = stacked(
        global_batch=8,
        precision="fp16-mixed",
        overlap__gradients=how,
        overlap__tensor=how,
        **fields,
    )
    return simulate(*on_pod(TEXT.format(hidden=hidden)), plan, reference=reference)


@sample_of(
    4,
    12,
    st.sampled_from((128, 512)),
    st.sampled_from(SHARED),
    st.sampled_from(("none", "products")),
)
def test_waiting_for_sums_lies_between_waiting_for_nothing_and_for_all(
    hidden: int, shared: dict[str, Any], again: str
) -> None:
    """The same is computed and sent; what is waited for is never faster."""
    beside, sums, all_ = (
        step(hidden, how, recompute=again, **shared) for how in (True, "gathers", False)
    )
    assert beside.step_time_s <= sums.step_time_s * (1 + 1e-9)
    assert sums.step_time_s <= all_.step_time_s * (1 + 1e-9)
    assert sums.traffic_bytes == pytest.approx(beside.traffic_bytes)
    assert sums.flops_per_step == all_.flops_per_step == beside.flops_per_step


@pytest.mark.parametrize("shared", SHARED)
def test_no_op_runs_beside_a_sum(shared: dict[str, Any]) -> None:
    """Also as the slow executor plays it; gathers of weights do go on beside ops."""
    played = step(512, "gathers", **shared)
    slow = step(512, "gathers", reference=True, **shared)
    assert played.step_time_s == pytest.approx(slow.step_time_s, rel=1e-9)
    timeline = played.details.timeline
    program = timeline.program
    rows = [row for row in timeline.rows(range(program.n_tasks)) if row.end_s > row.start_s]
    sums = [r for r in rows if "reduce" in r.label]
    busy = [r for r in rows if not any(word in r.label for word in ("reduce", "all-gather"))]
    assert sums
    assert busy
    for one in sums:
        for other in busy:
            assert min(one.end_s, other.end_s) <= max(one.start_s, other.start_s) * (1 + 1e-12)


def test_a_command_line_says_what_it_waits_for() -> None:
    fields = {"global_batch": 8, "tensor": "4"}
    for text, meant in (("true", True), ("false", False), ("gathers", "gathers")):
        with pytest.warns(FutureWarning, match="plan.overlap"):
            plan = resolved(make_plan({**fields, "overlap": text, "overlap_tensor": text}))
        assert (plan.stack.overlap.gradients, plan.stack.overlap.tensor) == (meant, meant)
    with pytest.raises(rl.ConfigError, match="overlap"), pytest.warns(FutureWarning):
        resolved(make_plan({**fields, "overlap": "scatters"}))
