"""Dimension-ordered routing: correct the first coordinate, then the second, and so on."""

from __future__ import annotations

import numpy as np

from ridgeline.errors import RidgelineError
from ridgeline.network.paths import Ints, Routes, join
from ridgeline.network.routing import ROUTINGS
from ridgeline.network.topology import Topology


@ROUTINGS.register("dimension-ordered")
def dimension_ordered(topology: Topology, source: Ints, target: Ints) -> Routes:
    """Route between devices of a product topology, one dimension after the other.

    Inside a dimension the way is the shortest; of two equally long ones round a ring, the
    destination's number chooses. Dally and Seitz, IEEE Trans. Computers C-36(5), 1987: on a mesh
    no cycle of waiting messages can arise.

    Raises
    ------
    RidgelineError
        If the topology is no product, or an end is not a device.
    """
    if not topology.shape:
        raise RidgelineError(
            f"{topology.name!r} has no dimensions, so that dimension-ordered routing does not "
            "apply; use the routing 'shortest'"
        )
    rank = np.full(topology.n_vertices, -1, np.int64)
    rank[topology.devices] = np.arange(topology.n_devices)
    at, end = rank[source], rank[target]
    if (at < 0).any() or (end < 0).any():
        raise RidgelineError("dimension-ordered routes lead from device to device")
    parts: list[Routes] = []
    stride = 1
    for extent in topology.shape:
        after = at + ((end // stride) % extent - (at // stride) % extent) * stride
        vertices = topology.devices.astype(np.int64)
        parts.append(ROUTINGS["shortest"](topology, vertices[at], vertices[after]))
        at, stride = after, stride * extent
    return join(*parts)
