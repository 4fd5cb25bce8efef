"""Placement of ranks on nodes: groups with the same placement cost the same."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ridgeline.network.equal_nodes import EqualNodes
from ridgeline.network.line_dimensions import lines
from ridgeline.network.topology import Topology
from ridgeline.parallel.plan.mesh import Ranks


@dataclass(frozen=True)
class RankPlacement:
    """Where every rank is.

    Attributes
    ----------
    node, place
        [ranks] number of its node, and its place in there.
    torus
        Nodes in each dimension of a torus or a mesh; (): it is none, and each node is as far as any
        other.
    line
        Whether a dimension is a line, in which the way back is not the way on round a ring.
    """

    node: Ranks
    place: Ranks
    torus: tuple[int, ...]
    line: tuple[bool, ...]

    @classmethod
    def of(cls, topology: Topology) -> RankPlacement:
        """Find where the devices of a topology are."""
        node = topology.node_of[topology.devices].astype(np.int64)
        first = np.full(int(node.max(initial=0)) + 1, len(node))
        np.minimum.at(first, node, np.arange(len(node)))
        torus = topology.shape[1:] if len(topology.shape) > 2 else ()
        return cls(node, np.arange(len(node)) - first[node], torus, lines(topology)[1:])

    def way(self, node: Ranks, others: Ranks) -> Ranks:
        """Return [dimensions, ...] how far other nodes of a torus are, in each dimension."""
        extents = self.torus[::-1]
        here, there = (np.array(np.unravel_index(at, extents)) for at in (node, others))
        way: Ranks = (there - here).T
        return np.where(self.line[::-1], way, way % np.array(extents)).T

    def how(self, groups: Ranks) -> Ranks:
        """Return [G, ...] how the ranks of groups [G, n] lie, whichever nodes these are in."""
        place = self.place[groups]
        if not self.torus:
            return place
        node = self.node[groups]
        both = np.concatenate((place[None], self.way(node[:, :1], node)))
        of_groups: Ranks = np.moveaxis(both, 1, 0).reshape(len(groups), -1)
        return of_groups


def switched_nodes(topology: Topology) -> npt.NDArray[np.bool_]:
    """Return [nodes] whether one switch joins all devices of a node, by equal links, and no other.

    Then any device is as good as any other for a group inside of the node: the only way of two
    links between two of them goes through that switch, and it is the shortest.
    """
    equal = EqualNodes.of(topology)
    device = np.zeros(len(topology.node_of), np.bool_)
    device[topology.devices] = True
    of_kind = {
        kind: _is_switched(topology, np.flatnonzero((topology.node_of == node) & device))
        for kind, node in zip(*np.unique(equal.kind, return_index=True), strict=True)
    }
    return np.array([of_kind[kind] for kind in equal.kind.tolist()], np.bool_)


def _is_switched(topology: Topology, devices: npt.NDArray[np.int64]) -> bool:
    hubs = set()
    ends = (topology.source, topology.target), (topology.target, topology.source)
    for near, far in ends:
        own = np.flatnonzero(np.isin(near, devices))
        vertices, count = np.unique(far[own], return_counts=True)
        shared = vertices[count > 1]
        if len(shared) != 1 or np.isin(vertices, devices).any():
            return False
        links = own[far[own] == shared[0]]
        alike = {
            (
                topology.link_class[link],
                float(topology.bandwidth_bytes_per_s[link]),
                float(topology.latency_s[link]),
                float(topology.energy_j_per_byte[link]),
            )
            for link in links.tolist()
        }
        if len(links) != len(devices) or len(alike) != 1:
            return False
        hubs.add(int(shared[0]))
    return len(hubs) == 1
