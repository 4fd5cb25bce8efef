"""Mean power of devices and nodes over a step: ledger, power limit, host, power supplies.

A device draws what the ledger counts, and no more than its limit: the clock gives way, which the
step time shows where the device states its `voltage_floor` or a `power_limit` (`kernels.clock`).
The rest of a node is known from two anchors, both as shares of what the maker's maximum leaves to
it (``host.power``: the system's maximum less the devices' design power):

- at full load 0.63: a node of eight H100 whose devices are kept at 700 W draws 8.48 kW (GPU-burn,
  Latif et al., "Single-node power demand during AI training", IEEE Access 13, 2025,
  arXiv:2412.08602) where its maker's maximum is 10.2 kW, so 2.88 of 4.6 kW;
- at rest 0.36: idle nodes of eight H100 draw 2.1 to 2.3 kW (power logs of MLPerf Training v4.0,
  before the runs), 1.64 kW of it outside of the devices.

Between them it rises with the power of the devices, whose heat the fans remove.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ridgeline.errors import RidgelineError
from ridgeline.hardware.device import Device
from ridgeline.hardware.node import Node

if TYPE_CHECKING:
    from ridgeline.report.result import Result

HOST_BUSY, HOST_IDLE = 0.63, 0.36
SUPPLY = 0.96
"""Share of the power from the wall that comes out of the supplies: 80 PLUS Titanium at half load,
230 V, redundant (Program Details, CLEAResult)."""


@dataclass(frozen=True)
class NodePower:
    """Mean power over a step, in watts, of one node from the wall.

    Attributes
    ----------
    devices_w
        Of all devices of the node together.
    host_w
        Of everything else: processors, memory, switches, network cards, fans, losses of supplies.
    """

    devices_w: float
    host_w: float

    @property
    def wall_w(self) -> float:
        """What the node draws from the wall."""
        return self.devices_w + self.host_w

    @property
    def supplied_w(self) -> float:
        """What comes out of its power supplies."""
        return SUPPLY * self.wall_w


def device_power_w(result: Result, limit_w: float | None = None) -> float:
    """Return the mean power of a device over the step.

    Parameters
    ----------
    limit_w
        Power limit that is set; by default the device's own, or its design power.
    """
    device = result.details.cluster.device
    if limit_w is None:
        limit = device.board_limit or device.tdp
        limit_w = None if limit is None else limit.value
    drawn_w = result.energy_j["total"] / result.step_time_s / result.details.plan.devices
    return drawn_w if limit_w is None else min(drawn_w, limit_w)


def node_power(result: Result) -> NodePower:
    """Return the mean power of the fullest node; its devices that the plan leaves out are idle.

    Raises
    ------
    RidgelineError
        If the node's file does not state the power of its host, or the device's no design power.
    """
    node = result.details.cluster.nodes
    busy = min(result.details.plan.devices, node.count)
    devices_w = busy * device_power_w(result) + (node.count - busy) * node.devices.idle_power.value
    return NodePower(devices_w, _host_w(node, devices_w / node.count))


def _host_w(node: Node, device_w: float) -> float:
    device: Device = node.devices
    if node.host.power is None or device.tdp is None:
        raise RidgelineError(
            f"{node.name} does not state the power of its host (host.power), or {device.name} its"
            " design power (tdp)"
        )
    idle_w, full_w = device.idle_power.value, device.tdp.value
    load = min(max((device_w - idle_w) / (full_w - idle_w), 0.0), 1.0)
    return node.host.power.value * (HOST_IDLE + (HOST_BUSY - HOST_IDLE) * load)
