"""The host issues ops one after another: a step is never shorter, and never longer than both."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ridgeline as rl
from ridgeline.workload.graph import Pass
from stacked import changed, stacked

MODEL = rl.load_model("mlp")


def step(issue: float, **fields: object) -> rl.Result:
    plan = {"global_batch": 16, "precision": "fp32", **fields}
    return rl.simulate(MODEL, "dgx1-v100", stacked(host__launch_time=issue, **plan))


@settings(max_examples=15, deadline=None)
@given(st.floats(1e-7, 1e-2))
def test_a_step_takes_as_long_as_the_slower_of_host_and_device(issue: float) -> None:
    free, bound = step(0.0), step(issue)
    ops = [op for op in bound.details.graph.ops if op.pass_ is not Pass.UPDATE]
    issued = len(ops) * issue
    assert bound.step_time_s >= free.step_time_s * (1 - 1e-12)
    assert bound.step_time_s >= issued
    assert bound.step_time_s <= (free.step_time_s + issued) * (1 + 1e-12)
    assert sum(v for k, v in bound.time_s.items() if k != "total") == pytest.approx(
        bound.time_s["total"]
    )


def test_micro_batches_are_issued_again_and_events_stay_the_same() -> None:
    free = step(0.0, micro_batch=4)
    once, again = step(1e-2), step(1e-2, micro_batch=4)
    assert again.step_time_s > 3.5 * once.step_time_s
    assert again.limits_s["host issue"] > 0.9 * again.step_time_s
    assert again.traffic_bytes == free.traffic_bytes
    assert again.memory_bytes == free.memory_bytes


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_pipeline_can_be_played_by_both_executors(recompute: str) -> None:
    fields = {"layers": 5, "hidden": 64, "attention.heads": 2, "feed_forward.width": 128,
              "sequence": 16, "vocabulary": 64}  # fmt: skip
    model = rl.load_model("gpt3-1.3b", fields)
    plan = stacked(
        global_batch=4, pipeline=2, tensor=2, recompute=recompute, host__launch_time=4e-5
    )
    fast = rl.simulate(model, "dgx-a100", plan)
    slow = rl.simulate(model, "dgx-a100", plan, reference=True)
    assert fast.step_time_s == pytest.approx(slow.step_time_s, rel=1e-9)
    assert (
        fast.step_time_s
        > 2 * rl.simulate(model, "dgx-a100", changed(plan, host__launch_time=0.0)).step_time_s
    )


@settings(max_examples=15, deadline=None)
@given(st.floats(1e-7, 1e-2))
def test_a_host_that_waits_adds_its_time_to_every_op(issue: float) -> None:
    alone = rl.load_cluster("v100-sxm2-16gb")
    plan = stacked(global_batch=16, precision="fp32", host__launch_time=issue)
    free = rl.simulate(MODEL, alone, changed(plan, host__launch_time=0.0))
    ahead = rl.simulate(MODEL, alone, plan)
    waits = rl.simulate(MODEL, alone, changed(plan, host__async_launch=False))
    ops = [op for op in free.details.graph.ops if op.pass_ is not Pass.UPDATE]
    assert waits.step_time_s == pytest.approx(free.step_time_s + len(ops) * issue, rel=1e-9)
    assert waits.step_time_s >= ahead.step_time_s * (1 - 1e-12)
    assert waits.energy_j["dram"] == free.energy_j["dram"]
    assert sum(v for k, v in waits.time_s.items() if k != "total") == pytest.approx(
        waits.time_s["total"]
    )
