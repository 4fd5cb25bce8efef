"""Power of devices and nodes: the ledger, the limit, parts, fans and supplies of a node."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ridgeline.errors import RidgelineError
from ridgeline.hardware.node_power import Fans, NodeParts, PowerSupplies
from ridgeline.report.power import (
    device_power_w,
    facility_power_w,
    idle_node_power,
    node_power,
    run_node_power_w,
)
from ridgeline.report.power_track import power_track
from ridgeline.report.result import Result


def drawing(result: Result, watts: float) -> Result:
    """The same step at another mean power of a device."""
    joules = watts * result.step_time_s * result.details.plan.devices
    return replace(result, energy_j={"static": joules, "total": joules})


def test_a_device_draws_the_ledger_up_to_its_limit(result: Result) -> None:
    drawn = result.energy_j["total"] / result.step_time_s / 8
    assert device_power_w(result, limit_w=1e6) == pytest.approx(drawn)
    assert device_power_w(result, limit_w=drawn / 2) == drawn / 2
    tdp = result.details.cluster.device.tdp
    assert tdp is not None
    assert device_power_w(drawing(result, 1e6)) == tdp.value


def test_a_node_is_the_sum_of_its_parts_and_the_losses_of_its_supplies(result: Result) -> None:
    device, node = result.details.cluster.device, result.details.cluster.nodes
    assert device.tdp is not None
    assert node.power is not None
    idle = node_power(drawing(result, device.idle_power.value))
    full = node_power(drawing(result, device.tdp.value))
    assert full.devices_w == 8 * device.tdp.value
    assert full.parts_w["fans"] > idle.parts_w["fans"]
    assert full.parts_w["processors"] == idle.parts_w["processors"]  # both while a job runs
    for power in (idle, full):
        values = power.to_dict()
        total_w = values.pop("total")
        assert sum(values.values()) == pytest.approx(total_w) == pytest.approx(power.wall_w)
        assert power.wall_w > power.supplied_w > power.devices_w


def test_idle_phases_of_a_run_draw_what_an_idle_node_draws(result: Result) -> None:
    node = result.details.cluster.nodes
    busy_w, idle_w = node_power(result).wall_w, idle_node_power(node).wall_w
    assert idle_w < busy_w
    assert run_node_power_w(result, 3.0, 0.0) == pytest.approx(busy_w)
    assert run_node_power_w(result, 3.0, 1.0) == pytest.approx((3 * busy_w + idle_w) / 4)
    with pytest.raises(RidgelineError, match="no run"):
        run_node_power_w(result, 0.0, 0.0)


def test_a_building_takes_its_pue_times_the_nodes(result: Result) -> None:
    cluster = result.details.cluster
    assert facility_power_w(result) == pytest.approx(node_power(result).wall_w)
    pue = cluster.pue.model_copy(update={"value": 1.25})
    details = replace(result.details, cluster=cluster.model_copy(update={"pue": pue}))
    warm = replace(result, details=details)
    assert facility_power_w(warm) == pytest.approx(1.25 * node_power(result).wall_w)
    assert "of the facility, PUE 1.25" in warm.summary(verbose=True)


@given(st.lists(st.floats(0.5, 0.99), min_size=1, max_size=4), st.floats(1.0, 2e4))
def test_supplies_lose_what_their_curve_says(shares: list[float], output_w: float) -> None:
    loads = [(1 + number) / len(shares) for number in range(len(shares))]
    curve = [{"load": a, "efficiency": b} for a, b in zip(loads, shares, strict=True)]
    supplies = PowerSupplies.model_validate({"count": 2, "rated": "5 kW", "curve": curve})
    efficiency = output_w / supplies.input_w(output_w)
    assert efficiency == pytest.approx(np.interp(output_w / 1e4, loads, shares))


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_fans_draw_the_cube_of_their_speed(heat: float, least: float) -> None:
    fans = Fans.model_validate({"count": 3, "power": "10 W", "least_speed": least})
    assert fans.power_w(heat) == pytest.approx(30 * max(heat, least) ** 3)
    assert fans.power_w(heat) <= fans.power_w(1.0) == pytest.approx(30)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("parts", [{"name": "a", "idle": "1 W", "load": "2 W"}] * 2, "same name"),
        ("fans", {"power": "1 W", "least_speed": 2.0}, "share from 0 to 1"),
        ("supplies", {"rated": "1 W", "curve": [{"load": 0.5, "efficiency": 1.2}]}, "at most 1"),
        (
            "supplies",
            {"rated": "1 W", "curve": [{"load": load, "efficiency": 0.9} for load in (0.5, 0.2)]},
            "must rise",
        ),
    ],
)
def test_powers_that_cannot_be_are_refused(field: str, value: object, says: str) -> None:
    parts = [{"name": "board", "idle": "1 W", "load": "2 W"}]
    with pytest.raises(ValidationError, match=says):
        NodeParts.model_validate({"parts": parts, field: value})


def test_devices_that_the_plan_leaves_out_are_idle(single: Result) -> None:
    device = single.details.cluster.device
    power = node_power(single)
    idle_w = device.idle_power.value
    assert power.devices_w == pytest.approx(device_power_w(single) + 7 * idle_w)


def test_a_node_that_states_no_host_has_no_power(toy: Result) -> None:
    with pytest.raises(RidgelineError, match=r"power of its parts"):
        node_power(toy)


def test_the_power_track_integrates_to_the_energy_of_the_ledger(any_result: Result) -> None:
    details = any_result.details
    idle_w = details.cluster.device.idle_power.value
    track = power_track(details.timeline, idle_w, details.plan.devices)
    assert track.energy_j == pytest.approx(any_result.energy_j["total"], rel=1e-9)
    assert track.times_s[-1] == details.timeline.makespan_s
    assert (track.power_w >= idle_w * details.plan.devices * (1 - 1e-9)).all()
    drawn = any_result.plot("power")
    (mean,) = (line for line in drawn.lines if line.get_gid() == "mean")
    mean_w = track.energy_j / any_result.step_time_s / details.plan.devices
    assert list(mean.get_ydata()) == pytest.approx([mean_w, mean_w])
