"""Topologies, routes and collectives."""

from ridgeline.network.collectives import CollectiveResult, Schedule, collective
from ridgeline.network.inline import from_text
from ridgeline.network.topology import Topology, from_cluster

__all__ = [
    "CollectiveResult",
    "Schedule",
    "Topology",
    "collective",
    "from_cluster",
    "from_text",
]
