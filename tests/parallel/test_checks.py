"""Loss scaling: gradients are scaled back and checked, and the host waits before it goes on."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

import ridgeline as rl
from ridgeline.parallel.passes.optimizer_kernels import ISSUED
from ridgeline.workload import optimizers
from ridgeline.workload.graph import Role
from stacked import stacked
from thoroughly import sample_of

MODEL = rl.load_model("mlp")
RULE = "adam"


def step(*, reference: bool = False, **fields: object) -> rl.Result:
    plan = stacked(**{"global_batch": 16, "precision": "fp32", "optimizer": RULE, **fields})
    return rl.simulate(MODEL, "dgx1-v100", plan, reference=reference)


def scaling_s(result: rl.Result) -> float:
    device = result.details.cluster.device
    far = device.memory[device.far_memory]
    rate = far.bandwidth.value * far.achievable.value
    tensors = result.details.graph.tensors.values()
    gradients = sum(t.bytes for t in tensors if t.role is Role.WEIGHT_GRADIENT)
    return float(2 * gradients / rate) + float(device.launch_latency.value)


@pytest.mark.parametrize("data", [1, 4])
def test_gradients_are_read_and_written_once(data: int) -> None:
    without, checked = step(data=data), step(data=data, optimizer__loss_scale_check=True)
    more = checked.step_time_s - without.step_time_s
    assert more == pytest.approx(scaling_s(without), rel=1e-6)
    passes = step(data=data, gradients__sweeps=2)
    assert checked.step_time_s == passes.step_time_s
    assert checked.traffic_bytes == passes.traffic_bytes
    assert checked.memory_bytes == without.memory_bytes


@sample_of(5, 20, st.floats(1e-7, 1e-3), st.sampled_from([1, 2, 4]), st.booleans())
def test_the_updates_are_issued_after_the_check(issue: float, data: int, overlap: bool) -> None:
    fields = {
        "host__launch_time": issue,
        "data": data,
        "optimizer__impl": "per-tensor",
        "overlap__gradients": overlap,
    }
    ahead, checked = (
        step(**fields, optimizer__loss_scale_check=checks) for checks in (False, True)
    )
    ops = sum(op.kind == "optimizer" for op in checked.details.graph.ops)
    issued = ISSUED * issue * ops * len(optimizers.find(RULE).kernels)
    more = checked.step_time_s - ahead.step_time_s
    updated = checked.time_s["optimizer"]
    assert (
        checked.step_time_s
        >= (step(**{**fields, "host__launch_time": 0.0}).step_time_s - updated) + issued
    )
    assert scaling_s(ahead) * (1 - 1e-6) <= more + 1e-12 or issued > updated
    assert 0.0 <= more <= (scaling_s(ahead) + issued + updated + issue) * (1 + 1e-9)


def test_the_host_issues_a_copy_of_each_gradient_and_one_back() -> None:
    issue = 1e-2  # by far the slowest of all
    fields = {"host__launch_time": issue, "data": 4, "optimizer__impl": "per-tensor"}
    without, copied = step(**fields), step(**fields, gradients__bucket_copies=True)
    weights = sum(op.kind == "optimizer" for op in copied.details.graph.ops)
    more = copied.step_time_s - without.step_time_s
    assert more == pytest.approx(2 * ISSUED * issue * weights, rel=1e-2)


def test_both_executors_agree() -> None:
    fields = {
        "data": 4,
        "host__launch_time": 1e-5,
        "optimizer__impl": "per-tensor",
        "optimizer__loss_scale_check": True,
        "gradients__bucket_copies": True,
    }
    fast, slow = step(**fields), step(**fields, reference=True)
    assert fast.step_time_s == pytest.approx(slow.step_time_s, rel=1e-9)
