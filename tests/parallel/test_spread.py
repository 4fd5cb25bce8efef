"""Devices of one kind differ: the slowest of many, against draws, and a step that waits for it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ridgeline as rl
from ridgeline.parallel.spread import slowest


@pytest.mark.parametrize("devices", [2, 8, 100])
def test_the_slowest_is_the_mean_largest_of_draws(devices: int) -> None:
    draws = np.random.default_rng(7).normal(1.0, 0.02, (20_000, devices)).max(axis=1)
    assert slowest(devices, 0.02) - 1 == pytest.approx(draws.mean() - 1, rel=0.08)


@given(st.integers(1, 10**6), st.floats(0, 0.5))
def test_more_devices_are_not_faster(devices: int, deviation: float) -> None:
    assert 1.0 <= slowest(devices, deviation) <= slowest(devices + 1, deviation)
    assert slowest(1, deviation) == slowest(devices, 0.0) == 1.0


def test_work_takes_longer_and_nothing_else_changes() -> None:
    model, deviation = rl.load_model("mlp", {"widths": [4096, 4096]}), 0.1
    plan = rl.Plan(global_batch=1 << 15, data=8, precision="fp32")
    alike = rl.simulate(model, "dgx1-v100", plan)
    differ = rl.simulate(model, "dgx1-v100", plan.model_copy(update={"spread": deviation}))
    factor = slowest(8, deviation)
    assert 1.0 < differ.step_time_s / alike.step_time_s < factor
    assert differ.step_time_s / alike.step_time_s == pytest.approx(factor, rel=0.05)
    assert differ.traffic_bytes == alike.traffic_bytes
    assert differ.flops_per_step == alike.flops_per_step
    assert sum(v for k, v in differ.time_s.items() if k != "total") == pytest.approx(
        differ.time_s["total"]
    )
