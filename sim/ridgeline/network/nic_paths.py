"""NIC paths: how ring channels pass a node, in by one NIC and out by another.

Which NICs are used, and along which chain of the node's devices, is described at the head of
`ridgeline.network.rings`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations

import numpy as np

from ridgeline.errors import CutOffError
from ridgeline.network import packing
from ridgeline.network.equal_nodes import EqualNodes
from ridgeline.network.topology import Topology

MAX_SEARCHED = 256
"""Devices among which rings and chains over direct links are looked for."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A channel's way through one node: in by a NIC, along the chain of ranks, and out by one."""

    entry: int
    exit: int
    chain: tuple[int, ...]

    @property
    def reversed(self) -> Passage:
        """The other way round."""
        return Passage(self.exit, self.entry, self.chain[::-1])


def passages(topology: Topology, ranks: tuple[int, ...], node: int) -> list[Passage]:
    """Choose which NICs of a node are used, and a chain of its ranks for each."""
    nodes = EqualNodes.of(topology)
    kind, vertices = int(nodes.kind[node]), topology.devices[list(ranks)]
    places = tuple(nodes.place[vertices].tolist())
    like = int(np.argmax(nodes.kind == kind))  # the first that is wired like this one
    own = nodes.members[node]
    return [
        Passage(int(own[entry]), int(own[exit_]), tuple(ranks[i] for i in chain))
        for entry, exit_, chain in _places(topology, like, places)
    ]


_Places = tuple[int, int, tuple[int, ...]]


@lru_cache(maxsize=2**12)  # rings of more or fewer nodes pass the same members of a node
def _places(topology: Topology, node: int, places: tuple[int, ...]) -> list[_Places]:
    """Return the passages of devices at some places of a node: NICs by place, chains by number."""
    own = EqualNodes.of(topology).members[node]
    vertices = own[list(places)].tolist()
    nics = [vertex for vertex in own.tolist() if topology.vertex_kinds[vertex] == "nic"]
    away = {nic: _hops_inside(topology, nic, vertices) for nic in nics}
    least = [min(hops) for hops in zip(*away.values(), strict=True)]
    if not least or math.inf in least:
        lonely = vertices[least.index(math.inf)] if least else vertices[0]
        raise CutOffError(
            f"{topology.vertex_names[lonely]} of {topology.name!r} has no way to a NIC of its node"
        )
    near = [nic for nic in nics if any(a == b for a, b in zip(away[nic], least, strict=True))]
    exits, ends = near, tuple(_ends(tuple(away[nic])) for nic in near)
    nearest = [_nearest(away[nic]) for nic in near]
    alone = sorted(mine[0] for mine in nearest if len(mine) == 1)
    if len(nearest) > 1 and alone == list(range(len(places))) == list(range(len(nearest))):
        exits = [*near[1:], near[0]]  # every NIC has one device of its own
        turned = [*nearest[1:], nearest[0]]
        ends = tuple(((a, b),) for (a,), (b,) in zip(nearest, turned, strict=True))
    chains: Sequence[tuple[int, ...]] = ()
    if len(places) <= MAX_SEARCHED:
        chains = packing.pack_chains(_direct_bandwidth(topology, vertices), ends)
    chains = chains or [_rank_order(len(places), *pairs[0]) for pairs in ends]
    place = {int(vertex): i for i, vertex in enumerate(own)}
    return [
        (place[entry], place[exit_], tuple(chain))
        for entry, exit_, chain in zip(near, exits, chains, strict=True)
    ]


def _nearest(away: Sequence[float]) -> list[int]:
    """Places of the devices that are nearest to a NIC."""
    least = min(away)
    return [place for place, hops in enumerate(away) if hops == least]


@lru_cache(maxsize=256)  # NICs of all nodes are as far from their devices
def _ends(away: tuple[float, ...]) -> tuple[tuple[int, int], ...]:
    """Pairs of devices between which a chain may run, those near to the NIC first."""
    if len(away) == 1:
        return ((0, 0),)
    return tuple(
        sorted(permutations(range(len(away)), 2), key=lambda ab: (away[ab[0]] + away[ab[1]], ab))
    )


def _rank_order(n: int, first: int, last: int) -> tuple[int, ...]:
    """0 ... n-1, taken cyclically from `first`, with `last` moved to the end."""
    between = [(first + i) % n for i in range(1, n) if (first + i) % n != last]
    return (first, *between, last) if n > 1 else (first,)


def _direct_bandwidth(topology: Topology, vertices: Sequence[int]) -> packing.Bandwidths:
    """[n, n] bytes per second of the direct link that a route takes; 0 where there is none."""
    bandwidth = topology.bandwidth_bytes_per_s
    return tuple(
        tuple(max((float(bandwidth[i]) for i in topology.links_between(a, b)), default=0.0)
              for b in vertices)
        for a in vertices
    )  # fmt: skip


def _hops_inside(topology: Topology, nic: int, devices: Sequence[int]) -> list[float]:
    """Links from a NIC to devices without leaving its node; infinite where there is no way."""
    hops = _hops_from(topology, nic)
    return [hops.get(device, math.inf) for device in devices]


@lru_cache(maxsize=2**17)  # every group of a plan asks for the same NICs
def _hops_from(topology: Topology, nic: int) -> dict[int, float]:
    hops: dict[int, float] = {nic: 0.0}
    queue = [nic]
    for vertex in queue:  # grows while it is read
        first, last = topology.out_ptr[vertex], topology.out_ptr[vertex + 1]
        for after in topology.target[first:last].tolist():
            inside = topology.node_of[after] == topology.node_of[nic]
            if inside and topology.forwards[vertex] and after not in hops:
                hops[after] = hops[vertex] + 1
                queue.append(after)
    return hops
