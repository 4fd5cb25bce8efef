"""Dimension-ordered routing: correct the first coordinate, then the second, and so on."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ridgeline.errors import RidgelineError
from ridgeline.network.paths import (
    Ints,
    LinkGraph,
    Routes,
    join,
    make_graph,
    no_route,
    widest_shortest,
)
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
    stride, vertices = 1, topology.devices.astype(np.int64)
    for extent, links in zip(topology.shape, _links_along(topology), strict=True):
        after = at + ((end // stride) % extent - (at // stride) % extent) * stride
        ends = vertices[at], vertices[after]
        parts.append(
            ROUTINGS["shortest"](topology, *ends)
            if links is None
            else _along(topology, links, *ends)
        )
        at, stride = after, stride * extent
    return join(*parts)


class _Links(NamedTuple):
    """Links between devices of a line of one dimension, and whatever is on switches."""

    number: Ints
    graph: LinkGraph


def _along(topology: Topology, links: _Links, source: Ints, target: Ints) -> Routes:
    """Return shortest paths that leave no line: a search round a ring, not through a torus."""
    choice = topology.ordinal[target].astype(source.dtype)
    found, lost = widest_shortest(links.graph, source, target, choice)
    if len(lost):
        raise no_route(topology, int(source[lost[0]]), int(target[lost[0]]))
    return found._replace(links=links.number[found.links].astype(np.int32))


@lru_cache(maxsize=16)
def _links_along(topology: Topology) -> tuple[_Links | None, ...]:
    """Return the links of every dimension; None where not all its lines are equal.

    Where they are, no way between two devices of a line is as short as one along it, since steps
    in other dimensions have to be taken back.
    """
    rank = np.full(topology.n_vertices, -1, np.int64)
    rank[topology.devices] = np.arange(topology.n_devices)
    a, b = rank[topology.source], rank[topology.target]
    direct = (a >= 0) & (b >= 0)
    found: list[_Links | None] = []
    stride = 1
    for extent in topology.shape:
        from_, to = (a // stride) % extent, (b // stride) % extent
        mine = direct & (from_ != to) & (b - a == (to - from_) * stride)
        keys = np.stack((from_, to, topology.bandwidth_bytes_per_s), axis=1)[mine]
        count = np.unique(keys, axis=0, return_counts=True)[1]
        if (count == topology.n_devices // extent).all():
            kept = np.flatnonzero(mine | ~direct)
            graph = make_graph(
                topology.n_vertices, topology.source[kept], topology.target[kept],
                topology.bandwidth_bytes_per_s[kept], topology.forwards,
            )  # fmt: skip
            found.append(_Links(kept, graph))
        else:
            found.append(None)
        stride *= extent
    return tuple(found)
