"""Topology: the machine's graph as arrays, one row per directed link.

It comes from a described cluster (`ridgeline.network.cluster_topology`), from inline text such as
``"Ring(16, 50 GB/s, 500 ns)"`` (`ridgeline.network.inline`) or from a file
(`ridgeline.network.files`). A fabric between nodes and an inline topology are each one file in
`ridgeline.network.topologies`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from ridgeline.hardware.cluster import FABRIC_KINDS, Fabric
from ridgeline.network.library import LinkLibrary
from ridgeline.registry import Registry

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int32]
Array = TypeVar("Array", bound=np.generic)

DEVICE = "device"
MAX_DEVICES = 262_144
"""Largest topology that is drawn; every link is a row of its own."""


@dataclass(frozen=True, slots=True)
class LinkKind:
    """What one physical link does in one direction."""

    name: str
    bandwidth_bytes_per_s: float
    latency_s: float
    energy_j_per_byte: float


class NodeConstants(NamedTuple):
    """What collectives take besides links on one kind of node; as `Topology` has it.

    A group of ranks on several kinds has the slowest of them (`network.node_constants`).
    """

    collective_latency_s: float
    memory_bytes_per_s: float
    in_switch: Mapping[str, float]
    exchanged: Mapping[str, float]
    library: Mapping[str, LinkLibrary]
    host_issue: float


@dataclass(frozen=True, eq=False, repr=False)
class Topology:
    """Vertices and directed links. Two topologies are equal only if they are the same object.

    Shapes: V vertices, L directed links, D devices in use.

    Attributes
    ----------
    name
        What was described.
    vertex_names
        [V] e.g. ``node0.device3``, ``leaf1``.
    vertex_kinds
        [V] device, host, switch or nic.
    node_of
        [V] number of the vertex's node, -1 for switches of the fabric.
    source, target
        [L] vertices of each directed link, in ascending order of (source, target).
    bandwidth_bytes_per_s
        [L] what payload reaches, in one direction, on all parallel links together.
    latency_s
        [L] of one message over the link.
    energy_j_per_byte
        [L] of moving one byte over the link.
    link_class
        [L] name of the link type.
    count
        [L] parallel physical links that the row stands for.
    devices
        [D] vertices in rank order.
    collective_latency_s
        Fixed time of starting a collective.
    memory_bytes_per_s
        What copies in the memory of a device reach, reads and writes together; infinite in an
        idealised network.
    in_switch
        By link class, the share of the bandwidth at which switches add up what comes over links.
    exchanged
        By link class, the share of the bandwidth that the library's all-to-all reaches.
    library
        By link class, the collective library that drives it, and what its protocols take.
    host_issue
        Time that the host takes to launch, over that of a Xeon Platinum 8480C.
    node_constants, kind_of_node
        What the fields before are on each kind of node, and the kind of every node, where nodes are
        of several kinds; (): they are alike.
    routing
        Name of a routing in `ridgeline.network.routing.ROUTINGS`.
    all_reduce
        Name of the algorithm that all-reduces of a step use; "": the fastest.
    single_channel
        Collectives send along one channel in rank order and in one direction, as textbook
        algorithms do, rather than along all channels that the links have room for.
    shape
        Extents of a product of topologies, e.g. (4, 8) of a torus or (devices of a node, nodes) of
        a cluster; rank ``i + shape[0] * (j + ...)`` has the coordinates (i, j, ...). Empty if there
        are no dimensions, or if the last node is not full.
    blocks
        Name, extent and link of every dimension of an inline product, as `shape`, and also of a
        product of one dimension; empty for anything else.
    devices_forward
        Devices pass on messages of others, as the chips of a torus do.
    bisection_bytes_per_s
        Bandwidth of the narrowest cut into two halves, one way, where a formula gives it; for any
        other topology see `ridgeline.network.topology_metrics`.
    cost_dollars, power_w
        Of all that is drawn; None where the description does not say (see `priced`).
    priced
        What cost and power count, in words.
    device_names
        Names of the devices of all ranks, where the description says them; () otherwise.
    assumed
        What was taken for links that the description names without their rates, in words.
    """

    name: str
    vertex_names: tuple[str, ...]
    vertex_kinds: tuple[str, ...]
    node_of: Indices
    source: Indices
    target: Indices
    bandwidth_bytes_per_s: Floats
    latency_s: Floats
    energy_j_per_byte: Floats
    link_class: tuple[str, ...]
    count: Indices
    devices: Indices
    collective_latency_s: float = 0.0
    memory_bytes_per_s: float = math.inf
    in_switch: Mapping[str, float] = field(default_factory=dict)
    exchanged: Mapping[str, float] = field(default_factory=dict)
    library: Mapping[str, LinkLibrary] = field(default_factory=dict)
    host_issue: float = 1.0
    node_constants: tuple[NodeConstants, ...] = ()
    kind_of_node: tuple[int, ...] = ()
    routing: str = "shortest"
    all_reduce: str = ""
    single_channel: bool = False
    shape: tuple[int, ...] = ()
    blocks: tuple[tuple[str, int, LinkKind], ...] = ()
    devices_forward: bool = False
    bisection_bytes_per_s: float | None = None
    cost_dollars: float | None = None
    power_w: float | None = None
    priced: str = ""
    device_names: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()

    @cached_property
    def of_node_kinds(self) -> dict[tuple[int, ...], Topology]:
        """The same links with the constants of some kinds of nodes alone (`node_constants`)."""
        return {}

    @property
    def n_vertices(self) -> int:
        """Number of vertices."""
        return len(self.vertex_names)

    @property
    def n_links(self) -> int:
        """Number of directed links, parallel ones counted once."""
        return len(self.source)

    @property
    def n_devices(self) -> int:
        """Number of devices in use."""
        return len(self.devices)

    @cached_property
    def link_classes(self) -> frozenset[str]:
        """Names of all link types."""
        return frozenset(self.link_class)

    @cached_property
    def class_of_link(self) -> Indices:
        """[L] number of a link's class in the order of their names."""
        number = {name: i for i, name in enumerate(sorted(self.link_classes))}
        return frozen(np.array([number[name] for name in self.link_class], np.int32))

    def of_class(self, name: str) -> npt.NDArray[np.bool_]:
        """[L] whether a link is of a class."""
        classes = sorted(self.link_classes)
        number = classes.index(name) if name in self.link_classes else -1
        found: npt.NDArray[np.bool_] = self.class_of_link == number
        return found

    @cached_property
    def out_ptr(self) -> Indices:
        """[V+1] links ``out_ptr[v]:out_ptr[v+1]`` leave vertex v."""
        count = np.bincount(self.source, minlength=self.n_vertices)
        return frozen(np.concatenate(([0], np.cumsum(count))).astype(np.int32))

    @cached_property
    def forwards(self) -> npt.NDArray[np.bool_]:
        """[V] whether the vertex passes on what is meant for others."""
        return frozen(
            np.array([self.devices_forward or kind != DEVICE for kind in self.vertex_kinds])
        )

    @cached_property
    def ordinal(self) -> Indices:
        """[V] how many vertices of the same kind come before."""
        kinds = np.array(self.vertex_kinds)
        ordinal = np.zeros(self.n_vertices, dtype=np.int32)
        for kind in sorted(set(self.vertex_kinds)):
            members = np.flatnonzero(kinds == kind)
            ordinal[members] = np.arange(len(members))
        return frozen(ordinal)

    def links_between(self, source: int, target: int) -> Sequence[int]:
        """Return the directed links from one vertex to another, one per link class."""
        return self._between.get((source, target), ())

    @cached_property
    def _between(self) -> dict[tuple[int, int], list[int]]:
        found: dict[tuple[int, int], list[int]] = {}
        ends = zip(self.source.tolist(), self.target.tolist(), strict=True)
        for link, pair in enumerate(ends):
            found.setdefault(pair, []).append(link)
        return found

    def link_name(self, link: int) -> str:
        """Return e.g. ``node0.device0->node0.device3 (nvlink2)``."""
        source, target = self.vertex_names[self.source[link]], self.vertex_names[self.target[link]]
        return f"{source}->{target} ({self.link_class[link]})"

    def __repr__(self) -> str:
        return (
            f"<Topology {self.name}: {self.n_devices} devices, {self.n_vertices} vertices, "
            f"{self.n_links} directed links>"
        )


