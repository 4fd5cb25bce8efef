"""``Switch(devices, bandwidth, latency)``: each device has one link to one ideal switch."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.network.topology import DEVICE, INLINE, Drawing, Topology, read_inline


@INLINE.register("Switch")
def switch(arguments: Sequence[str]) -> Topology:
    """Make a star; a message from device to device passes two links, so it takes 2 latencies."""
    n, link = read_inline("Switch", arguments)
    drawing = Drawing()
    devices = [drawing.vertex(f"device{i}", DEVICE, node=0) for i in range(n)]
    centre = drawing.vertex("switch", "switch", node=0)
    for device in devices:
        drawing.join(device, centre, link)
    return drawing.finish(f"Switch({', '.join(arguments)})", devices, single_channel=True)
