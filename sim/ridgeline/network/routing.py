"""Routes: the directed links that a message passes from one vertex to another."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ridgeline.network.topology import Topology
from ridgeline.registry import Registry

# The search is compiled code, which `import ridgeline` must not load.
from typing import TYPE_CHECKING  # isort: skip

if TYPE_CHECKING:
    from ridgeline.network.paths import Ints, Routes

Route = tuple[int, ...]

ROUTINGS: Registry[str, Callable[[Topology, Ints, Ints], Routes]] = Registry(
    "routing", "ridgeline.network.routings", parameters=("topology", "source", "target")
)
"""Returns the links of many messages, given as vertices; by `Topology.routing`."""


OF_ANY_NETWORK = frozenset({"shortest", "ecmp", "up-down", "flow-scheduler"})
"""Routings that need no regular network, in which devices have places."""


ADAPTIVE: set[Callable[[Topology, Ints, Ints], Routes]] = set()
"""Routings whose ways depend on what else is sent; they are asked round by round."""


def adaptive(
    routing: Callable[[Topology, Ints, Ints], Routes],
) -> Callable[[Topology, Ints, Ints], Routes]:
    """Mark a routing as one of `ADAPTIVE`."""
    ADAPTIVE.add(routing)
    return routing


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
    return tuple(routes(topology, np.array([source]), np.array([target])).links.tolist())


def routes(topology: Topology, source: Ints, target: Ints) -> Routes:
    """Return the links of many messages at once; see `route`.

    Parameters
    ----------
    source, target
        [M] vertices.
    """
    return ROUTINGS[topology.routing](topology, source.astype(np.int64), target.astype(np.int64))
