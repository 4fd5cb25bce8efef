"""Resolve a network or cluster from inline text, a file, or a catalogue name.

Files are those of kind topology, of ASTRA-sim and its ns-3 backend, InfraGraph documents and
topology dumps of NCCL. A network becomes a cluster, on which steps are simulated, by the device
that is put on it: ``Ring(16, 50 GB/s, 500 ns) @ h100-sxm5-80gb``, a field of the file, or an
override `device`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline import catalog
from ridgeline.config import read_yaml
from ridgeline.errors import ConfigError
from ridgeline.hardware.cluster import Cluster
from ridgeline.hardware.device import Device
from ridgeline.hardware.load import load_cluster as load_machine
from ridgeline.hardware.load import load_device, network_cluster
from ridgeline.network.cluster_topology import from_cluster
from ridgeline.network.inline import from_text, is_inline
from ridgeline.network.topology import DEVICE, Topology

_YAML = (".yaml", ".yml")
_FORMATS = {".xml": "nccl", ".txt": "ns3"}
_MACHINE = ("device", "node", "device_speed_std", "software", "faults")
"""Fields of the cluster that a network becomes; others are those of its file."""


def topology_of(where: str | Cluster | Topology, n_devices: int | None = None) -> Topology:
    """Return the topology that `where` means.

    Parameters
    ----------
    where
        A topology, a cluster, inline text, the path of a file of a network, or the name or path of
        a cluster, node or device.
    n_devices
        Devices of a cluster that are drawn; all that it can have by default. Others are as they
        are.

    Raises
    ------
    RidgelineError
        If nothing is called that, or a file cannot be understood.
    """
    if isinstance(where, str):
        where = network_of(where)
    if isinstance(where, Cluster):
        return from_cluster(where, where.max_devices if n_devices is None else n_devices)
    return where


def network_of(where: str, overrides: Mapping[str, Any] | None = None) -> Topology | Cluster:
    """Return what inline text or a name means: a topology, or a cluster that can draw some.

    Parameters
    ----------
    where
        As of `topology_of`.
    overrides
        New values by dotted path, of a cluster (`load_cluster`) or of a topology file; `device`, of
        a file that leaves rates of links open, is whose they are.

    Raises
    ------
    RidgelineError
        If nothing is called that, a file cannot be understood, or fields are to be replaced of
        something that has none.
    """
    where, fields = _parted(where, overrides or {})
    device = fields.pop("device", "") if _is_network(where) else ""
    found = _drawn(where, str(device), fields)
    return load_machine(where, fields) if found is None else found


def load_cluster(name: str | Path, overrides: Mapping[str, Any] | None = None) -> Cluster:
    """Load a cluster by name, path or network. A node or a device is the cluster of that one thing.

    Parameters
    ----------
    name
        As of `topology_of`; of a network with its device, as in ``torus.yaml @ h100-sxm5-80gb``.
    overrides
        New values by dotted path: fields of the cluster, ``node.…`` of its nodes, ``device.…`` of
        their devices. Each has an ``energy_table.…`` of its own: of the fabric's links, of the
        node's links, of what happens in a device. Of a network, `device` names the devices, and
        paths that are neither of node nor of device are those of the network's file.

    Raises
    ------
    ConfigError
        With file, line and field of the first mistake, or if a network has no device.
    """
    where, fields = _parted(catalog.name_of(name, "cluster"), overrides or {})
    if not _is_network(where):
        return load_machine(where, fields)
    own = {path: value for path, value in fields.items() if path.split(".")[0] in _MACHINE}
    of_file = {path: value for path, value in fields.items() if path not in own}
    device = own.pop("device", own.pop("node.device", ""))
    if not isinstance(device, str):
        raise ConfigError(f"expected the name of a device, found {device!r}", field="device")
    topology = _drawn(where, device, of_file)
    assert topology is not None
    topology = _in_nodes(topology)
    names = (device,) * topology.n_devices if device else topology.device_names
    if not names:
        raise ConfigError(
            f"{where!r} is a network, which has no devices to compute on: name one (--device "
            "h100-sxm5-80gb, or cluster.device), or add the field device to a file of kind topology"
        )
    below = {path: own.pop(path) for path in list(own) if path.startswith("device.")}
    fields_of_device = {path.removeprefix("device."): value for path, value in below.items()}
    kinds = {each: _device(each, json.dumps(fields_of_device)) for each in dict.fromkeys(names)}
    devices = [kinds[each] for each in names]
    cluster = network_cluster(topology.name, topology, devices, _per_node(topology), own)
    return cluster.model_copy(
        update={"name": where if is_inline(where) else topology.name, "overrides": fields}
    )


def _parted(where: str, overrides: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Part ``WHERE @ DEVICE``; a device among the overrides counts before it."""
    name, at, device = where.rpartition("@")
    if not at or Path(where).exists():
        return where, dict(overrides)
    if not name.strip() or not device.strip():
        raise ConfigError(
            f"{where!r}: a network and a device stand about @, as in 'torus.yaml @ a40'"
        )
    return name.strip(), {"device": device.strip(), **overrides}


