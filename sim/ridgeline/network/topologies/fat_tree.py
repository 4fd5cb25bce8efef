"""Fat trees of equal switches: folded Clos networks of two or three levels.

Leiserson, IEEE Trans. Computers C-34(10), 1985; built of equal switches as in Al-Fares, Loukissas
and Vahdat, SIGCOMM 2008 (inline ``FatTree(k, bandwidth, latency)``,
``FatTree(k, bandwidth, latency, oversubscription=3x2)``).
"""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.hardware.cluster import Fabric
from ridgeline.network.inline import (
    BLOCKS,
    DIMENSIONS,
    INLINE,
    Blocks,
    read_inline,
    with_keywords,
)
from ridgeline.network.topology import (
    DEVICE,
    FABRICS,
    MAX_DEVICES,
    LinkKind,
    Topology,
    TopologyBuilder,
)


@FABRICS.register("fat-tree")
def fat_tree(drawing: TopologyBuilder, fabric: Fabric, nics: Sequence[int], link: LinkKind) -> None:
    """Join NICs, in node order, so that any half of them can send to the other at full rate.

    NICs that fit on the ports of one switch share that switch. Otherwise each leaf has radix/2 of
    them, and its radix/2 uplinks are spread evenly over the switches above, of which there are the
    fewest that have ports for every leaf. With three levels, radix/2 leaves and as many switches
    above them as a leaf has uplinks are a pod, and what holds for leaves and spines holds for pods
    and cores. With an oversubscription, leaves have more NICs and fewer uplinks (`leaf_ports`), and
    the switches of a pod above them more leaves (`spine_ports`).

    Raises
    ------
    RidgelineError
        If more NICs are to be joined than the levels have room for: radix²/2 or radix³/4.
    """
    down, _ = fabric.leaf_ports
    if len(nics) <= fabric.ports:
        join_leaves(drawing, fabric, [nics], link)
    else:
        leaves = [nics[i : i + down] for i in range(0, len(nics), down)]
        join_leaves(drawing, fabric, leaves, link)


@FABRICS.register("rail-optimised")
def rail_optimised(
    drawing: TopologyBuilder, fabric: Fabric, nics: Sequence[int], link: LinkKind
) -> None:
    """Join the NICs of equal position in consecutive nodes, radix/2 of them, by one leaf (a rail).

    So devices of equal position meet after one switch. NVIDIA, "NVIDIA DGX SuperPOD: Next
    Generation Scalable Infrastructure for AI Leadership", reference architecture RA-11333, 2023.
    """
    down, _ = fabric.leaf_ports
    nodes: dict[int, list[int]] = {}
    for nic in nics:
        nodes.setdefault(drawing.node_of[nic], []).append(nic)
    rows = list(nodes.values())
    leaves = [
        [row[rail] for row in rows[first : first + down] if rail < len(row)]
        for first in range(0, len(rows), down)
        for rail in range(max(map(len, rows)))
    ]
    join_leaves(drawing, fabric, leaves if len(nics) > fabric.ports else [nics], link)


@FABRICS.register("switch")
def one_switch(
    drawing: TopologyBuilder, fabric: Fabric, nics: Sequence[int], link: LinkKind
) -> None:
    """Join all NICs by one ideal switch without limit of ports."""
    centre = drawing.vertex("switch0", "switch")
    for nic in nics:
        drawing.join(nic, centre, link)


def join_leaves(
    drawing: TopologyBuilder, fabric: Fabric, members: Sequence[Sequence[int]], link: LinkKind
) -> None:
    """Draw a leaf above each list of NICs, and the switches above the leaves."""
    radix, (of_pod, above_pod) = fabric.ports, fabric.spine_ports
    _, uplinks = fabric.leaf_ports
    n_leaves = len(members)
    if n_leaves > fabric.most_leaves:
        raise RidgelineError(
            f"{sum(map(len, members))} NICs on {n_leaves} leaves do not fit on a fat tree of "
            f"{fabric.levels} levels of {radix}-port switches, which joins at most "
            f"{fabric.most_nics}; use fewer nodes, a larger radix or 3 levels"
        )
    leaves = [drawing.vertex(f"leaf{i}", "switch") for i in range(n_leaves)]
    for leaf, below in zip(leaves, members, strict=True):
        for nic in below:
            drawing.join(nic, leaf, link)
    if n_leaves == 1:
        return
    if n_leaves <= radix:
        _spread(drawing, leaves, "spine", uplinks, radix, link)
        return
    pods = [leaves[i : i + of_pod] for i in range(0, n_leaves, of_pod)]
    spines = [
        [drawing.vertex(f"pod{p}.spine{i}", "switch") for i in range(uplinks)]
        for p in range(len(pods))
    ]
    for pod, above in zip(pods, spines, strict=True):
        for leaf in pod:
            for spine in above:
                drawing.join(leaf, spine, link)
    for i in range(uplinks):
        _spread(drawing, [above[i] for above in spines], f"core{i}.", above_pod, radix, link)


