"""The machine that a row of several devices was measured on (``names.yaml``, ``machines``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ridgeline.errors import RidgelineError
from ridgeline.hardware.load import load_cluster
from ridgeline.study.import_rows.rules import section


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
        for machine in section("machines")
        if device in machine["devices"]
        and machine.get("place", "") in place.lower()
        and devices <= (machine.get("most") or devices)
    ]
    for machine in known:
        if devices <= machine["in_node"] and (nodes or 1) == 1:
            return machine["node"], {"node.device": device}
        if machine.get("cluster") is not None and not (
            nodes == 1 and any(devices <= other["in_node"] for other in known)
        ):
            return machine["cluster"], {"node.device": device}
    raise RidgelineError(f"no description of a machine with {devices} of the device {device}")


def in_slices(name: str, slices: int, devices: int, tensor: int) -> dict[str, Any]:
    """Return what makes a pod one that is cut into slices of so many devices, as JAX lays ranks.

    A dimension of a mesh lies along one of the torus that has its extent (jax, mesh_utils.py,
    create_device_mesh): tensor-parallel devices, which are neighbours, along the first. Several
    slices are joined by the data-centre network, the link type "dcn" of the pod's description.
    """
    cluster = load_cluster(name)
    fabric = cluster.fabric
    if fabric is None or not fabric.cube or fabric.between:
        return {}
    shape = sorted(fabric.slice_of(devices // cluster.nodes.count), key=lambda n: n != tensor)
    joined = {"fabric.between": "dcn", "fabric.routing": "slices"} if slices > 1 else {}
    return {"fabric.shape": shape, **joined}
