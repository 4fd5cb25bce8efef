"""Parts with a size: energy, area, leakage and latency of what a device is built from.

A component is a data file in ``hwconfigs/components/`` with published points or fits. `component`
evaluates it for a capacity, width, ports, node and voltage; a device's file names it at a memory
level or an engine (`hardware.components.design`), and its area and power follow.
"""

from ridgeline.hardware.components.estimate import ComponentEstimate, component, load_component
from ridgeline.hardware.components.scaling import ScaledValue, scale_node
from ridgeline.hardware.components.schema import Component, ComponentUse

__all__ = [
    "Component",
    "ComponentEstimate",
    "ComponentUse",
    "ScaledValue",
    "component",
    "load_component",
    "scale_node",
]
