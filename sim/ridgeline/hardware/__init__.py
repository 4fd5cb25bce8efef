"""What the machine is: devices, nodes, clusters and energy tables, read from ``hwconfigs/``."""

from ridgeline.hardware.cluster import Cluster
from ridgeline.hardware.device import Device
from ridgeline.hardware.energy import EnergyTable
from ridgeline.hardware.load import load_cluster, load_device, load_energy_table, load_node
from ridgeline.hardware.node import Node

__all__ = [
    "Cluster",
    "Device",
    "EnergyTable",
    "Node",
    "load_cluster",
    "load_device",
    "load_energy_table",
    "load_node",
]
