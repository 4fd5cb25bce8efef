"""Topology: the machine's graph as arrays, one row per directed link.

It comes from a described cluster, from inline text such as ``"Ring(16, 50 GB/s, 500 ns)"``
(`ridgeline.network.inline`) or from a file (`ridgeline.network.files`). A fabric between nodes and
an inline topology are each one file in `ridgeline.network.topologies`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypedDict, TypeVar

import numpy as np
import numpy.typing as npt

from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.hardware.cluster import Cluster, Fabric
from ridgeline.hardware.device import Device
from ridgeline.hardware.node import LinkType, Node
from ridgeline.network.library import LinkLibrary, link_library
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
        return _frozen(np.array([number[name] for name in self.link_class], np.int32))

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
        return _frozen(np.concatenate(([0], np.cumsum(count))).astype(np.int32))

    @cached_property
    def forwards(self) -> npt.NDArray[np.bool_]:
        """[V] whether the vertex passes on what is meant for others."""
        return _frozen(
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
        return _frozen(ordinal)

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


class Drawing:
    """A topology while it is being drawn: vertices, and links in any order."""

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
            node_of=_frozen(np.array(self.node_of, dtype=np.int32)),
            source=_frozen(np.array([source for source, _, _ in rows], dtype=np.int32)),
            target=_frozen(np.array([target for _, target, _ in rows], dtype=np.int32)),
            bandwidth_bytes_per_s=_frozen(bandwidth * count),
            latency_s=_frozen(np.array([kind.latency_s for kind in kinds], dtype=np.float64)),
            energy_j_per_byte=_frozen(
                np.array([kind.energy_j_per_byte for kind in kinds], dtype=np.float64)
            ),
            link_class=tuple(kind.name for kind in kinds),
            count=_frozen(count),
            devices=_frozen(np.array(devices, dtype=np.int32)),
            collective_latency_s=collective_latency_s,
            memory_bytes_per_s=memory_bytes_per_s,
            in_switch=in_switch or {},
            exchanged=exchanged or {},
            library=library or {},
            host_issue=host_issue,
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


FABRICS: Registry[str, Callable[[Drawing, Fabric, Sequence[int], LinkKind], None]] = Registry(
    "fabric", "ridgeline.network.topologies"
)
"""Draws the switches above the NICs, given as vertices in node order; by `Fabric.kind`."""


def from_cluster(cluster: Cluster, n_devices: int) -> Topology:
    """Draw as many nodes of a cluster as `n_devices` need, and the fabric between them.

    Nodes are filled in order; a last node that is not full is drawn whole, and its surplus devices
    are not in use. A single node has no fabric.

    Raises
    ------
    RidgelineError
        If the cluster has fewer devices, or the fabric cannot join that many NICs.
    """
    if not 1 <= n_devices <= cluster.max_devices:
        raise RidgelineError(
            f"{n_devices} devices were asked for; {cluster.name!r} has 1 to {cluster.max_devices}"
        )
    if n_devices > MAX_DEVICES:
        raise RidgelineError(
            f"{n_devices} devices were asked for; topologies of up to {MAX_DEVICES} can be drawn"
        )
    if cluster.faults:
        return _faulty(cluster, n_devices)
    if cluster.drawn is not None:
        return _first(cluster.drawn, n_devices)
    nodes = cluster.nodes_of(n_devices)
    drawing = Drawing()
    devices = draw_nodes(drawing, nodes)
    if len(nodes) > 1:
        assert cluster.fabric is not None  # the schema demands one of every larger cluster
        nics = [v for v, kind in enumerate(drawing.kinds) if kind == "nic"]
        try:
            _draw_fabric(drawing, cluster, cluster.fabric, nics, len(nodes))
        except RidgelineError as error:
            raise RidgelineError(f"{cluster.name}: fabric: {error}") from error
    powers = [_node_power_w(node) for node in nodes]
    prices = [None if node.price is None else node.price.value for node in nodes]
    return drawing.finish(
        cluster.name,
        devices[:n_devices],
        **of_nodes(nodes),
        routing="shortest" if cluster.fabric is None else cluster.fabric.routing,
        all_reduce="" if cluster.fabric is None else cluster.fabric.all_reduce,
        shape=_shape(cluster, len(nodes)) if n_devices == len(devices) else (),
        cost_dollars=_total(prices),
        power_w=_total(powers),
        priced=f"{len(nodes)} {'nodes' if len(nodes) > 1 else 'node'}"
        + (" without the fabric's switches" if len(nodes) > 1 else ""),
    )


def _faulty(cluster: Cluster, n_devices: int) -> Topology:
    """Draw a cluster with its faults; where devices are lost, others take their places."""
    from ridgeline.network.faults import lost_devices, read_faults, with_faults

    faults, whole = read_faults(cluster.faults), cluster.model_copy(update={"faults": ()})
    topology = from_cluster(whole, n_devices)
    if not faults.of_network:
        return topology
    if lost := lost_devices(topology, faults):
        topology = from_cluster(whole, min(cluster.max_devices, n_devices + len(set(lost))))
    return with_faults(topology, faults, n_devices)


def _total(values: Sequence[float | None]) -> float | None:
    """Add up what is known of all; n equal values are n times one."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return sum(count * value for value, count in Counter(known).items())


def draw_nodes(drawing: Drawing, nodes: Sequence[Node]) -> list[int]:
    """Draw nodes and the links in them, and return their devices in the order of their ranks."""
    kinds: dict[int, Mapping[str, LinkKind]] = {}
    devices: list[int] = []
    for number, node in enumerate(nodes):
        if id(node) not in kinds:
            kinds[id(node)] = {
                name: _link_kind(name, of, node) for name, of in node.link_types.items()
            }
        first = _draw_node(drawing, node, number, kinds[id(node)])
        devices += range(first, first + node.count)
    return devices


