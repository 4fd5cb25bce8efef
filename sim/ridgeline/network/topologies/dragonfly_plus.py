"""Dragonfly+: groups of two levels, leaves with the devices and spines with the global links.

Shpiner et al., HiPINEB 2017: in a group every leaf is linked with every spine; spines of different
groups are linked so that any two groups have equally many links.
"""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.errors import ConfigError
from ridgeline.network.inline import INLINE, read_link
from ridgeline.network.topologies.dragonfly import join_globally
from ridgeline.network.topology import DEVICE, MAX_DEVICES, Topology, TopologyBuilder


@INLINE.register("DragonflyPlus")
def dragonfly_plus(arguments: Sequence[str]) -> Topology:
    """Make the largest one: ``DragonflyPlus(p, l, s, h, bandwidth, latency)``, sh + 1 groups.

    p devices at each of the l leaves of a group, h global links at each of its s spines.
    """
    if len(arguments) != 6 or not all(a.isdecimal() and int(a) > 0 for a in arguments[:4]):
        raise ConfigError(
            "DragonflyPlus takes devices per leaf, leaves and spines per group, global links per "
            "spine, bandwidth and latency, as in 'DragonflyPlus(2, 4, 4, 1, 25 GB/s, 1 us)'; found "
            f"{', '.join(arguments)!r}"
        )
    p, n_leaves, n_spines, h = map(int, arguments[:4])
    n_groups = n_spines * h + 1
    if p * n_leaves * n_groups > MAX_DEVICES:
        raise ConfigError(
            f"DragonflyPlus: {p * n_leaves * n_groups} devices; at most {MAX_DEVICES}"
        )
    link = read_link("DragonflyPlus", arguments[4:])
    drawing = TopologyBuilder()
    devices = [drawing.vertex(f"device{i}", DEVICE) for i in range(p * n_leaves * n_groups)]
    leaves, spines = (
        [drawing.vertex(f"group{g}.{name}{i}", "switch") for g in range(n_groups) for i in range(n)]
        for name, n in (("leaf", n_leaves), ("spine", n_spines))
    )
    for i, device in enumerate(devices):
        drawing.join(device, leaves[i // p], link)
    for g in range(n_groups):
        for leaf in leaves[g * n_leaves : (g + 1) * n_leaves]:
            for spine in spines[g * n_spines : (g + 1) * n_spines]:
                drawing.join(leaf, spine, link)
    join_globally(drawing, spines, n_groups, n_spines, h, link)
    return drawing.finish(
        f"DragonflyPlus({', '.join(arguments)})",
        devices,
        single_channel=True,
        shape=(p * n_leaves, n_groups),
    )
