"""``Ring(devices, bandwidth, latency)``: each device is linked with its two neighbours."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.network.inline import BLOCKS, Blocks, dimensions, read_inline
from ridgeline.network.topology import LinkKind, TopologyBuilder


@BLOCKS.register("Ring")
def ring_block(drawing: TopologyBuilder, members: Sequence[int], link: LinkKind) -> float:
    """Join vertices to a ring; two are joined by one link, a single one has none."""
    n = len(members)
    pairs = {frozenset((i, (i + 1) % n)) for i in range(n)} if n > 1 else set()
    for a, b in sorted(map(sorted, pairs)):
        drawing.join(members[a], members[b], link)
    return min(2, n - 1)


@dimensions("Ring")
def ring(arguments: Sequence[str]) -> Blocks:
    """Read the one dimension of a ring."""
    return [("Ring", *read_inline("Ring", arguments))]
