"""A network as a file of another program describes it: a graph whose links may lack their rates.

`NetworkGraph.drawn` makes the topology. What the file does not say comes from the shipped node
that has the named device (the bandwidth of its NVLinks, divided among the edges of the graph), and
from `hwconfigs/interconnects.yaml` (latencies). Everything that was filled in is named in
`Topology.assumed`; a bandwidth that nothing gives is an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TypeVar

import numpy as np

from ridgeline import catalog, units
from ridgeline.errors import ConfigError
from ridgeline.hardware.load import description, load_node
from ridgeline.hardware.node import Node
from ridgeline.network.cluster_topology import NO_NODES, OfNodes, of_nodes
from ridgeline.network.interconnects import interconnects
from ridgeline.network.topology import DEVICE, LinkKind, Topology, TopologyBuilder

Value = TypeVar("Value")


@dataclass(frozen=True)
class LinkRate:
    """What is known of a link in one direction; None: the file does not say it."""

    bandwidth_bytes_per_s: float | None = None
    latency_s: float | None = None


@dataclass
class NetworkGraph:
    """Vertices by role, and links by name.

    Attributes
    ----------
    file
        For messages.
    rates
        By name of a link.
    devices
        Vertices in rank order.
    device_names
        Of each rank, where the file says it.
    edges
        (a, b, name of the link) and how many parallel ones there are.
    notes
        What the file says that was not taken as it is, in words.
    """

    name: str
    file: str
    rates: dict[str, LinkRate] = field(default_factory=dict)
    drawing: TopologyBuilder = field(default_factory=TopologyBuilder)
    devices: list[int] = field(default_factory=list)
    device_names: tuple[str, ...] = ()
    edges: Counter[tuple[int, int, str]] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def vertex(self, name: str, kind: str, node: int = -1) -> int:
        """Add a vertex: device, host, switch or nic; a device is the next rank."""
        number = self.drawing.vertex(name, kind, node)
        if kind == DEVICE:
            self.devices.append(number)
        return number

    def join(self, a: int, b: int, link: str, count: int = 1) -> None:
        """Add parallel links between two vertices."""
        self.edges[min(a, b), max(a, b), link] += count

    def drawn(self, device: str = "") -> Topology:
        """Return the topology, its missing rates filled in.

        Parameters
        ----------
        device
            Name of the devices, whose shipped node tells the bandwidth of links that have none.

        Raises
        ------
        ConfigError
            If there are no devices, or a link has no bandwidth.
        """
        if not self.devices:
            raise ConfigError(
                "no devices (GPUs or XPUs) are in it: nothing can be trained on it, or sent",
                file=self.file,
            )
        self._leave_out_dead_ends()
        assumed = list(self.notes)
        nodes = [self.drawing.node_of[vertex] for vertex in self.devices]
        kinds = {name: self._kind(name, device, assumed) for name in self._links()}
        for (a, b, name), count in self.edges.items():
            self.drawing.join(a, b, kinds[name], count)
        each = set(Counter(nodes).values())
        regular = len(each) == 1 and nodes == sorted(nodes)
        node = _node_with(device) if device else None
        fields = NO_NODES if node is None else _renamed(of_nodes([node]), self._links())
        if node is not None and node.collective_latency.value:
            assumed.append(f"collectives start, and drive NVLinks, as on {node.name}")
        found = self.drawing.finish(
            self.name,
            self.devices,
            shape=(each.pop(), len(set(nodes))) if regular and len(set(nodes)) > 1 else (),
            device_names=self.device_names,
            assumed=tuple(assumed),
            **fields,
        )
        if reached_from(found, found.devices[0]):
            return found
        through = replace(
            found,
            devices_forward=True,
            assumed=(
                *assumed,
                "devices pass on messages of others, who else do not meet",
            ),
        )
        return through if reached_from(through, found.devices[0]) else found

    def _leave_out_dead_ends(self) -> None:
        """Take away links without a bandwidth to what no message passes, such as memory."""
        degree = Counter(end for a, b, _ in self.edges for end in {a, b})
        kinds = self.drawing.kinds
        names = set()
        for a, b, name in list(self.edges):
            ends = (kinds[end] == "switch" and degree[end] == 1 for end in (a, b))
            if self.rates.get(name, LinkRate()).bandwidth_bytes_per_s is None and any(ends):
                del self.edges[a, b, name]
                names.add(name)
        if names:
            listed = ", ".join(sorted(map(repr, names)))
            self.notes.append(f"links {listed} to what no message passes are left out")

    def _links(self) -> Sequence[str]:
        return list(dict.fromkeys(name for _, _, name in self.edges))

    def _kind(self, name: str, device: str, assumed: list[str]) -> LinkKind:
        rate, family = self.rates.get(name, LinkRate()), interconnects().family(name)
        bandwidth, latency_s = rate.bandwidth_bytes_per_s, rate.latency_s
        if bandwidth is None:
            bandwidth, why = self._like_a_node(name, family.name, device)
            assumed.append(f"links {name!r}: {units.show(bandwidth, 'B/s', 4)}, {why}")
        if latency_s is None:
            latency_s = family.latency
            assumed.append(
                f"links {name!r}: latency {units.show(latency_s, 's')} ({family.source})"
            )
        return LinkKind(name, bandwidth, latency_s, energy_j_per_byte=0.0)

    def _like_a_node(self, name: str, family: str, device: str) -> tuple[float, str]:
        """Return the bandwidth of a link without one, as of the shipped node with such a device."""
        node = _node_with(device) if device else None
        found = None if node is None else _of_device(node, family)
        if node is not None and found is not None:
            of_first = self._edges_of_first(name)
            share = found / of_first if of_first else found
            return share, f"as a {device} has in {node.name}, over {max(of_first, 1)} such links"
        if family == "socket":
            host = interconnects().socket_bytes_per_s("x86_64", "", 0)
            return host, "as between the processors of an x86 server"
        what = (
            f"no shipped node of {device} has links of the kind {family}"
            if device
            else "name the device (--device, or cluster.device), whose shipped node may tell it"
        )
        raise ConfigError(
            f"the link {name!r} has no bandwidth; write it into the file, or {what}",
            file=self.file,
            field=name,
        )

    def _edges_of_first(self, name: str) -> int:
        first = self.devices[0]
        return sum(
            count for (a, b, of), count in self.edges.items() if of == name and first in {a, b}
        )


def _renamed(fields: OfNodes, links: Sequence[str]) -> OfNodes:
    """Return what a node says of its link types, for links of a graph of the same kinds."""
    family = interconnects().family

    def of(known: Mapping[str, Value]) -> dict[str, Value]:
        by_family = {family(name).name: value for name, value in reversed(list(known.items()))}
        kinds = ((name, family(name).name) for name in links)
        return {name: by_family[kind] for name, kind in kinds if kind in by_family}

    return {
        **fields,
        "in_switch": of(fields["in_switch"]),
        "exchanged": of(fields["exchanged"]),
        "library": of(fields["library"]),
    }


def reached_from(topology: Topology, start: int) -> bool:
    """Tell whether a vertex has a way to all devices."""
    reached = np.zeros(topology.n_vertices, np.bool_)
    reached[start] = True
    forwards = topology.forwards.copy()
    forwards[start] = True
    while True:
        passed = topology.target[(reached & forwards)[topology.source]]
        new = np.unique(passed[~reached[passed]])
        if not len(new):
            return bool(reached[topology.devices].all())
        reached[new] = True


@lru_cache(maxsize=8)
def _node_with(device: str) -> Node | None:
    """Return the shipped node that has a device, the one of most devices."""
    names = [
        name for name in catalog.names("nodes")
        if description("nodes", name).data.get("device") == device
    ]  # fmt: skip
    nodes = [load_node(name) for name in names]
    return max(nodes, key=lambda node: (node.count, -len(node.name)), default=None)


def _of_device(node: Node, family: str) -> float | None:
    """Return what all links of a family carry from the first device of a node, one way."""
    found = 0.0
    for link in node.links:
        of = node.link_types[link.type]
        ends = sum("device0" in pair for pair in link.ends)
        if ends and interconnects().family(link.type).name == family:
            found += ends * link.count * of.bandwidth.value * of.achievable.value
    if found or family != "socket":
        return found or None
    types = (
        of for name, of in node.link_types.items() if interconnects().family(name).name == family
    )
    return max((of.bandwidth.value * of.achievable.value for of in types), default=None)
