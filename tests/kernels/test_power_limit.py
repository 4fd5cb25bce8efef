"""The clock under a power limit: what is drawn, and what a limit never does."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ridgeline as rl
from ridgeline import catalog
from ridgeline.errors import ConfigError
from ridgeline.hardware import load_device
from ridgeline.kernels.cost import peak_rates
from ridgeline.kernels.power_capped_clock import PowerLimit
from ridgeline.kernels.single_op import gemm
from thoroughly import sample_of

LIMITED = sorted(
    name for name in catalog.names("devices") if load_device(name).voltage_floor is not None
)


def drawn_w(name: str, size: int, format: str | None = None, **fields: Any) -> tuple[float, float]:
    """Seconds and watts of one product on a device, some of its fields replaced."""
    found = gemm(size, size, size, device=load_device(name, fields), format=format)
    return found.time_s, found.energy_j["total"] / found.time_s


@pytest.mark.parametrize("name", ["v100-sxm2-16gb", "tpu-v2", "eyeriss", "ipu-gc2", "lap-sp"])
def test_without_a_limit_and_with_one_that_is_not_reached_nothing_changes(name: str) -> None:
    free = drawn_w(name, 512)
    assert drawn_w(name, 512, power_limit="5 kW") == free


@sample_of(
    7,
    25,
    size=st.sampled_from([96, 512, 2048, 8192]),
    watts=st.lists(st.floats(45, 320), min_size=2, max_size=4),
    name=st.sampled_from(["v100-sxm2-16gb", "tpu-v2", "l4"]),
)
def test_less_power_is_never_faster(size: int, watts: list[float], name: str) -> None:
    limits = sorted(watts)
    times = [drawn_w(name, size, power_limit=f"{50 + limit} W")[0] for limit in limits]
    assert times == sorted(times, reverse=True)
    assert times[-1] >= drawn_w(name, size, power_limit="5 kW")[0]


@sample_of(4, 15, limit=st.floats(60, 240))
def test_what_is_drawn_is_the_limit_where_it_is_reached(limit: float) -> None:
    """At one voltage the time is the energy of the events over what the limit leaves to them."""
    fixed: dict[str, Any] = {"voltage_floor.value": 1.0}
    device = load_device("v100-sxm2-16gb", {**fixed, "power_limit": "10 kW"})
    cost, rates = gemm(4096, 4096, 4096, device=device).priced.cost, peak_rates(device)
    free_s, free_w = drawn_w("v100-sxm2-16gb", 4096, **fixed)
    time_s, power_w = drawn_w("v100-sxm2-16gb", 4096, power_limit=f"{limit} W", **fixed)
    idle_w = device.idle_power.value
    if limit >= free_w:
        assert (time_s, power_w) == (free_s, free_w)
    else:
        # the tile that is fastest at full clock; another one may be faster, and draw less
        expected_s = free_s * (free_w - idle_w) / (limit - idle_w)
        within = load_device("v100-sxm2-16gb", {**fixed, "power_limit": f"{limit} W"})
        of_this_tile = PowerLimit(within, rates).limited(cost)
        assert of_this_tile.spans(rates).time_s == pytest.approx(expected_s)
        assert time_s <= expected_s * (1 + 1e-9)
        assert power_w <= limit * (1 + 1e-9)


@sample_of(
    7,
    25,
    limit=st.floats(25, 60),
    floor=st.floats(0.3, 1.0),
    size=st.sampled_from([256, 1024, 4096]),
)
def test_the_clock_is_the_highest_that_the_limit_allows(
    limit: float, floor: float, size: int
) -> None:
    """Against all clocks of a fine grid: time and power of an op, by the definitions."""
    stated = {"voltage_floor.value": floor}
    device = load_device("l4", {**stated, "power_limit": "10 kW"})
    free = gemm(size, size, size, device=device, format="fp32")
    cost = free.priced.cost
    rates = peak_rates(device)
    spans, idle_w = cost.spans(rates), device.idle_power.value
    far_s = spans.memory_s[device.far_memory]
    near_s = max(spans.compute_s, *(s for n, s in spans.memory_s.items() if n != device.far_memory))
    far_j = free.level_energy_j[device.far_memory]
    near_j = free.energy_j["total"] - free.energy_j["static"] - far_j
    parts, steady_s = cost.overlap, cost.latency_s - cost.waiting_s
    assert parts is not None

    def together_s(clock: float) -> float:
        each = [parts.arithmetic_s / clock, parts.near_s / clock, parts.far_s, parts.reread_s]
        return math.fsum(s**parts.exponent for s in each) ** (1 / parts.exponent)

    allowed = [
        time_s
        for clock in np.linspace(1.0, 0.002, 20_000).tolist()
        for time_s in [steady_s + max(near_s / clock, far_s, together_s(clock))]
        if idle_w + (near_j * max(floor, clock) ** 2 + far_j) / time_s <= limit
    ]
    within = load_device("l4", {**stated, "power_limit": f"{limit} W"})
    of_this_tile = PowerLimit(within, rates).limited(cost).spans(rates).time_s
    assert of_this_tile == pytest.approx(min(allowed), rel=2e-2)  # the grid is coarse at low clocks
    assert of_this_tile <= min(allowed) * (1 + 1e-9)
    time_s, power_w = drawn_w("l4", size, format="fp32", **stated, power_limit=f"{limit} W")
    assert power_w <= limit * (1 + 1e-9)
    assert time_s <= of_this_tile * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(LIMITED),
    sizes=st.tuples(*(st.integers(1, 5000),) * 3),
    format_=st.sampled_from(["fp32", "fp16"]),
)
def test_no_board_draws_more_than_its_limit(
    name: str, sizes: tuple[int, int, int], format_: str
) -> None:
    device = load_device(name)
    assert device.board_limit is not None
    found = gemm(*sizes, device=device, format=format_)
    assert found.energy_j["total"] <= device.board_limit.value * found.time_s * (1 + 1e-9)
    assert min(found.energy_j.values()) >= 0.0


def test_a_ledger_has_what_a_lower_voltage_saves() -> None:
    """Joules by component are those of the rows, and no step of a board is above its limit."""
    model, plan = rl.load_model("resnet18"), rl.Plan(global_batch=64, precision="fp32")
    found = rl.simulate(model, rl.load_cluster("l4"), plan)
    rows = [row for row in found.ledger().entries if row.place == "lower voltage"]
    assert rows
    assert all(row.unit == "J" and row.energy_j == -row.amount < 0 for row in rows)
    for component, joules in found.energy_j.items():
        if component != "total":
            of_rows = [r.energy_j for r in found.ledger().entries if r.component == component]
            assert math.fsum(of_rows) == pytest.approx(joules, rel=1e-9)
    assert found.energy_j["total"] / found.step_time_s <= 72 * (1 + 1e-9)


def test_measured_shares_hold_at_the_design_power() -> None:
    """By the energy table this product would draw more than a design power of 500 W."""
    free_s, free_w = drawn_w("h100-sxm5-80gb", 8192, tdp="500 W")
    assert free_w == pytest.approx(500)
    assert drawn_w("h100-sxm5-80gb", 8192, tdp="500 W", power_limit="500 W")[0] == free_s
    assert drawn_w("h100-sxm5-80gb", 8192, tdp="500 W", power_limit="490 W")[0] > free_s


def test_a_step_says_that_its_clock_is_limited() -> None:
    model, plan = rl.load_model("resnet18"), rl.Plan(global_batch=32, precision="fp16-mixed")
    free, limited = (
        rl.simulate(model, rl.load_cluster("v100-sxm2-16gb", overrides=overrides), plan)
        for overrides in ({}, {"device.power_limit": "90 W"})
    )
    assert limited.step_time_s > free.step_time_s
    assert limited.energy_j["total"] / limited.step_time_s <= 90 * (1 + 1e-9)
    assert limited.energy_j["compute"] < free.energy_j["compute"]
    assert limited.limits_s["power limit"] > 0
    assert "power limit" not in free.limits_s
    assert "clocks under power limits" not in free.manifest["not_modelled"]
    assert "clocks under power limits" not in limited.manifest["not_modelled"]


def test_a_limit_below_idle_power_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"power_limit.*more than the idle power, 36 W"):
        load_device("v100-sxm2-16gb", {"power_limit": "30 W"})


BETTER = {
    "engines.tensor-cores.rates.fp16.value": ("FLOP/s", 1.0),
    "memory.hbm.bandwidth.value": ("B/s", 1.0),
    "memory.l2.bandwidth.value": ("B/s", 1.0),
    "idle_power.value": ("W", -1.0),
}
"""Data-sheet values of a device with their units, and whether more (1) or less (-1) is better."""


@sample_of(
    7,
    25,
    size=st.sampled_from([256, 1024, 4096]),
    factors=st.dictionaries(st.sampled_from(sorted(BETTER)), st.floats(1.0, 2.0), min_size=1),
    name=st.sampled_from(["v100-sxm2-16gb", "h100-sxm5-80gb"]),
)
def test_a_better_device_never_takes_more_energy(
    size: int, factors: dict[str, float], name: str
) -> None:
    plain = load_device(name)
    fields = {}
    for path, factor in factors.items():
        found: Any = plain
        for part in path.split("."):
            found = found[part] if isinstance(found, dict) else getattr(found, part)
        unit, better = BETTER[path]
        fields[path] = f"{found * factor**better} {unit}"
    before, after = (
        gemm(size, size, size, device=load_device(name, some), format="fp16")
        for some in ({}, fields)
    )
    assert after.time_s <= before.time_s * (1 + 1e-9)
    assert after.energy_j["total"] <= before.energy_j["total"] * (1 + 1e-9)
