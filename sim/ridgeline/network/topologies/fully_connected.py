"""``FullyConnected(devices, bandwidth, latency)``: a link between any two devices."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from ridgeline.network.inline import BLOCKS, Blocks, dimensions, read_inline
from ridgeline.network.topology import LinkKind, TopologyBuilder


@BLOCKS.register("FullyConnected")
def fully_connected_block(
    drawing: TopologyBuilder, members: Sequence[int], link: LinkKind
) -> float:
    """Join any two vertices."""
    for a, b in combinations(members, 2):
        drawing.join(a, b, link)
    half = len(members) // 2
    return half * (len(members) - half)


@dimensions("FullyConnected")
def fully_connected(arguments: Sequence[str]) -> Blocks:
    """Read the one dimension of a complete graph."""
    return [("FullyConnected", *read_inline("FullyConnected", arguments))]