class OfNodes(TypedDict):
    """What a topology takes from the nodes that it joins."""

    collective_latency_s: float
    memory_bytes_per_s: float
    in_switch: Mapping[str, float]
    exchanged: Mapping[str, float]
    library: Mapping[str, LinkLibrary]
    host_issue: float
    devices_forward: bool


NO_NODES: OfNodes = {
    "collective_latency_s": 0.0,
    "memory_bytes_per_s": math.inf,
    "in_switch": {},
    "exchanged": {},
    "library": {},
    "host_issue": 1.0,
    "devices_forward": False,
}
"""Of a topology that is no nodes' own."""


def of_nodes(nodes: Sequence[Node]) -> OfNodes:
    """Return what a topology takes from its nodes; of several kinds, the slowest counts."""
    kinds = list({id(node): node for node in nodes}.values())
    types = {name: of for node in kinds for name, of in node.link_types.items()}
    return {
        "collective_latency_s": max(node.collective_latency.value for node in kinds),
        "memory_bytes_per_s": min(far_bytes_per_s(node.devices) for node in kinds),
        "in_switch": {
            name: of.in_switch.value for name, of in types.items() if of.in_switch is not None
        },
        "exchanged": {
            name: of.exchanged.value for name, of in types.items() if of.exchanged is not None
        },
        "library": {
            name: link_library(of, node.link_types[name])
            for node in reversed(kinds)
            for name, of in node.libraries.items()
        },
        "host_issue": max(node.host.issue.value for node in kinds),
        "devices_forward": kinds[0].devices_forward,
    }


def _first(topology: Topology, n_devices: int) -> Topology:
    """Return a topology whose first devices are in use, and whose others pass on messages."""
    if n_devices == topology.n_devices:
        return topology
    return replace(
        topology,
        devices=_frozen(topology.devices[:n_devices].copy()),
        device_names=topology.device_names[:n_devices],
        shape=(),
        blocks=(),
        bisection_bytes_per_s=None,
        # which knows devices by their places in the whole product
        routing="shortest" if topology.routing == "dimension-ordered" else topology.routing,
    )


def _draw_fabric(
    drawing: Drawing, cluster: Cluster, fabric: Fabric, nics: Sequence[int], n_nodes: int
) -> None:
    """Join NICs by the fabric, or by one for each slice and an ideal switch between slices."""

    def kind(name: str) -> LinkKind:
        return _link_kind(name, cluster.link_types[name], cluster)

    slices, link = fabric.slices_of(n_nodes), kind(fabric.link)
    each = len(nics) // slices
    for first in range(0, len(nics), each):
        FABRICS[fabric.kind](drawing, fabric, nics[first : first + each], link)
    if slices > 1:
        FABRICS["switch"](drawing, fabric, nics, kind(fabric.between))


def _shape(cluster: Cluster, n_nodes: int) -> tuple[int, ...]:
    """Devices of a node, and nodes; those of a grid by its dimensions, the last that of slices."""
    if len({node.count for node in cluster.group_nodes}) > 1:
        return ()  # nodes of unlike size
    fabric = cluster.fabric
    if n_nodes > 1 and fabric is not None and fabric.kind in {"torus", "mesh"}:
        slices = fabric.slices_of(n_nodes)
        joined = (slices,) if slices > 1 else ()
        return (cluster.nodes.count, *fabric.slice_of(n_nodes // slices), *joined)
    if n_nodes == 1 and cluster.nodes.devices_forward and cluster.nodes.grid:
        return (1, *cluster.nodes.grid)  # one node, as one of many nodes on a grid
    return (cluster.nodes.count, n_nodes)


def far_bytes_per_s(device: Device) -> float:
    """Return what copies in the far memory of a device reach, reads and writes together."""
    far = device.memory[device.far_memory]
    assert far.bandwidth is not None  # the schema demands it of the farthest
    return far.bandwidth.value * far.achievable.value


def _node_power_w(node: Node) -> float | None:
    """Devices at their thermal design power and the rest of the node, where both are given."""
    if node.power is None or node.devices.tdp is None:
        return None
    return node.power.wall_w(node.power.most_w + node.count * node.devices.tdp.value)


def _draw_node(
    drawing: Drawing, node: Node, number: int, link_kinds: Mapping[str, LinkKind]
) -> int:
    """Draw one node and return its first vertex, which is its first device."""
    kinds = [DEVICE] * node.count + [component.kind for component in node.components]
    vertex = {
        name: drawing.vertex(f"node{number}.{name}", kind, number)
        for name, kind in zip(node.vertices, kinds, strict=True)
    }
    for link in node.links:
        for a, b in link.ends:
            drawing.join(vertex[a], vertex[b], link_kinds[link.type], link.count)
    return vertex[node.vertices[0]]


def _link_kind(name: str, link_type: LinkType, owner: Node | Cluster) -> LinkKind:
    bandwidth = link_type.bandwidth.value * link_type.achievable.value
    if bandwidth <= 0:
        raise ConfigError(f"link type {name!r} of {owner.name!r}: achievable must be more than 0")
    return LinkKind(name, bandwidth, link_type.latency.value, link_type.price_j(owner.prices))


def _frozen(array: npt.NDArray[Array]) -> npt.NDArray[Array]:
    array.setflags(write=False)
    return array
