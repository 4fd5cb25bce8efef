"""``Tree(hosts, hosts per leaf, oversubscription, bandwidth, latency)``: two levels, thin above."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ridgeline.errors import ConfigError
from ridgeline.network.inline import INLINE, read_link
from ridgeline.network.topology import DEVICE, MAX_DEVICES, Topology, TopologyBuilder


@INLINE.register("Tree")
def tree(arguments: Sequence[str]) -> Topology:
    """Make leaves of some hosts whose way up is narrower than their ports together, and a core.

    ``Tree(64, 16, 4, 10 GB/s, 1 us)``: 4 leaves of 16 hosts and 4 uplinks each. Where the
    oversubscription does not divide the hosts of a leaf, as in ``Tree(16, 4, 3.6, ...)``, a leaf
    has one uplink of their bandwidth over the oversubscription.
    """
    numbers = _numbers(arguments)
    if numbers is None:
        raise ConfigError(
            "Tree takes hosts, hosts per leaf, oversubscription (a number from 1), bandwidth and "
            f"latency, as in 'Tree(64, 16, 4, 10 GB/s, 1 us)'; found {', '.join(arguments)!r}"
        )
    hosts, per_leaf, over = numbers
    if hosts > MAX_DEVICES or hosts % per_leaf:
        raise ConfigError(
            f"Tree: at most {MAX_DEVICES} hosts in full leaves; found {hosts} in leaves of "
            f"{per_leaf}"
        )
    link = read_link("Tree", arguments[3:])
    whole = per_leaf % over == 0
    uplinks = int(per_leaf / over) if whole else 1
    width = link.bandwidth_bytes_per_s * (1.0 if whole else per_leaf / over)
    drawing = TopologyBuilder()
    devices = [drawing.vertex(f"host{i}", DEVICE) for i in range(hosts)]
    n_leaves = hosts // per_leaf
    leaves = [drawing.vertex(f"leaf{i}", "switch") for i in range(n_leaves)]
    for i, device in enumerate(devices):
        drawing.join(device, leaves[i // per_leaf], link)
    core = drawing.vertex("core", "switch")
    for leaf in leaves:
        drawing.join(leaf, core, replace(link, bandwidth_bytes_per_s=width), uplinks)
    bisection = None
    if n_leaves == 1:
        bisection = hosts // 2 * link.bandwidth_bytes_per_s
    elif n_leaves % 2 == 0:
        bisection = n_leaves // 2 * uplinks * width
    return drawing.finish(
        f"Tree({', '.join(arguments)})",
        devices,
        single_channel=True,
        shape=(per_leaf, n_leaves) if n_leaves > 1 else (),
        bisection_bytes_per_s=bisection,
    )


def _numbers(arguments: Sequence[str]) -> tuple[int, int, float] | None:
    """Return hosts, hosts per leaf and oversubscription, or None."""
    if len(arguments) != 5 or not all(a.isdecimal() and int(a) > 0 for a in arguments[:2]):
        return None
    try:
        over = float(arguments[2])
    except ValueError:
        return None
    return (int(arguments[0]), int(arguments[1]), over) if 1 <= over < math.inf else None
