"""Topologies by whatever names them: inline text, a file, or a machine of the catalogue."""

from __future__ import annotations

from pathlib import Path

from ridgeline.config import read_yaml
from ridgeline.hardware.cluster import Cluster
from ridgeline.hardware.load import load_cluster
from ridgeline.network.inline import from_text, is_inline
from ridgeline.network.topology import Topology, from_cluster


def topology_of(where: str | Cluster | Topology, n_devices: int | None = None) -> Topology:
    """Return the topology that `where` means.

    Parameters
    ----------
    where
        A topology, a cluster, inline text, the path of a topology file or of an ASTRA-sim network
        file, or the name or path of a cluster, node or device.
    n_devices
        Devices of a cluster that are drawn; all that it can have by default. Others are as they
        are.

    Raises
    ------
    RidgelineError
        If nothing is called that, or a file cannot be understood.
    """
    if isinstance(where, str):
        where = from_text(where) if is_inline(where) else _named(where)
    if isinstance(where, Cluster):
        return from_cluster(where, where.max_devices if n_devices is None else n_devices)
    return where


def _named(where: str) -> Topology | Cluster:
    if Path(where).suffix in {".yaml", ".yml"} and Path(where).is_file():
        data = read_yaml(where).data
        if isinstance(data, dict) and data.get("kind") == "topology":
            from ridgeline.network.files import from_file

            return from_file(where)
        if isinstance(data, dict) and "npus_count" in data:
            from ridgeline.network.astrasim_files import read_network

            return read_network(where)
    return load_cluster(where)
