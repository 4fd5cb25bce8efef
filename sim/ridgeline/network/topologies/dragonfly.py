"""Dragonfly: groups of fully linked routers, and every two groups linked.

Kim, Dally, Scott and Abts, ISCA 2008: p devices and h global links at each of the a routers of a
group; balanced if a = 2p = 2h.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.hardware.cluster import Fabric
from ridgeline.network.inline import INLINE, read_link
from ridgeline.network.topology import (
    DEVICE,
    FABRICS,
    MAX_DEVICES,
    LinkKind,
    Topology,
    TopologyBuilder,
)


@FABRICS.register("dragonfly")
def dragonfly_fabric(
    drawing: TopologyBuilder, fabric: Fabric, nics: Sequence[int], link: LinkKind
) -> None:
    """Join NICs by a dragonfly: that of the shape, or the balanced one of `radix`-port routers.

    Raises
    ------
    RidgelineError
        If there are more NICs than p a (a h + 1); of a balanced one 2h²(2h² + 1), with
        h = (radix + 1) / 4 rounded down.
    """
    if fabric.shape:
        p, a, h = fabric.shape
        what = f"dragonfly of shape {p}, {a}, {h}"
    else:
        h = (fabric.ports + 1) // 4
        p, a = h, 2 * h
        what = f"balanced dragonfly of {fabric.ports}-port routers"
    n_groups = -(-len(nics) // (p * a)) if h else 0
    if not h or n_groups > a * h + 1:
        raise RidgelineError(
            f"{len(nics)} NICs do not fit on a {what}, which joins at most {p * a * (a * h + 1)}; "
            f"use a larger {'shape' if fabric.shape else 'radix'}"
        )
    routers = join_groups(drawing, n_groups, a, h, link)
    for i, nic in enumerate(nics):
        drawing.join(nic, routers[i // p], link)


@INLINE.register("Dragonfly")
def dragonfly(arguments: Sequence[str]) -> Topology:
    """Make the largest dragonfly: ``Dragonfly(p, a, h, bandwidth, latency)``, ah + 1 groups."""
    if len(arguments) != 5 or not all(a.isdecimal() and int(a) > 0 for a in arguments[:3]):
        raise ConfigError(
            "Dragonfly takes devices per router, routers per group, global links per router, "
            "bandwidth and latency, as in 'Dragonfly(2, 4, 2, 25 GB/s, 1 us)'; found "
            f"{', '.join(arguments)!r}"
        )
    p, a, h = map(int, arguments[:3])
    n_groups = a * h + 1
    if p * a * n_groups > MAX_DEVICES:
        raise ConfigError(f"Dragonfly: {p * a * n_groups} devices; at most {MAX_DEVICES}")
    link = read_link("Dragonfly", arguments[3:])
    drawing = TopologyBuilder()
    devices = [drawing.vertex(f"device{i}", DEVICE) for i in range(p * a * n_groups)]
    routers = join_groups(drawing, n_groups, a, h, link)
    for i, device in enumerate(devices):
        drawing.join(device, routers[i // p], link)
    return drawing.finish(
        f"Dragonfly({', '.join(arguments)})",
        devices,
        single_channel=True,
        shape=(p * a, n_groups),
    )


def join_groups(
    drawing: TopologyBuilder, n_groups: int, a: int, h: int, link: LinkKind
) -> list[int]:
    """Draw groups of `a` routers with `h` global links each; return the routers.

    The global ports of a group are dealt out to the other groups in turn, the next group first, so
    that any two groups have equally many links, and the ports that are left over stay unused.
    """
    routers = [
        drawing.vertex(f"group{g}.router{i}", "switch") for g in range(n_groups) for i in range(a)
    ]
    for g in range(n_groups):
        for one, other in combinations(routers[g * a : (g + 1) * a], 2):
            drawing.join(one, other, link)
    join_globally(drawing, routers, n_groups, a, h, link)
    return routers


def join_globally(
    drawing: TopologyBuilder, routers: Sequence[int], n_groups: int, a: int, h: int, link: LinkKind
) -> None:
    """Link groups of `a` routers with `h` global ports each, as `join_groups` says."""
    others = n_groups - 1
    for g in range(n_groups):
        for turn in range(a * h // others if others else 0):
            for offset in range(1, n_groups):
                far = (g + offset) % n_groups
                if far > g:  # the port that the other group uses is at n_groups - offset
                    port = turn * others + offset - 1
                    back = turn * others + n_groups - offset - 1
                    drawing.join(routers[g * a + port // h], routers[far * a + back // h], link)
