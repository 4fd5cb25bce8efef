"""Network families: each is a schema of ``models/*.yaml`` that builds a forward graph.

A new family is one file here and its class in `FAMILIES`.
"""

from collections.abc import Mapping
from types import MappingProxyType

from ridgeline.workload.families.base import Network
from ridgeline.workload.families.mlp import Mlp
from ridgeline.workload.families.resnet import ResNet
from ridgeline.workload.families.sequential import Sequential

FAMILIES: Mapping[str, type[Network]] = MappingProxyType(
    {"mlp": Mlp, "resnet": ResNet, "sequential": Sequential}
)

__all__ = ["FAMILIES", "Network"]
