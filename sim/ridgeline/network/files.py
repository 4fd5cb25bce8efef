"""Topologies from YAML files: any graph of devices, switches, NICs and links.

Shipped nodes can stand in it, too: their devices, NICs and switches are ``node0.device3``,
``node0.nic1``, and an end of a link may be a pattern, ``node*.nic0``, that joins all that it means.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from ridgeline import catalog, units
from ridgeline.config import Document, FieldError, Strict, overridden, read_yaml, validate
from ridgeline.errors import ConfigError, nearest
from ridgeline.hardware.load import load_node
from ridgeline.hardware.node import Node
from ridgeline.network.cluster_topology import NO_NODES, draw_nodes, of_nodes
from ridgeline.network.topology import DEVICE, MAX_DEVICES, LinkKind, Topology, TopologyBuilder


class _LinkType(Strict):
    bandwidth: units.BytesPerSecond
    """Of one link in one direction, as payload reaches it."""
    latency: units.Seconds
    energy: units.JoulesPerByte = 0.0
    cost: units.Dollars | None = None
    """Of one link with both of its ends."""
    power: units.Watts | None = None


class _Nodes(Strict):
    node: str
    """Name of a node, or a path."""
    count: int = Field(default=1, ge=1, le=MAX_DEVICES)


class _Link(Strict):
    between: tuple[str, str] = Field(strict=False)
    """Two vertices; a pattern of names, or a range (`_ranged`), means each that it fits."""
    type: str
    count: int = Field(default=1, ge=1, le=4096)


def _ranged(name: str) -> list[str]:
    """Write out the first range of numbers in a name: ``gpu[0..3]`` is four names."""
    found = _RANGE.search(name)
    if found is None:
        return [name]
    first, last = map(int, found.groups())
    each = range(first, min(last, first + MAX_DEVICES) + 1)
    return [f"{name[: found.start()]}{n}{name[found.end() :]}" for n in each]


def _written_out(names: tuple[str, ...]) -> tuple[str, ...]:
    """Write out ranges; refuse patterns, which only links have."""
    found = tuple(each for name in names for each in _ranged(name))
    for name in found:
        if set(name) & set("*?["):
            raise ValueError(
                f"{name!r} is a pattern, which only links have; name each vertex, or a range of"
                " numbers: gpu[0..7]"
            )
    return found


_RANGE = re.compile(r"\[(\d+)\.\.(\d+)\]")
_Names = Annotated[tuple[str, ...], Field(strict=False), AfterValidator(_written_out)]


class _Graph(Strict):
    """What a topology file holds."""

    kind: Literal["topology"]
    name: str
    description: str = ""
    devices: _Names = ()
    """In rank order; of `nodes` those of the nodes."""
    device: str | dict[str, str] = ""
    """Name of the devices, or names by patterns of them: what a step is trained on."""
    nodes: tuple[_Nodes, ...] = Field(default=(), strict=False)
    """Nodes of the catalogue, or of files, that stand in the graph."""
    nics: _Names = ()
    hosts: _Names = ()
    node_of: dict[str, int] = Field(default_factory=dict)
    """Number of the node that a vertex is in, by patterns of names; all are in one if none is."""
    switch_cost: units.Dollars | None = None
    """Of one switch."""
    switch_power: units.Watts | None = None
    switches: _Names = ()
    devices_forward: bool = False
    routing: str = "shortest"
    shape: tuple[int, ...] = Field(default=(), strict=False)
    link_types: dict[str, _LinkType]
    links: tuple[_Link, ...] = Field(strict=False)

    @model_validator(mode="after")
    def _consistent(self) -> _Graph:
        names = (*self.devices, *self.switches, *self.nics, *self.hosts)
        if len(set(names)) != len(names):
            raise FieldError("two vertices have the same name", "devices")
        if bool(self.devices) == bool(self.nodes):
            raise FieldError(
                "a topology has devices of its own, or nodes with their devices", "devices"
            )
        for position, link in enumerate(self.links):
            if link.between[0] == link.between[1]:
                raise FieldError("a link joins a vertex to itself", "links", position, "between")
            if link.type not in self.link_types:
                raise FieldError(
                    f"unknown link type {link.type!r}{nearest(link.type, self.link_types)}",
                    *("links", position, "type"),
                )
        for name, of in self.link_types.items():
            if of.bandwidth <= 0:
                raise FieldError("must be more than 0", "link_types", name, "bandwidth")
        return self


def from_file(path: str | Path, overrides: Mapping[str, Any] | None = None) -> Topology:
    """Read a topology from a YAML file, with the fields at dotted paths replaced.

    The file has ``kind: topology``, a name, ``devices`` and ``switches`` by name, ``link_types``
    (bandwidth, latency and, if wanted, energy of one link and direction, and cost and power of one
    link) and ``links`` (between, type, count), and, if wanted, ``switch_cost`` and
    ``switch_power``; it says with ``devices_forward`` whether devices pass on messages of others.

    Raises
    ------
    ConfigError
        With file, line and field of the first mistake.
    """
    document = overridden(read_yaml(path), overrides or {})
    graph = validate(document, _Graph)
    nodes = [_loaded(document, of, i) for i, of in enumerate(graph.nodes) for _ in range(of.count)]
    drawing = TopologyBuilder()
    devices = draw_nodes(drawing, nodes)
    single = 0 if not graph.node_of and not nodes else -1
    roles = {
        DEVICE: graph.devices,
        "switch": graph.switches,
        "nic": graph.nics,
        "host": graph.hosts,
    }
    for kind, names in roles.items():
        for name in names:
            number = next((n for p, n in graph.node_of.items() if fnmatchcase(name, p)), single)
            vertex = drawing.vertex(name, kind, number)
            devices += [vertex] if kind == DEVICE else []
    kinds = {
        name: LinkKind(name, of.bandwidth, of.latency, of.energy)
        for name, of in graph.link_types.items()
    }
    vertices = {name: number for number, name in enumerate(drawing.names)}
    for position, link in enumerate(graph.links):
        for a in _matching(document, vertices, link.between[0], position):
            for b in _matching(document, vertices, link.between[1], position):
                if a != b:
                    drawing.join(a, b, kinds[link.type], link.count)
    fields = of_nodes(nodes) if nodes else NO_NODES.copy()
    fields["devices_forward"] = graph.devices_forward or fields["devices_forward"]
    return drawing.finish(
        graph.name,
        devices,
        **fields,
        routing=graph.routing,
        shape=graph.shape or _regular(nodes),
        device_names=_device_names(document, graph, nodes),
        cost_dollars=_sum(
            graph.switch_cost,
            len(graph.switches),
            [(graph.link_types[link.type].cost, link.count) for link in graph.links],
        ),
        power_w=_sum(
            graph.switch_power,
            len(graph.switches),
            [(graph.link_types[link.type].power, link.count) for link in graph.links],
        ),
        priced="switches and links",
    )


def _loaded(document: Document, of: _Nodes, position: int) -> Node:
    """Load a node; a relative path counts from the file that names it."""
    name = of.node
    if name not in catalog.names("nodes") and catalog.is_path(name):
        name = str(Path(document.file).parent / name)
    try:
        return _node(name)
    except ConfigError as error:
        raise document.error(error.message, ("nodes", position, "node")) from error


@lru_cache(maxsize=8)
def _node(name: str) -> Node:
    """Load a node; equal ones of a graph are one."""
    return load_node(name)


def _matching(
    document: Document, vertices: Mapping[str, int], name: str, position: int
) -> list[int]:
    """Return the vertices of a name, or of a pattern of names."""
    if name in vertices:
        return [vertices[name]]
    patterns = _ranged(name)
    found = [
        number
        for known, number in vertices.items()
        if any(fnmatchcase(known, pattern) for pattern in patterns)
    ]
    if not found:
        raise document.error(
            f"a link ends at {name!r}, which does not exist{nearest(name, vertices)}",
            ("links", position, "between"),
        )
    return found


def _regular(nodes: Sequence[Node]) -> tuple[int, ...]:
    counts = {node.count for node in nodes}
    return (counts.pop(), len(nodes)) if len(counts) == 1 and len(nodes) > 1 else ()


def _device_names(document: Document, graph: _Graph, nodes: Sequence[Node]) -> tuple[str, ...]:
    """Return the name of each rank's device, if the file says it."""
    if nodes:
        if graph.device:
            raise document.error("the nodes say what their devices are", ("device",))
        return tuple(node.device for node in nodes for _ in range(node.count))
    if isinstance(graph.device, str):
        return (graph.device,) * len(graph.devices) if graph.device else ()
    found = []
    for name in graph.devices:
        device = next((d for p, d in graph.device.items() if fnmatchcase(name, p)), None)
        if device is None:
            raise document.error(f"no pattern fits {name!r}", ("device",))
        found.append(device)
    return tuple(found)


def _sum(
    switch: float | None, n_switches: int, links: list[tuple[float | None, int]]
) -> float | None:
    """Add up what is given; None if anything is not."""
    total = 0.0
    for each, count in [(switch if n_switches else 0.0, n_switches), *links]:
        if each is None:
            return None
        total += each * count
    return total
