"""Power of devices and nodes: the ledger, the limit, the host between its two anchors."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ridgeline.errors import RidgelineError
from ridgeline.report.power import HOST_BUSY, HOST_IDLE, SUPPLY, device_power_w, node_power
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


def test_the_host_is_between_its_anchors_and_rises_with_the_devices(result: Result) -> None:
    device, node = result.details.cluster.device, result.details.cluster.nodes
    assert device.tdp is not None
    assert node.host.power is not None
    idle = node_power(drawing(result, device.idle_power.value))
    full = node_power(drawing(result, device.tdp.value))
    half = node_power(drawing(result, (device.idle_power.value + device.tdp.value) / 2))
    assert idle.host_w == pytest.approx(HOST_IDLE * node.host.power.value)
    assert full.host_w == pytest.approx(HOST_BUSY * node.host.power.value)
    assert half.host_w == pytest.approx((idle.host_w + full.host_w) / 2)
    assert full.devices_w == 8 * device.tdp.value
    assert full.wall_w == full.devices_w + full.host_w
    assert full.supplied_w == SUPPLY * full.wall_w


def test_devices_that_the_plan_leaves_out_are_idle(single: Result) -> None:
    device = single.details.cluster.device
    power = node_power(single)
    idle_w = device.idle_power.value
    assert power.devices_w == pytest.approx(device_power_w(single) + 7 * idle_w)


def test_a_node_that_states_no_host_has_no_power(toy: Result) -> None:
    with pytest.raises(RidgelineError, match=r"host\.power"):
        node_power(toy)
