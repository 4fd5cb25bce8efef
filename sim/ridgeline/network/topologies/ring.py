"""``Ring(devices, bandwidth, latency)``: each device is linked with its two neighbours."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.network.topology import DEVICE, INLINE, Drawing, Topology, read_inline


@INLINE.register("Ring")
def ring(arguments: Sequence[str]) -> Topology:
    """Make a ring; two devices are joined by one link, a single one has none."""
    n, link = read_inline("Ring", arguments)
    drawing = Drawing()
    devices = [drawing.vertex(f"device{i}", DEVICE, node=0) for i in range(n)]
    pairs = {frozenset((i, (i + 1) % n)) for i in range(n)} if n > 1 else set()
    for a, b in pairs:
        drawing.join(a, b, link)
    return drawing.finish(f"Ring({', '.join(arguments)})", devices, single_channel=True)
