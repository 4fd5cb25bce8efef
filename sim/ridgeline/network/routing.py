"""Routes: the directed links that a message passes from one vertex to another."""

from __future__ import annotations

from collections.abc import Callable

from ridgeline.network.registry import Registry
from ridgeline.network.topology import Topology

Route = tuple[int, ...]

ROUTINGS: Registry[str, Callable[[Topology, int, int], Route]] = Registry(
    "routing", "ridgeline.network.routings"
)
"""Returns the links from a vertex to another one, in order; by `Topology.routing`."""


def route(topology: Topology, source: int, target: int) -> Route:
    """Return the links from vertex `source` to vertex `target` in the order of passing.

    Returns
    -------
    tuple of int
        Directed links; none if the vertices are the same.

    Raises
    ------
    RidgelineError
        If there is no route.
    """
    if source == target:
        return ()
    return ROUTINGS[topology.routing](topology, source, target)
