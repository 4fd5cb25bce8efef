"""Draw a described cluster as a topology: its nodes, the fabric between them, its faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypedDict

from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.hardware.cluster import Cluster, Fabric
from ridgeline.hardware.device import Device
from ridgeline.hardware.node import LinkType, Node
from ridgeline.network.faults import lost_devices, read_faults, with_faults
from ridgeline.network.library import LinkLibrary, link_library
from ridgeline.network.node_constants import NO_CONSTANTS, slowest
from ridgeline.network.topology import (
    DEVICE,
    FABRICS,
    MAX_DEVICES,
    LinkKind,
    NodeConstants,
    Topology,
    TopologyBuilder,
    frozen,
)


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
    drawing = TopologyBuilder()
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


def draw_nodes(drawing: TopologyBuilder, nodes: Sequence[Node]) -> list[int]:
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
    node_constants: tuple[NodeConstants, ...]
    kind_of_node: tuple[int, ...]
    devices_forward: bool


def _fields(
    of: NodeConstants,
    each: tuple[NodeConstants, ...] = (),
    kind_of_node: tuple[int, ...] = (),
    *,
    devices_forward: bool = False,
) -> OfNodes:
    return {
        "collective_latency_s": of.collective_latency_s,
        "memory_bytes_per_s": of.memory_bytes_per_s,
        "in_switch": of.in_switch,
        "exchanged": of.exchanged,
        "library": of.library,
        "host_issue": of.host_issue,
        "node_constants": each,
        "kind_of_node": kind_of_node,
        "devices_forward": devices_forward,
    }


NO_NODES: OfNodes = _fields(NO_CONSTANTS)
"""Of a topology that is no nodes' own."""


def of_nodes(nodes: Sequence[Node]) -> OfNodes:
    """Return what a topology takes from its nodes; of several kinds, the slowest and each's own."""
    kinds = list({id(node): node for node in nodes}.values())
    each = tuple(map(_constants_of, kinds))
    number = {id(node): kind for kind, node in enumerate(kinds)}
    of_node = tuple(number[id(node)] for node in nodes)
    several = (each, of_node) if len(kinds) > 1 else ((), ())
    return _fields(slowest(each), *several, devices_forward=kinds[0].devices_forward)


def _constants_of(node: Node) -> NodeConstants:
    """Return what collectives take on a node besides its links."""
    types = node.link_types
    return NodeConstants(
        collective_latency_s=node.collective_latency.value,
        memory_bytes_per_s=far_bytes_per_s(node.devices),
        in_switch={
            name: of.in_switch.value for name, of in types.items() if of.in_switch is not None
        },
        exchanged={
            name: of.exchanged.value for name, of in types.items() if of.exchanged is not None
        },
        library={name: link_library(of, types[name]) for name, of in node.libraries.items()},
        host_issue=node.host.issue.value,
    )


def _first(topology: Topology, n_devices: int) -> Topology:
    """Return a topology whose first devices are in use, and whose others pass on messages."""
    if n_devices == topology.n_devices:
        return topology
    return replace(
        topology,
        devices=frozen(topology.devices[:n_devices].copy()),
        device_names=topology.device_names[:n_devices],
        shape=(),
        blocks=(),
        bisection_bytes_per_s=None,
        # which knows devices by their places in the whole product
        routing="shortest" if topology.routing == "dimension-ordered" else topology.routing,
    )


def _draw_fabric(
    drawing: TopologyBuilder, cluster: Cluster, fabric: Fabric, nics: Sequence[int], n_nodes: int
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
    drawing: TopologyBuilder, node: Node, number: int, link_kinds: Mapping[str, LinkKind]
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
