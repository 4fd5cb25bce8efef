"""InfraGraph documents, read and written: devices of components, instances of them, and edges.

https://infragraph.dev, schema 3.1 (YAML or JSON): a device has components (xpu, cpu, nic, switch,
port, memory, device or custom), links and edges; an infrastructure has instances of devices and
edges between their components, with ``one2one`` or ``many2many`` between slices such as
``nic[0:4]``. The form of the first release (``connections`` such as ``xpu.0.pcie.nic.0``) is read,
too. The package `infragraph` is not needed.

Ports of a switch are the switch: edges inside a device without XPUs that state no bandwidth join
their ends into one vertex. Every instance with XPUs is a node; rank order is that of instances.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ridgeline.config import Document, read_yaml
from ridgeline.errors import ConfigError, nearest
from ridgeline.network.graph import LinkRate, NetworkGraph
from ridgeline.network.topology import DEVICE, MAX_DEVICES, Topology

_BANDWIDTH = {
    "gigabits_per_second": 1e9 / 8,
    "gigabytes_per_second": 1e9,
    "giga_bits_per_second": 1e9 / 8,
    "giga_bytes_per_second": 1e9,
}
_TRANSFERS = {"gigatransfers_per_second", "giga_transfers_per_second"}
_LANES = 16
"""Of a link whose rate is given in transfers: a slot of PCIe, each of whose lanes carries a bit."""
_LATENCY = {"ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_KINDS = {"xpu": DEVICE, "cpu": "host", "nic": "nic", "switch": "switch", "port": "port"}
_PART = re.compile(r"([^.\[\]]+)(?:\[([^\]]*)\])?")
_SCHEMES = ("one2one", "many2many")

Place = tuple[str | int, ...]


@dataclass
class _Component:
    name: str
    choice: str
    count: int


@dataclass
class _Described:
    """A device: its components, links and edges."""

    name: str
    components: list[_Component]
    links: dict[str, LinkRate]
    edges: list[tuple[str, str, str, str]]  # scheme, link, ends
    place: Place
    devices: dict[str, _Described] = field(default_factory=dict)  # of which it is composed

    def has_xpus(self) -> bool:
        """Whether something in it computes."""
        return any(part.choice == "xpu" for part in self.components) or any(
            self.devices[part.name].has_xpus()
            for part in self.components
            if part.choice == "device"
        )


def is_infragraph(data: object) -> bool:
    """Tell whether a document is of this kind: an infrastructure, or a device alone."""
    if not isinstance(data, dict):
        return False
    if "infrastructure" in data:
        return isinstance(data["infrastructure"], dict)
    if "kind" in data:
        return False
    of_edges = bool(data.keys() & {"edges", "connections"})
    return of_edges and bool(data.keys() & {"instances", "components"})


def read_infragraph(path: str | Path, document: Document | None = None) -> NetworkGraph:
    """Read a document, in YAML or JSON.

    Raises
    ------
    ConfigError
        With file, line and field of the first mistake.
    """
    document = document or read_yaml(path)
    reader = _Reader(document)
    return reader.graph(Path(path).stem)


class _Reader:
    def __init__(self, document: Document) -> None:
        self.document = document
        data = document.data
        self.root: Place = ("infrastructure",) if "infrastructure" in data else ()
        self.data: dict[str, Any] = data["infrastructure"] if self.root else data
        self.devices: dict[str, _Described] = {}

    def graph(self, stem: str) -> NetworkGraph:
        name = self.data.get("name", stem)
        graph = NetworkGraph(str(name), self.document.file)
        for position, of in enumerate(self._list(self.data, "devices", self.root)):
            found = self._device(of, (*self.root, "devices", position))
            if found.name in self.devices:
                raise self.error(f"two devices are called {found.name!r}", found.place)
            self.devices[found.name] = found
        for found in self.devices.values():
            found.devices = self.devices
        if "components" in self.data:  # a device alone
            alone = self._device(self.data, self.root)
            alone.devices = self.devices
            self.devices[alone.name] = alone
            return self._joined(graph, [(alone.name, alone, 1)])
        instances = []
        for position, of in enumerate(self._list(self.data, "instances", self.root)):
            place = (*self.root, "instances", position)
            device = self._text(of, "device", place)
            if device not in self.devices:
                raise self.error(
                    f"the device {device!r} is not described in this file"
                    f"{nearest(device, self.devices)}",
                    (*place, "device"),
                )
            count = self._count(of, place)
            instances.append((self._text(of, "name", place), self.devices[device], count))
        if not instances:
            raise self.error("there are no instances of devices", self.root)
        return self._joined(graph, instances)

    def _joined(
        self, graph: NetworkGraph, instances: Sequence[tuple[str, _Described, int]]
    ) -> NetworkGraph:
        """Draw all instances and the edges between them."""
        single = "components" in self.data
        edges = [] if single else self._edges(self.data, self.root)
        drawn = _Instances(self, graph)
        node = 0
        for name, device, stated in instances:
            count = stated or _used(name, edges)
            drawn.counts[""][name] = count
            for i in range(count):
                drawn.instance(f"{name}.{i}", device, node if device.has_xpus() else -1)
                node += device.has_xpus()
                if len(drawn.parts) > MAX_DEVICES:
                    raise self.error(f"more than {MAX_DEVICES} components", self.root)
        rates = {} if single else self._links(self.data, self.root)
        of_edges = "edges" if "edges" in self.data else "connections"
        for position, edge in enumerate(edges):
            drawn.edge("", edge, rates, (*self.root, of_edges, position), inside_switch=False)
        return drawn.finished()

    def _device(self, of: Any, place: Place) -> _Described:
        components = [
            self._component(part, (*place, "components", position))
            for position, part in enumerate(self._list(of, "components", place))
        ]
        edges = self._edges(of, place)
        for part in components:
            part.count = part.count or _used(part.name, edges)
        return _Described(
            self._text(of, "name", place), components, self._links(of, place), edges, place
        )

    def _component(self, of: Any, place: Place) -> _Component:
        if not isinstance(of, dict):
            raise self.error(f"expected a mapping of fields, found {of!r}", place)
        choice = of.get("choice", of.get("type", "custom"))
        name = self._text(of, "name", place)
        return _Component(name, str(choice), self._count(of, place))

    def _links(self, of: Any, place: Place) -> dict[str, LinkRate]:
        found = {}
        for position, link in enumerate(self._list(of, "links", place)):
            at = (*place, "links", position)
            physical = link.get("physical") or link
            found[self._text(link, "name", at)] = LinkRate(
                self._rate(physical.get("bandwidth"), {**_BANDWIDTH}, at, "bandwidth"),
                self._rate(physical.get("latency"), _LATENCY, at, "latency"),
            )
        return found

    def _rate(
        self, given: Any, known: Mapping[str, float], place: Place, what: str
    ) -> float | None:
        if given is None:
            return None
        choice = given.get("choice") if isinstance(given, dict) else None
        value = given.get(choice) if isinstance(given, dict) else None
        transfers = what == "bandwidth" and choice in _TRANSFERS
        if choice not in known and not transfers:
            allowed = [*known, *(sorted(_TRANSFERS) if what == "bandwidth" else [])]
            raise self.error(
                f"a {what} has a choice and its number, found {given!r}"
                f"{nearest(str(choice), allowed)} (allowed: {', '.join(allowed)})",
                (*place, what),
            )
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise self.error(f"{choice} must be a number above 0, found {value!r}", place)
        if what == "bandwidth" and not value:
            raise self.error(f"{choice} must be above 0", place)
        if transfers:
            return float(value) * 1e9 / 8 * _LANES
        return float(value) * known[str(choice)]

    def _edges(self, of: Any, place: Place) -> list[tuple[str, str, str, str]]:
        if not isinstance(of, dict):
            raise self.error(f"expected a mapping of fields, found {of!r}", place)
        if "connections" in of:
            return [
                self._connection(text, (*place, "connections", position))
                for position, text in enumerate(self._list(of, "connections", place))
            ]
        found = []
        for position, edge in enumerate(self._list(of, "edges", place)):
            at = (*place, "edges", position)
            scheme = self._text(edge, "scheme", at)
            if scheme not in _SCHEMES:
                raise self.error(
                    f"unknown scheme {scheme!r}{nearest(scheme, _SCHEMES)} "
                    f"(allowed: {', '.join(_SCHEMES)})",
                    (*at, "scheme"),
                )
            ends = [self._end(edge.get(end), (*at, end)) for end in ("ep1", "ep2")]
            found.append((scheme, self._text(edge, "link", at), ends[0], ends[1]))
        return found

    def _end(self, of: Any, place: Place) -> str:
        """Return an endpoint as one path: instance or device, then component."""
        if not isinstance(of, dict):
            raise self.error(
                "an endpoint has instance and component, or device and component", place
            )
        parts = [str(of[name]) for name in ("instance", "device", "component") if of.get(name)]
        return ".".join(parts)

    def _connection(self, text: Any, place: Place) -> tuple[str, str, str, str]:
        """Read a connection of the first release: ends by name and number, then the link."""
        words = str(text).split(".")
        # names and numbers alternate, but for the link, which has no number behind it
        link = next(
            (
                i for i in range(2, len(words) - 1, 2)
                if not words[i].isdecimal() and not words[i + 1].isdecimal()
            ),
            -1,
        )  # fmt: skip
        if link < 0:
            raise self.error(
                f"a connection reads a.0.link.b.0, or instance.0.part.0.link.instance.0.part.0; "
                f"found {text!r}",
                place,
            )
        ends = (words[:link], words[link + 1 :])
        paths = [
            ".".join(f"{name}[{number}]" for name, number in zip(end[::2], end[1::2], strict=False))
            for end in ends
        ]
        return "one2one", words[link], paths[0], paths[1]

    def _list(self, of: Any, name: str, place: Place) -> list[Any]:
        found = of.get(name) or []
        if not isinstance(found, list):
            raise self.error(f"expected a list, found {found!r}", (*place, name))
        return found

    def _text(self, of: Any, name: str, place: Place) -> str:
        found = of.get(name) if isinstance(of, dict) else None
        if not isinstance(found, str) or not found:
            raise self.error(f"the field {name!r} is missing", place)
        return found

    def _count(self, of: Any, place: Place) -> int:
        found = of.get("count")
        if found is None:
            return 0  # of the first release: as many as its connections name
        if not isinstance(found, int) or isinstance(found, bool) or not 0 < found <= MAX_DEVICES:
            raise self.error(
                f"must be a whole number of 1 to {MAX_DEVICES}, found {found!r}", (*place, "count")
            )
        return found

    def error(self, message: str, place: Place) -> ConfigError:
        return self.document.error(message, place)


def _used(name: str, edges: Sequence[tuple[str, str, str, str]]) -> int:
    """Return how many of a thing without a count there are: as many as the edges name."""
    most = 1
    for edge in edges:
        for end in edge[2:]:
            for part, index in _PART.findall(end):
                if part == name and index:
                    numbers = [int(number) for number in re.findall(r"\d+", index)]
                    most = max([most, *(number + (":" not in index) for number in numbers)])
    return most


class _Instances:
    """Components of all instances while they are joined.

    Attributes
    ----------
    counts
        How many of each part there are below a path, "server.0".
    parts
        Components by path, "server.0.nic.3": kind of vertex and node.
    """

    def __init__(self, reader: _Reader, graph: NetworkGraph) -> None:
        self.reader, self.out = reader, graph
        self.counts: dict[str, dict[str, int]] = {"": {}}
        self.parts: dict[str, tuple[str, int]] = {}
        self.edges: dict[tuple[str, str, str], int] = {}
        self.same: dict[str, str] = {}  # ends that are one vertex

    def instance(self, path: str, device: _Described, node: int, depth: int = 0) -> None:
        """Add the components of one instance of a device, and its edges."""
        if depth > _DEEPEST:
            raise self.reader.error(
                f"the device {device.name!r} is composed of itself", device.place
            )
        computes = device.has_xpus()
        adapter = any(part.choice == "nic" for part in device.components)
        self.counts[path] = {part.name: part.count for part in device.components}
        for part in device.components:
            for i in range(part.count):
                below = f"{path}.{part.name}.{i}"
                if part.choice == "device":
                    of = device.devices.get(part.name)
                    if of is None:
                        raise self.reader.error(
                            f"the component {part.name!r} names no device"
                            f"{nearest(part.name, device.devices)}",
                            device.place,
                        )
                    self.instance(below, of, node, depth + 1)
                    continue
                kind = _KINDS.get(part.choice, "switch")
                if not computes and kind in {"host", "port", "switch"}:
                    kind = "nic" if depth and adapter else "switch"
                self.parts[below] = "switch" if kind == "port" else kind, node
        for position, edge in enumerate(device.edges):
            place = (*device.place, "edges", position)
            self.edge(path, edge, device.links, place, inside_switch=not computes)

    def edge(
        self,
        prefix: str,
        edge: tuple[str, str, str, str],
        rates: Mapping[str, LinkRate],
        place: Place,
        *,
        inside_switch: bool,
    ) -> None:
        """Join the ends of an edge, each with each or one by one."""
        scheme, link, one, other = edge
        if link not in rates:
            raise self.reader.error(f"unknown link {link!r}{nearest(link, rates)}", place)
        pairs: list[tuple[str, str]] = []
        groups = self._groups(prefix, one, place), self._groups(prefix, other, place)
        left_out = abs(len(groups[0]) - len(groups[1]))
        for near, far in zip(*groups, strict=False):  # as the package does: one by one
            if scheme == "one2one":
                pairs += zip(near, far, strict=False)
                left_out += abs(len(near) - len(far))
            else:
                pairs += ((a, b) for a in near for b in far)
        if left_out:
            where = ".".join(map(str, place))
            self.out.notes.append(
                f"{where}: {one} and {other} are not as many; the last are not joined"
            )
        found = dict.fromkeys(
            (min(pair), max(pair), link) for pair in pairs if pair[0] != pair[1]
        )  # fmt: skip
        known = self.out.rates.setdefault(link, rates[link])
        if known != rates[link]:
            link = f"{link} of {prefix.partition('.')[0] or 'the fabric'}"
            self.out.rates[link] = rates[link]
        for a, b, _ in found:
            if inside_switch and rates[link].bandwidth_bytes_per_s is None:
                one_end, other_end = self._vertex(a), self._vertex(b)
                if one_end != other_end:
                    self.same[other_end] = one_end
            else:
                self.edges[a, b, link] = self.edges.get((a, b, link), 0) + 1

    def _groups(self, prefix: str, text: str, place: Place) -> list[list[str]]:
        """Return the paths that an end means, those of each instance together."""
        paths = self._expanded(prefix, text, place)
        if prefix:
            return [paths]
        groups: dict[str, list[str]] = {}
        for path in paths:
            groups.setdefault(".".join(path.split(".")[:2]), []).append(path)
        return list(groups.values())

    def _expanded(self, prefix: str, text: str, place: Place) -> list[str]:
        """Return the paths that an end with slices means, below a prefix."""
        paths = [prefix]
        parts = list(_PART.finditer(text))
        if not parts:
            raise self.reader.error("an endpoint has no component", place)
        for part in parts:
            name, index = part[1], part[2]
            longer = []
            for path in paths:
                known = self.counts.get(path, {})
                if name not in known:
                    raise self.reader.error(
                        f"{path or 'the infrastructure'} has no {name!r}{nearest(name, known)} "
                        f"(it has: {', '.join(known) or 'no parts'})",
                        place,
                    )
                below = f"{path}.{name}" if path else name
                longer += [f"{below}.{i}" for i in self._chosen(index, known[name], text, place)]
            paths = longer
        if paths and paths[0] not in self.parts:
            raise self.reader.error(f"{text} is a device; name a component of it", place)
        return paths

    def _chosen(self, index: str | None, count: int, text: str, place: Place) -> range:
        """Return what a Python index or slice takes of so many."""
        if index is None:
            return range(count)
        numbers = index.split(":")
        if len(numbers) > 3 or not all(re.fullmatch(r"\s*-?\d*\s*", n) for n in numbers):
            raise self.reader.error(f"{text}: [{index}] is no index or slice", place)
        values = [int(number) if number.strip() else None for number in numbers]
        if len(values) == 1:
            at = values[0]
            if at is None or not -count <= at < count:
                raise self.reader.error(f"{text}: there are {count}, found [{index}]", place)
            return range(at % count, at % count + 1)
        if any(value is not None and value > count for value in values[:2]):
            raise self.reader.error(f"{text}: there are {count}, found [{index}]", place)
        return range(count)[slice(*values)]

    def _vertex(self, path: str) -> str:
        while path in self.same:
            path = self.same[path]
        return path

    def finished(self) -> NetworkGraph:
        """Return the graph of what is joined to anything, and of all devices."""
        kind_of: dict[str, tuple[str, int]] = {}
        for path, (kind, node) in self.parts.items():
            at = self._vertex(path)
            if at not in kind_of or (kind == "nic" and kind_of[at][0] != "nic"):
                kind_of[at] = kind, node
        used = {self._vertex(end) for a, b, _ in self.edges for end in (a, b)}
        number = {
            path: self.out.vertex(path, kind, node)
            for path, (kind, node) in kind_of.items()
            if path in used or kind == DEVICE
        }
        for (a, b, link), count in self.edges.items():
            ends = self._vertex(a), self._vertex(b)
            if ends[0] != ends[1]:
                self.out.join(number[ends[0]], number[ends[1]], link, count)
        return self.out


_DEEPEST = 8


def written_infragraph(topology: Topology) -> dict[str, Any]:
    """Return a topology as a document: a device for each kind of node, and one for switches.

    Nodes that look alike are instances of one device; switches of the fabric are instances of
    `switch`, whose ports are not told apart. Parallel links are edges of their own.
    """
    node_of = topology.node_of.tolist()
    members: dict[int, list[int]] = {}
    for vertex, node in enumerate(node_of):
        members.setdefault(node, []).append(vertex)
    fabric = members.pop(-1, [])
    order = {vertex: rank for rank, vertex in enumerate(topology.devices.tolist())}
    first = {node: min(order.get(v, len(node_of)) for v in of) for node, of in members.items()}
    end: dict[int, tuple[str, str]] = {}
    devices: dict[str, dict[str, Any]] = {}
    instances: list[dict[str, Any]] = []
    links = _written_links(topology)
    inside = _links_inside(topology)
    for node in sorted(members, key=lambda node: first[node]):
        names = _component_names(topology, members[node], order)
        described = {
            "components": [
                {"name": name, "count": sum(own[0] == name for own in names.values()),
                 "choice": _CHOICES.get(kind, "switch")}
                for name, kind in dict.fromkeys(
                    (names[v][0], topology.vertex_kinds[v]) for v in members[node]
                )
            ],
            "links": links,
            "edges": [
                _one_edge(links[k]["name"], *({"component": _at(names[v])} for v in (a, b)))
                for a, b, k, count in inside.get(node, [])
                for _ in range(count)
            ],
        }  # fmt: skip
        text = json.dumps(described)
        known = devices.setdefault(text, {"name": f"node{len(devices)}", **described})
        if instances and instances[-1]["device"] == known["name"]:
            instances[-1]["count"] += 1
        else:
            instances.append(
                {"name": f"nodes{len(instances)}", "device": known["name"], "count": 1}
            )
        at = f"{instances[-1]['name']}[{instances[-1]['count'] - 1}]"
        end.update({v: (at, _at(names[v])) for v in members[node]})
    if fabric:
        asic = {"name": "asic", "count": 1, "choice": "switch"}
        devices["switch"] = {"name": "switch", "components": [asic], "links": [], "edges": []}
        instances.append({"name": "switches", "device": "switch", "count": len(fabric)})
        end.update({v: (f"switches[{i}]", "asic[0]") for i, v in enumerate(fabric)})
    between = [
        _one_edge(
            links[k]["name"], *({"instance": end[v][0], "component": end[v][1]} for v in (a, b))
        )
        for a, b, k, count in inside.get(-1, [])
        for _ in range(count)
    ]
    return {
        "name": topology.name, "description": f"{topology.n_devices} devices",
        "devices": list(devices.values()), "links": links, "instances": instances, "edges": between,
    }  # fmt: skip


_CHOICES = {DEVICE: "xpu", "host": "cpu", "nic": "nic", "switch": "switch"}


def _one_edge(link: str, one: dict[str, str], other: dict[str, str]) -> dict[str, Any]:
    return {"scheme": "one2one", "link": link, "ep1": one, "ep2": other}


def _at(component: tuple[str, int]) -> str:
    return f"{component[0]}[{component[1]}]"


def _component_names(
    topology: Topology, vertices: Sequence[int], order: Mapping[int, int]
) -> dict[int, tuple[str, int]]:
    """Return the component and index of each vertex of a node; devices in rank order."""
    count: dict[str, int] = {}
    found = {}
    for vertex in sorted(vertices, key=lambda v: (order.get(v, len(order)), v)):
        name = _CHOICES.get(topology.vertex_kinds[vertex], "switch")
        found[vertex] = name, count.get(name, 0)
        count[name] = count.get(name, 0) + 1
    return {vertex: found[vertex] for vertex in vertices}


def _link_key(topology: Topology, link: int) -> tuple[str, float, float]:
    each = float(topology.bandwidth_bytes_per_s[link] / topology.count[link])
    return topology.link_class[link], each, float(topology.latency_s[link])


def _written_links(topology: Topology) -> list[dict[str, Any]]:
    """Return the links of a document: each class, bandwidth and latency once."""
    keys = list(dict.fromkeys(_link_key(topology, link) for link in range(topology.n_links)))
    names = [name for name, _, _ in keys]
    return [
        {
            "name": name if names.count(name) == 1 else f"{name}-{number}",
            "physical": {
                "bandwidth": {"choice": "gigabytes_per_second", "gigabytes_per_second": rate / 1e9},
                "latency": {"choice": "ns", "ns": latency_s * 1e9},
            },
        }
        for number, (name, rate, latency_s) in enumerate(keys)
    ]


def _links_inside(topology: Topology) -> dict[int, list[tuple[int, int, int, int]]]:
    """Return the links in each node, under -1 those between: ends, number of the link, count."""
    keys = list(dict.fromkeys(_link_key(topology, link) for link in range(topology.n_links)))
    found: dict[int, list[tuple[int, int, int, int]]] = {}
    for link, (a, b) in enumerate(_ends(topology)):
        if a < b:
            nodes = topology.node_of[a], topology.node_of[b]
            node = int(nodes[0]) if nodes[0] == nodes[1] else -1
            key = keys.index(_link_key(topology, link))
            found.setdefault(node, []).append((a, b, key, int(topology.count[link])))
    return found


def _ends(topology: Topology) -> Iterator[tuple[int, int]]:
    yield from zip(topology.source.tolist(), topology.target.tolist(), strict=True)


def write_infragraph(topology: Topology, path: str | Path) -> None:
    """Write a topology as an InfraGraph document, .json or .yaml.

    Raises
    ------
    ConfigError
        If the file name ends otherwise, or the file cannot be written.
    """
    target, content = Path(path), written_infragraph(topology)
    if target.suffix not in {".json", ".yaml", ".yml"}:
        raise ConfigError(f"an InfraGraph document ends in .json or .yaml; found {target.name!r}")
    text = json.dumps(content, indent=1)  # JSON is YAML
    try:
        target.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror}", file=str(path)) from error
