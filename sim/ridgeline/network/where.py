"""Topologies by whatever names them: inline text, a file, or a machine of the catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ridgeline.config import read_yaml
from ridgeline.errors import ConfigError
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
        New values by dotted path, of a cluster (`load_cluster`) or of a topology file.

    Raises
    ------
    RidgelineError
        If nothing is called that, a file cannot be understood, or fields are to be replaced of
        something that has none.
    """
    if is_inline(where):
        return _as_it_is(from_text(where), where, overrides)
    if Path(where).suffix in {".yaml", ".yml"} and Path(where).is_file():
        data = read_yaml(where).data
        if isinstance(data, dict) and data.get("kind") == "topology":
            from ridgeline.network.files import from_file

            return from_file(where, overrides)
        if isinstance(data, dict) and "npus_count" in data:
            from ridgeline.network.astrasim_files import read_network

            return _as_it_is(read_network(where), where, overrides)
    return load_cluster(where, overrides)


def _as_it_is(topology: Topology, where: str, overrides: Mapping[str, Any] | None) -> Topology:
    for path in overrides or {}:
        raise ConfigError(
            f"{where} has no fields to replace; write another one in its place", field=path
        )
    return topology
