"""The two-level fat tree: leaf switches with half their ports down and half up, spines above.

Leiserson, IEEE Trans. Computers C-34(10), 1985; built of equal switches as in Al-Fares et al.,
SIGCOMM 2008.
"""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.errors import RidgelineError
from ridgeline.hardware.cluster import Fabric
from ridgeline.network.topology import FABRICS, Drawing, LinkKind


@FABRICS.register("fat-tree")
def fat_tree(drawing: Drawing, fabric: Fabric, nics: Sequence[int], link: LinkKind) -> None:
    """Join NICs, in node order, so that any half of them can send to the other at full rate.

    NICs that fit on the ports of one switch share that switch. Otherwise each leaf has radix/2 of
    them, and its radix/2 uplinks are spread evenly over the spines, of which there are the fewest
    that have ports for every leaf.

    Raises
    ------
    RidgelineError
        If more than radix²/2 NICs are to be joined, the capacity of two levels.
    """
    radix, half = fabric.radix, fabric.radix // 2
    if len(nics) <= radix:
        leaf = drawing.vertex("leaf0", "switch")
        for nic in nics:
            drawing.join(nic, leaf, link)
        return
    if len(nics) > radix * half:
        raise RidgelineError(
            f"{len(nics)} NICs do not fit on a fat tree of two levels of {radix}-port switches, "
            f"which joins at most {radix * half}; use fewer nodes or a larger radix"
        )
    n_leaves = -(-len(nics) // half)
    n_spines = next(s for s in range(1, half + 1) if half % s == 0 and n_leaves * half <= s * radix)
    leaves = [drawing.vertex(f"leaf{i}", "switch") for i in range(n_leaves)]
    spines = [drawing.vertex(f"spine{i}", "switch") for i in range(n_spines)]
    for position, nic in enumerate(nics):
        drawing.join(nic, leaves[position // half], link)
    for leaf in leaves:
        for spine in spines:
            drawing.join(leaf, spine, link, half // n_spines)
