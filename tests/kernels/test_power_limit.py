"""The clock under a power limit: what is drawn, and what a limit never does."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ridgeline as rl
from ridgeline.errors import ConfigError
from ridgeline.hardware import load_device
from ridgeline.kernels.single import gemm


def drawn_w(device: str, size: int, **fields: str) -> tuple[float, float]:
    """Seconds and watts of one product on a device, some of its fields replaced."""
    found = gemm(size, size, size, device=load_device(device, fields))
    return found.time_s, found.energy_j["total"] / found.time_s


@pytest.mark.parametrize("name", ["v100-sxm2-16gb", "tpu-v2", "eyeriss", "ipu-gc2", "lap-sp"])
def test_without_a_limit_and_with_one_that_is_not_reached_nothing_changes(name: str) -> None:
    free = drawn_w(name, 512)
    assert drawn_w(name, 512, power_limit="5 kW") == free


@settings(max_examples=25, deadline=None)
@given(
    size=st.sampled_from([96, 512, 2048, 8192]),
    watts=st.lists(st.floats(45, 320), min_size=2, max_size=4),
    name=st.sampled_from(["v100-sxm2-16gb", "tpu-v2"]),
)
def test_less_power_is_never_faster(size: int, watts: list[float], name: str) -> None:
    limits = sorted(watts)
    times = [drawn_w(name, size, power_limit=f"{50 + limit} W")[0] for limit in limits]
    assert times == sorted(times, reverse=True)
    assert times[-1] >= drawn_w(name, size)[0]


@settings(max_examples=15, deadline=None)
@given(limit=st.floats(60, 240))
def test_what_is_drawn_is_the_limit_where_it_is_reached(limit: float) -> None:
    """At one voltage the time is the energy of the events over what the limit leaves to them."""
    free_s, free_w = drawn_w("v100-sxm2-16gb", 4096)
    time_s, power_w = drawn_w("v100-sxm2-16gb", 4096, power_limit=f"{limit} W")
    idle_w = load_device("v100-sxm2-16gb").idle_power.value
    if limit >= free_w:
        assert (time_s, power_w) == (free_s, free_w)
    else:
        assert power_w == pytest.approx(limit)
        assert time_s == pytest.approx(free_s * (free_w - idle_w) / (limit - idle_w))


def test_measured_shares_hold_at_the_design_power() -> None:
    """By the energy table this product draws more than the 700 W that it was measured at."""
    free_s, free_w = drawn_w("h100-sxm5-80gb", 8192)
    assert free_w > 700
    assert drawn_w("h100-sxm5-80gb", 8192, power_limit="700 W")[0] == free_s
    assert drawn_w("h100-sxm5-80gb", 8192, power_limit="690 W")[0] > free_s


def test_a_step_says_that_its_clock_is_limited() -> None:
    model, plan = rl.load_model("resnet18"), rl.Plan(global_batch=32, precision="fp16-mixed")
    free, limited = (
        rl.simulate(model, rl.load_cluster("v100-sxm2-16gb", overrides=overrides), plan)
        for overrides in ({}, {"device.power_limit": "90 W"})
    )
    assert limited.step_time_s > free.step_time_s
    assert limited.energy_j["total"] / limited.step_time_s <= 90 * (1 + 1e-9)
    assert math.isclose(limited.energy_j["compute"], free.energy_j["compute"])
    assert limited.limits_s["power limit"] > 0
    assert "power limit" not in free.limits_s
    assert "clocks under power limits" in free.manifest["not_modelled"]
    assert "clocks under power limits" not in limited.manifest["not_modelled"]


def test_a_limit_below_idle_power_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"power_limit.*more than the idle power, 42.9 W"):
        load_device("v100-sxm2-16gb", {"power_limit": "30 W"})
