"""Mean power of devices, nodes and a facility over a step.

A device draws what the ledger counts, and no more than its limit: the clock gives way, which the
step time shows where the device states its `voltage_floor` or a `power_limit`
(`kernels.power_capped_clock`).
The rest of a node is the sum of its parts (`hardware.node_power`): processors, memory, switches,
adapters and drives that draw more while a job runs, fans whose speed follows the heat, and what the
power supplies lose at their load. A facility multiplies that by the cluster's ``pue``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import fsum
from typing import TYPE_CHECKING

from ridgeline.errors import RidgelineError
from ridgeline.hardware.node import Node
from ridgeline.hardware.node_power import NodeParts

if TYPE_CHECKING:
    from ridgeline.report.result import Result

DEVICES, SUPPLIES = "devices", "power supplies"


@dataclass(frozen=True)
class NodePower:
    """Mean power of one node, in watts.

    Attributes
    ----------
    devices_w
        Of all devices of the node together.
    parts_w
        Of everything else behind the supplies, by part.
    wall_w
        What the node draws from the wall.
    """

    devices_w: float
    parts_w: Mapping[str, float]
    wall_w: float

    @property
    def supplied_w(self) -> float:
        """What comes out of its power supplies."""
        return fsum((self.devices_w, *self.parts_w.values()))

    def to_dict(self) -> dict[str, float]:
        """Return the power by part; the parts sum to ``total``, which is drawn from the wall."""
        losses_w = self.wall_w - self.supplied_w
        return {DEVICES: self.devices_w, **self.parts_w, SUPPLIES: losses_w, "total": self.wall_w}


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
        If the node's file does not state its parts, or the device's no design power.
    """
    node = result.details.cluster.nodes
    busy = min(result.details.plan.devices, node.count)
    devices_w = busy * device_power_w(result) + (node.count - busy) * node.devices.idle_power.value
    return _node(node, devices_w, working=True)


def idle_node_power(node: Node) -> NodePower:
    """Return the power of a node that is switched on while no job runs.

    Raises
    ------
    RidgelineError
        See `node_power`.
    """
    return _node(node, node.count * node.devices.idle_power.value, working=False)


def run_node_power_w(result: Result, step_s: float, idle_s: float) -> float:
    """Mean power of a node from the wall over a run of steps and idle phases.

    Idle phases are those in which no kernel runs: start, evaluation on the host, checkpoints.

    Parameters
    ----------
    step_s, idle_s
        Time of all steps together, and of all idle phases.

    Raises
    ------
    RidgelineError
        See `node_power`, and if a time is below zero or both are zero.
    """
    if step_s < 0 or idle_s < 0 or not step_s + idle_s:
        raise RidgelineError(f"steps of {step_s:g} s and idle phases of {idle_s:g} s are no run")
    busy_j = step_s * node_power(result).wall_w
    idle_j = idle_s * idle_node_power(result.details.cluster.nodes).wall_w
    return (busy_j + idle_j) / (step_s + idle_s)


def facility_power_w(result: Result) -> float:
    """Return the mean power of all nodes in use, with the cooling and feeding of the building.

    Raises
    ------
    RidgelineError
        See `node_power`.
    """
    cluster = result.details.cluster
    nodes = -(-result.details.plan.devices // cluster.nodes.count)
    return nodes * node_power(result).wall_w * cluster.pue.value


def stated_node_power(result: Result) -> dict[str, float] | None:
    """Return the power of a node by part, or None where its parts are not stated."""
    try:
        return node_power(result).to_dict()
    except RidgelineError:
        return None


def _node(node: Node, devices_w: float, *, working: bool) -> NodePower:
    parts, tdp = _parts(node), node.devices.tdp
    if tdp is None:
        raise RidgelineError(f"{node.devices.name} does not state its design power (tdp)")
    idle_w, full_w = (node.count * w for w in (node.devices.idle_power.value, tdp.value))
    parts_w = parts.parts_w(devices_w, idle_w, full_w, working=working)
    return NodePower(devices_w, parts_w, parts.wall_w(fsum((devices_w, *parts_w.values()))))


def _parts(node: Node) -> NodeParts:
    if node.power is None:
        raise RidgelineError(f"{node.name} does not state the power of its parts (power)")
    return node.power
