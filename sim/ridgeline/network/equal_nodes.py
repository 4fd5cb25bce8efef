"""Nodes of a topology that are wired alike inside: what is found in one holds in all of a kind."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from ridgeline.network.paths import Ints
from ridgeline.network.topology import Topology


@dataclass(frozen=True, eq=False)
class EqualNodes:
    """Nodes of a topology, compared by kind, devices and the links between their vertices.

    Attributes
    ----------
    members
        By node, its vertices, ascending; those of equal nodes in the same order.
    place
        [V] number of a vertex among those of its node.
    kind
        [nodes] equal where nodes are.
    links
        By node, its own links; those of equal nodes in the same order.
    """

    members: tuple[Ints, ...]
    place: Ints
    kind: Ints
    links: tuple[Ints, ...]

    @classmethod
    @lru_cache(maxsize=4)
    def of(cls, topology: Topology) -> EqualNodes:
        """Compare the nodes of a topology."""
        node_of = topology.node_of.astype(np.int64)
        n_nodes = int(node_of.max(initial=0)) + 1
        inside = np.flatnonzero(node_of >= 0)
        members = inside[np.argsort(node_of[inside], kind="stable")]
        begin = np.searchsorted(node_of[members], np.arange(n_nodes + 1))
        place = np.zeros(len(node_of), np.int64)
        place[members] = np.arange(len(members)) - begin[node_of[members]]
        source, target = topology.source, topology.target
        home = np.where(node_of[source] == node_of[target], node_of[source], -1)
        by_node = np.argsort(home, kind="stable")
        first = np.searchsorted(home[by_node], np.arange(n_nodes + 1))
        links = tuple(by_node[a:b] for a, b in pairwise(first))
        kinds = {name: i for i, name in enumerate(sorted(set(topology.vertex_kinds)))}
        vertex = np.array([kinds[kind] for kind in topology.vertex_kinds], np.int64)
        used = np.zeros(len(node_of), np.bool_)
        used[topology.devices] = True
        parts = tuple(members[a:b] for a, b in pairwise(begin))
        numbers: dict[bytes, int] = {}
        kind = np.zeros(n_nodes, np.int64)
        of_node = np.array(topology.kind_of_node or np.zeros(n_nodes), np.int64)
        for node, (own, mine) in enumerate(zip(links, parts, strict=True)):
            columns = (
                place[source[own]], place[target[own]], topology.class_of_link[own],
                topology.bandwidth_bytes_per_s[own], topology.latency_s[own],
                topology.energy_j_per_byte[own], vertex[mine], used[mine],
                of_node[node],
            )  # fmt: skip
            text = b"|".join(column.tobytes() for column in columns)
            kind[node] = numbers.setdefault(text, len(numbers))
        return cls(parts, place, kind, links)
