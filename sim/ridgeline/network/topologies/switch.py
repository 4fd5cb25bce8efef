"""``Switch(devices, bandwidth, latency)``: each device has one link to one ideal switch."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.network.inline import BLOCKS, INLINE, product_of, read_inline
from ridgeline.network.topology import Drawing, LinkKind, Topology


@BLOCKS.register("Switch")
def switch_block(drawing: Drawing, members: Sequence[int], link: LinkKind) -> float:
    """Join vertices by a switch; a message passes two links, so it takes 2 latencies."""
    centre = drawing.vertex(f"switch{len(drawing.names)}", "switch", node=0)
    for member in members:
        drawing.join(member, centre, link)
    return len(members) // 2


@INLINE.register("Switch")
def switch(arguments: Sequence[str]) -> Topology:
    """Make a star."""
    n, link = read_inline("Switch", arguments)
    return product_of(f"Switch({', '.join(arguments)})", [("Switch", n, link)])
