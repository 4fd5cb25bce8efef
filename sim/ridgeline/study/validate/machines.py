"""The machine that a row of several devices was measured on (``names.yaml``, ``machines``)."""

from __future__ import annotations

from collections.abc import Mapping

from ridgeline.errors import RidgelineError
from ridgeline.study.validate.names import machines


def machine_of(
    device: str, devices: int, nodes: int | None, place: str = ""
) -> tuple[str, Mapping[str, str]]:
    """Return the catalogue's name of a machine with these devices, and what to replace in it.

    Parameters
    ----------
    place
        What the table calls the machine: some are known by it.

    Raises
    ------
    RidgelineError
        If no described machine is built of this device.
    """
    if devices == 1:
        return device, {}
    known = [
        machine
        for machine in machines()
        if device in machine.devices and machine.place in place.lower()
    ]
    for machine in known:
        if devices <= machine.in_node and (nodes or 1) == 1:
            return machine.node, {"node.device": device}
        if machine.cluster is not None and not (
            nodes == 1 and any(devices <= other.in_node for other in known)
        ):
            return machine.cluster, {"node.device": device}
    raise RidgelineError(f"no description of a machine with {devices} of the device {device}")
