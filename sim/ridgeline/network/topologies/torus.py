"""A torus of nodes: the NICs of neighbouring nodes are joined by cables."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ridgeline.errors import RidgelineError
from ridgeline.hardware.cluster import Fabric
from ridgeline.network.topology import FABRICS, Drawing, LinkKind


@FABRICS.register("torus")
def torus_fabric(drawing: Drawing, fabric: Fabric, nics: Sequence[int], link: LinkKind) -> None:
    """Join the NICs of equal position of neighbouring nodes in every dimension of `Fabric.shape`.

    NICs pass on messages of others. The torus is drawn whole or not at all.

    Raises
    ------
    RidgelineError
        If the nodes do not fill the shape.
    """
    nodes: dict[int, list[int]] = {}
    for nic in nics:
        nodes.setdefault(drawing.node_of[nic], []).append(nic)
    rows = list(nodes.values())
    if math.prod(fabric.shape) != len(rows) or not fabric.shape:
        raise RidgelineError(
            f"{len(rows)} nodes do not fill a torus of "
            f"{'x'.join(map(str, fabric.shape)) or 'no shape'} nodes"
        )
    stride = 1
    for extent in fabric.shape:
        for node, row in enumerate(rows):
            place = node // stride % extent
            if extent == 1 or (extent == 2 and place == 1):
                continue
            after = rows[node + ((place + 1) % extent - place) * stride]
            for nic, other in zip(row, after, strict=True):
                drawing.join(nic, other, link)
        stride *= extent
