"""A torus or a mesh of nodes: the NICs of neighbouring nodes are joined by cables."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.errors import RidgelineError
from ridgeline.hardware.cluster import Fabric
from ridgeline.network.topology import FABRICS, LinkKind, TopologyBuilder


@FABRICS.register("torus")
@FABRICS.register("mesh")
def torus_fabric(
    drawing: TopologyBuilder, fabric: Fabric, nics: Sequence[int], link: LinkKind
) -> None:
    """Join the NICs of equal position of neighbouring nodes in every dimension of `Fabric.shape`.

    NICs pass on messages of others. Fewer nodes than the shape has are a slice of it
    (`Fabric.slice_of`), of which a dimension that does not close is a line, as all of a mesh are.

    Raises
    ------
    RidgelineError
        If no slice has as many nodes, or nodes have unlike numbers of NICs.
    """
    nodes: dict[int, list[int]] = {}
    for nic in nics:
        nodes.setdefault(drawing.node_of[nic], []).append(nic)
    rows = list(nodes.values())
    shape = fabric.slice_of(len(rows))
    if not shape:
        raise RidgelineError(
            f"{len(rows)} nodes do not fill a {fabric.kind} of "
            f"{'x'.join(map(str, fabric.shape)) or 'no shape'} nodes, nor a slice of it"
        )
    counts = sorted({len(row) for row in rows})
    if len(counts) > 1:
        raise RidgelineError(
            f"nodes of a {fabric.kind} have equally many NICs, each of which is joined with those"
            f" of its like; found nodes of {', '.join(map(str, counts))}; use a fat-tree or a"
            " switch, or nodes with as many NICs"
        )
    stride = 1
    for dimension, extent in enumerate(shape):
        ring = fabric.closes(extent, dimension)
        for node, row in enumerate(rows):
            place = node // stride % extent
            if place == extent - 1 and (extent <= 2 or not ring):
                continue
            after = rows[node + ((place + 1) % extent - place) * stride]
            for nic, other in zip(row, after, strict=True):
                drawing.join(nic, other, link)
        stride *= extent