def _spread(
    drawing: TopologyBuilder,
    below: Sequence[int],
    name: str,
    uplinks: int,
    radix: int,
    link: LinkKind,
) -> None:
    """Spread the uplinks of some switches evenly over the fewest switches with enough ports."""
    n = next(
        s for s in range(1, uplinks + 1)
        if uplinks % s == 0 and len(below) * uplinks <= s * radix
    )  # fmt: skip
    above = [drawing.vertex(f"{name}{i}", "switch") for i in range(n)]
    for switch in below:
        for top in above:
            drawing.join(switch, top, link, uplinks // n)


@INLINE.register("FatTree")
def k_ary_fat_tree(arguments: Sequence[str]) -> Topology:
    """Make the k-ary fat tree of Al-Fares et al.: k pods of k/2 edge and k/2 aggregation switches.

    k³/4 hosts, 5k²/4 switches and (k/2)² shortest paths between hosts of different pods. With
    ``oversubscription=3`` a switch of the edge has 3 ports for hosts for each uplink, with
    ``oversubscription=3x2`` one of the aggregation 2 for the edge for each to the cores.
    """
    plain, named = with_keywords("FatTree", arguments, ("oversubscription",))
    k, link = read_inline("FatTree", plain, what="ports (k)", most=62)
    if k % 2:
        raise ConfigError(f"FatTree: k must be even and at most 62, found {k}")
    edge, aggregation = _tiers(k, named.get("oversubscription", "1"))
    n = k * aggregation[0] * edge[0]
    if n > MAX_DEVICES:
        raise ConfigError(f"FatTree: {n} hosts; at most {MAX_DEVICES}")
    drawing = TopologyBuilder()
    hosts = [drawing.vertex(f"host{i}", DEVICE) for i in range(n)]
    across = _join_pods(drawing, hosts, link, k, edge, aggregation)
    return drawing.finish(
        f"FatTree({', '.join(arguments)})",
        hosts,
        single_channel=True,
        bisection_bytes_per_s=across * link.bandwidth_bytes_per_s,
    )


def _tiers(k: int, text: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the ports below and above of the switches of the edge and of the aggregation."""
    parts = [part.strip() for part in text.split("x")]
    try:
        overs = [float(part) for part in parts]
    except ValueError:
        overs = []
    if not 1 <= len(overs) <= 2 or not all(1 <= over <= k - 1 for over in overs):
        raise ConfigError(
            f"FatTree: oversubscription is one number from 1 to {k - 1}, or two of the edge and "
            f"the aggregation as in 3x2; found {text!r}"
        )
    ups = [int(k / (1 + over)) for over in [*overs, 1.0][:2]]
    edge, aggregation = ((int(up * over), up) for up, over in zip(ups, [*overs, 1.0], strict=False))
    return edge, aggregation


@DIMENSIONS.register("FatTree")
def fat_tree_dimension(arguments: Sequence[str]) -> Blocks:
    """Read k; the extent is that of the hosts."""
    if any("=" in argument for argument in arguments):
        raise ConfigError(
            "FatTree: in a product it has no oversubscription; found " + arguments[-1]
        )
    k, link = read_inline("FatTree", arguments, what="ports (k)", most=62)
    if k % 2:
        raise ConfigError(f"FatTree: k must be even and at most 62, found {k}")
    return [("FatTree", k**3 // 4, link)]


@BLOCKS.register("FatTree")
def fat_tree_block(drawing: TopologyBuilder, members: Sequence[int], link: LinkKind) -> float:
    """Join k³/4 vertices by a k-ary fat tree."""
    k = round((4 * len(members)) ** (1 / 3))
    return _join_pods(drawing, members, link, k, (k // 2, k // 2), (k // 2, k // 2))


def _join_pods(
    drawing: TopologyBuilder,
    members: Sequence[int],
    link: LinkKind,
    k: int,
    edge: tuple[int, int],
    aggregation: tuple[int, int],
) -> int:
    """Draw k pods and the cores above them; return the links across the narrowest cut in halves.

    Half of the pods send no more than the links of as many pods to the cores, nor than their hosts.
    """
    hosts, up = edge
    edges_of_pod, cores_of_each = aggregation
    first = f"tree{len(drawing.names)}." if len(drawing.names) > len(members) else ""
    edges, aggregations = (
        [[drawing.vertex(f"{first}pod{p}.{name}{i}", "switch") for i in range(n)] for p in range(k)]
        for name, n in (("edge", edges_of_pod), ("aggregation", up))
    )
    cores = [drawing.vertex(f"{first}core{i}", "switch") for i in range(up * cores_of_each)]
    for pod in range(k):
        for i in range(edges_of_pod):
            for j in range(hosts):
                drawing.join(members[(pod * edges_of_pod + i) * hosts + j], edges[pod][i], link)
            for above in aggregations[pod]:
                drawing.join(edges[pod][i], above, link)
        for i in range(up):
            for j in range(cores_of_each):
                drawing.join(aggregations[pod][i], cores[i * cores_of_each + j], link)
    return min(len(members) // 2, k // 2 * up * cores_of_each, k // 2 * edges_of_pod * up)