def _is_network(where: str) -> bool:
    """Tell whether something is a network, and no machine of the catalogue or file of one."""
    return is_inline(where) or _format(where) is not None


def _format(where: str) -> str | None:
    """Return the format of a network's file; None if it is none."""
    path = Path(where)
    try:
        if path.suffix not in {*_YAML, ".json", *_FORMATS} or not path.is_file():
            return None
    except OSError:
        return None
    if path.suffix in _FORMATS:
        from ridgeline.network.ns3_topology import is_ns3_topology

        is_one = path.suffix == ".xml" or is_ns3_topology(path)
        return _FORMATS[path.suffix] if is_one else None
    data = read_yaml(where).data
    from ridgeline.network.astrasim_files import is_network
    from ridgeline.network.infragraph import is_infragraph

    if isinstance(data, dict) and data.get("kind") == "topology":
        return "topology"
    if is_network(data):
        return "astrasim"
    return "infragraph" if is_infragraph(data) else None


def _drawn(where: str, device: str, fields: Mapping[str, Any]) -> Topology | None:
    """Return the topology of a network; None of what is none. The same is drawn once."""
    if not _is_network(where):
        return None
    try:
        there = Path(where).stat()
        state = (there.st_mtime_ns, there.st_size)
    except (OSError, ValueError):
        state = (0, 0)
    return _read(where, device, json.dumps(fields, sort_keys=True), state)


@lru_cache(maxsize=16)
def _read(where: str, device: str, fields: str, state: tuple[int, int]) -> Topology:
    """Read a network; points of a study share it, and so what is found of its links."""
    overrides = json.loads(fields)
    if is_inline(where):
        return _as_it_is(from_text(where), where, overrides)
    match _format(where):
        case "topology":
            from ridgeline.network.files import from_file

            return _in_nodes(from_file(where, overrides))
        case "astrasim":
            from ridgeline.network.astrasim_files import read_network

            return _as_it_is(read_network(where), where, overrides)
        case "ns3":
            from ridgeline.network.ns3_topology import read_ns3_topology

            return _as_it_is(read_ns3_topology(where).drawn(device), where, overrides)
        case "nccl":
            from ridgeline.network.nccl_topology import read_nccl_topology

            return _as_it_is(read_nccl_topology(where).drawn(device), where, overrides)
        case _:
            from ridgeline.network.infragraph import read_infragraph

            return _as_it_is(_in_nodes(read_infragraph(where).drawn(device)), where, overrides)


@lru_cache(maxsize=16)
def _device(name: str, fields: str) -> Device:
    """Load a device; equal ones are one."""
    return load_device(name, json.loads(fields))


@lru_cache(maxsize=16)
def _in_nodes(topology: Topology) -> Topology:
    """Return a topology whose devices are in nodes.

    They are in one where it does not tell nodes apart, or these have no NICs: then devices reach
    the fabric themselves, as all in one node do.
    """
    nodes = topology.node_of
    used = set(nodes[topology.devices].tolist())
    nics = {int(nodes[v]) for v, kind in enumerate(topology.vertex_kinds) if kind == "nic"}
    if -1 not in used and (len(used) == 1 or used <= nics):
        return topology
    nodes = np.where((nodes >= 0) | (np.array(topology.vertex_kinds) == DEVICE), 0, -1)
    one = nodes.astype(np.int32)
    one.setflags(write=False)
    return replace(topology, node_of=one)


def _per_node(topology: Topology) -> int:
    """Return how many devices a node has: one, where the network tells no nodes apart."""
    nodes = topology.node_of[topology.devices].tolist()
    counts = set(Counter(nodes).values())
    several = len(set(nodes)) > 1 and nodes == sorted(nodes)
    return counts.pop() if several and len(counts) == 1 else 1


def _as_it_is(topology: Topology, where: str, overrides: Mapping[str, Any]) -> Topology:
    for path in overrides:
        raise ConfigError(
            f"{where} has no fields to replace; write another one in its place", field=path
        )
    return topology
