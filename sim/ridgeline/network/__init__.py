"""Topologies, routes, traffic and collectives.

Names are imported when they are first used: a step that needs one schedule loads neither the
search for rings nor the packet-level simulator.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ridgeline.network.cluster_topology import from_cluster
    from ridgeline.network.collectives import CollectiveResult, collective
    from ridgeline.network.inline import from_text
    from ridgeline.network.packets import PacketNetwork, play_packets
    from ridgeline.network.schedule import CollectiveSchedule
    from ridgeline.network.topology import Topology
    from ridgeline.network.traffic import Flows, flow_times

_HOME = {
    "CollectiveResult": "collectives",
    "Flows": "traffic",
    "PacketNetwork": "packets",
    "CollectiveSchedule": "schedule",
    "Topology": "topology",
    "collective": "collectives",
    "flow_times": "traffic",
    "from_cluster": "cluster_topology",
    "from_text": "inline",
    "play_packets": "packets",
}

__all__ = [
    "CollectiveResult",
    "CollectiveSchedule",
    "Flows",
    "PacketNetwork",
    "Topology",
    "collective",
    "flow_times",
    "from_cluster",
    "from_text",
    "play_packets",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
