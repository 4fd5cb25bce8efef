"""Chips of one kind and samples differ: the slowest of many, against draws, and who waits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ridgeline as rl
from ridgeline.parallel.comm.stragglers import slowest, waited
from stacked import stacked


@pytest.mark.parametrize("devices", [2, 8, 100])
def test_the_slowest_is_the_mean_largest_of_draws(devices: int) -> None:
    draws = np.random.default_rng(7).normal(1.0, 0.02, (20_000, devices)).max(axis=1)
    assert slowest(devices, 0.02) - 1 == pytest.approx(draws.mean() - 1, rel=0.08)


@given(st.integers(1, 10**6), st.floats(0, 0.5))
def test_more_devices_are_not_faster(devices: int, deviation: float) -> None:
    assert 1.0 <= slowest(devices, deviation) <= slowest(devices + 1, deviation)
    assert slowest(1, deviation) == slowest(devices, 0.0) == 1.0


@pytest.mark.parametrize(("spread", "unequal"), [(0.02, 0.05), (0.015, 0.0), (0.0, 0.1)])
@pytest.mark.parametrize("micro_batches", [1, 4])
def test_replicas_wait_for_the_largest_of_their_sums(
    spread: float, unequal: float, micro_batches: int
) -> None:
    plan = stacked(
        global_batch=8 * micro_batches,
        data=8,
        micro_batch=1,
        device_speed_std=spread,
        sequence_length_std=unequal,
    )
    draw = np.random.default_rng(11)
    chips = draw.normal(1.0, spread, (20_000, 8))
    work = draw.normal(1.0, unequal, (20_000, 8, micro_batches)).mean(axis=2)
    assert waited(plan) - 1 == pytest.approx((chips * work).max(axis=1).mean() - 1, rel=0.08)


@given(
    st.integers(1, 4096),
    st.integers(1, 64),
    st.floats(0, 0.5),
    st.floats(0, 1.0),
    st.sampled_from([1, 2, 8]),
)
def test_what_is_waited_for_is_bounded_by_either_and_by_both(
    data: int, micro_batches: int, spread: float, unequal: float, tensor: int
) -> None:
    fields = {"global_batch": data * micro_batches, "data": data, "micro_batch": 1}
    plan = stacked(**fields, tensor=tensor, device_speed_std=spread, sequence_length_std=unequal)
    chips, samples = (
        waited(plan.model_copy(update={name: 0.0}))
        for name in ("sequence_length_std", "device_speed_std")
    )
    assert chips == slowest(data * tensor, spread)
    assert max(chips, samples) <= waited(plan) * (1 + 1e-12)
    assert waited(plan) <= (chips + samples - 1.0) * (1 + 1e-12)
    alone = plan.model_copy(update={"data": 1, "global_batch": micro_batches, "tensor": 1})
    assert waited(alone) == 1.0


@pytest.mark.parametrize("field", ["device_speed_std", "sequence_length_std"])
def test_work_takes_longer_and_nothing_else_changes(field: str) -> None:
    model, deviation = rl.load_model("mlp", {"widths": [4096, 4096]}), 0.1
    plan = stacked(global_batch=1 << 15, data=8, precision="fp32")
    alike = rl.simulate(model, "dgx1-v100", plan)
    differ = rl.simulate(model, "dgx1-v100", plan.model_copy(update={field: deviation}))
    factor = slowest(8, deviation)
    assert 1.0 < differ.step_time_s / alike.step_time_s < factor
    assert differ.step_time_s / alike.step_time_s == pytest.approx(factor, rel=0.05)
    assert differ.traffic_bytes == alike.traffic_bytes
    assert differ.flops_per_step == alike.flops_per_step
    assert sum(v for k, v in differ.time_s.items() if k != "total") == pytest.approx(
        differ.time_s["total"]
    )
