"""Network adapters of a node: how fast it reads from and writes to what is elsewhere."""

from __future__ import annotations

from ridgeline.errors import RidgelineError
from ridgeline.hardware.cluster import Cluster


def adapter_rate(cluster: Cluster) -> float:
    """Return the rate at which one node sends by all its network adapters, in bytes a second.

    Raises
    ------
    RidgelineError
        If the cluster has one node.
    """
    if cluster.fabric is None:
        raise RidgelineError(f"{cluster.name} has one node, so no network")
    link = cluster.link_types[cluster.fabric.link]
    return len(cluster.nodes.nics) * link.bandwidth.value * link.achievable.value
