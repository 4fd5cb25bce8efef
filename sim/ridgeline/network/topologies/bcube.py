"""``BCube(n, levels, bandwidth, latency)``: servers with a port for each level, and no core.

Guo et al., "BCube: A High Performance, Server-centric Network Architecture for Modular Data
Centers", SIGCOMM 2009. BCube_k has n^(k+1) servers and k + 1 levels of n^k switches with n ports;
servers whose numbers, written in base n, differ in digit i share a switch of level i and pass on
messages of others. Diameter: one switch, two links, for each digit.
"""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.errors import ConfigError
from ridgeline.network.inline import INLINE, read_link
from ridgeline.network.topologies.switch import switch_block
from ridgeline.network.topology import DEVICE, MAX_DEVICES, Topology, TopologyBuilder


@INLINE.register("BCube")
def bcube(arguments: Sequence[str]) -> Topology:
    """Make n^levels servers with a port to a switch of n ports at each level."""
    if len(arguments) != 4 or not all(a.isdecimal() and int(a) > 0 for a in arguments[:2]):
        raise ConfigError(
            "BCube takes ports of a switch (n), levels (k + 1), bandwidth and latency, as in "
            f"'BCube(4, 2, 10 GB/s, 1 us)'; found {', '.join(arguments)!r}"
        )
    n, levels = map(int, arguments[:2])
    if n < 2 or levels > 16 or n**levels > MAX_DEVICES:
        raise ConfigError(
            f"BCube: 2 or more ports, and at most {MAX_DEVICES} servers; found {n}^{levels}"
        )
    link = read_link("BCube", arguments[2:])
    drawing = TopologyBuilder()
    servers = [drawing.vertex(f"server{i}", DEVICE, node=0) for i in range(n**levels)]
    for level in range(levels):
        stride = n**level
        for first in (i for i in range(n**levels) if i // stride % n == 0):
            switch_block(drawing, [servers[first + stride * digit] for digit in range(n)], link)
    return drawing.finish(
        f"BCube({', '.join(arguments)})",
        servers,
        single_channel=True,
        devices_forward=True,
        shape=(n,) * levels if levels > 1 else (),
    )