class TopologyBuilder:
    """Builds a topology: vertices, and links in any order."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.kinds: list[str] = []
        self.node_of: list[int] = []
        self._count: dict[tuple[int, int, LinkKind], int] = {}

    def vertex(self, name: str, kind: str, node: int = -1) -> int:
        """Add a vertex and return its number."""
        self.names.append(name)
        self.kinds.append(kind)
        self.node_of.append(node)
        return len(self.names) - 1

    def join(self, a: int, b: int, kind: LinkKind, count: int = 1) -> None:
        """Add `count` physical links that carry data both ways at once."""
        self.join_one_way(a, b, kind, count)
        self.join_one_way(b, a, kind, count)

    def join_one_way(self, a: int, b: int, kind: LinkKind, count: int = 1) -> None:
        """Add `count` links that carry data from `a` to `b` alone."""
        self._count[a, b, kind] = self._count.get((a, b, kind), 0) + count

    def finish(
        self,
        name: str,
        devices: Sequence[int],
        *,
        collective_latency_s: float = 0.0,
        memory_bytes_per_s: float = math.inf,
        in_switch: Mapping[str, float] | None = None,
        exchanged: Mapping[str, float] | None = None,
        library: Mapping[str, LinkLibrary] | None = None,
        host_issue: float = 1.0,
        node_constants: tuple[NodeConstants, ...] = (),
        kind_of_node: tuple[int, ...] = (),
        routing: str = "shortest",
        all_reduce: str = "",
        single_channel: bool = False,
        shape: tuple[int, ...] = (),
        blocks: tuple[tuple[str, int, LinkKind], ...] = (),
        devices_forward: bool = False,
        bisection_bytes_per_s: float | None = None,
        cost_dollars: float | None = None,
        power_w: float | None = None,
        priced: str = "",
        device_names: tuple[str, ...] = (),
        assumed: tuple[str, ...] = (),
    ) -> Topology:
        """Return the topology; `devices` are vertices in rank order."""
        rows = sorted(self._count, key=lambda row: (row[0], row[1], row[2].name))
        kinds = [kind for _, _, kind in rows]
        count = np.array([self._count[row] for row in rows], dtype=np.int32)
        bandwidth = np.array([kind.bandwidth_bytes_per_s for kind in kinds], dtype=np.float64)
        return Topology(
            name=name,
            vertex_names=tuple(self.names),
            vertex_kinds=tuple(self.kinds),
            node_of=frozen(np.array(self.node_of, dtype=np.int32)),
            source=frozen(np.array([source for source, _, _ in rows], dtype=np.int32)),
            target=frozen(np.array([target for _, target, _ in rows], dtype=np.int32)),
            bandwidth_bytes_per_s=frozen(bandwidth * count),
            latency_s=frozen(np.array([kind.latency_s for kind in kinds], dtype=np.float64)),
            energy_j_per_byte=frozen(
                np.array([kind.energy_j_per_byte for kind in kinds], dtype=np.float64)
            ),
            link_class=tuple(kind.name for kind in kinds),
            count=frozen(count),
            devices=frozen(np.array(devices, dtype=np.int32)),
            collective_latency_s=collective_latency_s,
            memory_bytes_per_s=memory_bytes_per_s,
            in_switch=in_switch or {},
            exchanged=exchanged or {},
            library=library or {},
            host_issue=host_issue,
            node_constants=node_constants,
            kind_of_node=kind_of_node,
            routing=routing,
            all_reduce=all_reduce,
            single_channel=single_channel,
            shape=shape,
            blocks=blocks,
            devices_forward=devices_forward,
            bisection_bytes_per_s=bisection_bytes_per_s,
            cost_dollars=cost_dollars,
            power_w=power_w,
            priced=priced,
            device_names=device_names,
            assumed=assumed,
        )


FABRICS: Registry[str, Callable[[TopologyBuilder, Fabric, Sequence[int], LinkKind], None]] = (
    Registry(
        "fabric",
        "ridgeline.network.topologies",
        parameters=("drawing", "fabric", "nics", "link"),
        opens=FABRIC_KINDS,
    )
)
"""Draws the switches above the NICs, given as vertices in node order; by `Fabric.kind`."""


def frozen(array: npt.NDArray[Array]) -> npt.NDArray[Array]:
    """Return an array after making it read-only."""
    array.setflags(write=False)
    return array
