"""``Switch(devices, bandwidth, latency)``: each device has one link to one ideal switch."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.network.inline import BLOCKS, Blocks, dimensions, read_inline
from ridgeline.network.topology import LinkKind, TopologyBuilder


@BLOCKS.register("Switch")
def switch_block(drawing: TopologyBuilder, members: Sequence[int], link: LinkKind) -> float:
    """Join vertices by a switch; a message passes two links, so it takes 2 latencies."""
    centre = drawing.vertex(f"switch{len(drawing.names)}", "switch", node=0)
    for member in members:
        drawing.join(member, centre, link)
    return len(members) // 2


@dimensions("Switch")
def switch(arguments: Sequence[str]) -> Blocks:
    """Read the one dimension of a star."""
    return [("Switch", *read_inline("Switch", arguments))]
