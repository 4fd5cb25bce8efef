"""``Tree(hosts, hosts per leaf, oversubscription, bandwidth, latency)``: two levels, thin above."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.errors import ConfigError
from ridgeline.network.inline import INLINE, read_link
from ridgeline.network.topology import DEVICE, MAX_DEVICES, Drawing, Topology


@INLINE.register("Tree")
def tree(arguments: Sequence[str]) -> Topology:
    """Make leaves of some hosts, each with that many uplinks, over the oversubscription, to a core.

    ``Tree(64, 16, 4, 10 GB/s, 1 us)``: 4 leaves of 16 hosts and 4 uplinks each.
    """
    if len(arguments) != 5 or not all(a.isdecimal() and int(a) > 0 for a in arguments[:3]):
        raise ConfigError(
            "Tree takes hosts, hosts per leaf, oversubscription, bandwidth and latency, as in "
            f"'Tree(64, 16, 4, 10 GB/s, 1 us)'; found {', '.join(arguments)!r}"
        )
    hosts, per_leaf, over = map(int, arguments[:3])
    if hosts > MAX_DEVICES or hosts % per_leaf or per_leaf % over:
        raise ConfigError(
            f"Tree: at most {MAX_DEVICES} hosts in full leaves, whose number of hosts is a "
            f"multiple of the oversubscription; found {hosts}, {per_leaf} and {over}"
        )
    link = read_link("Tree", arguments[3:])
    drawing = Drawing()
    devices = [drawing.vertex(f"host{i}", DEVICE) for i in range(hosts)]
    n_leaves = hosts // per_leaf
    leaves = [drawing.vertex(f"leaf{i}", "switch") for i in range(n_leaves)]
    for i, device in enumerate(devices):
        drawing.join(device, leaves[i // per_leaf], link)
    core = drawing.vertex("core", "switch")
    for leaf in leaves:
        drawing.join(leaf, core, link, per_leaf // over)
    cut = hosts // 2 if n_leaves == 1 else n_leaves // 2 * (per_leaf // over)
    return drawing.finish(
        f"Tree({', '.join(arguments)})",
        devices,
        single_channel=True,
        shape=(per_leaf, n_leaves) if n_leaves > 1 else (),
        bisection_bytes_per_s=cut * link.bandwidth_bytes_per_s
        if n_leaves == 1 or n_leaves % 2 == 0 else None,
    )  # fmt: skip
