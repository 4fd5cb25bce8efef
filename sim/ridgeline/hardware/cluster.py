"""A cluster: nodes, the network between them and storage."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ridgeline import units, views
from ridgeline.config import FieldError, Strict
from ridgeline.errors import nearest
from ridgeline.hardware.device import Device
from ridgeline.hardware.energy import EnergyTable
from ridgeline.hardware.node import LinkType, Node, priced_links
from ridgeline.hardware.sourced import DEFAULT, Described, Sourced
from ridgeline.open_names import OpenNames

Ratio = Annotated[float, Field(ge=1.0, le=1024.0, strict=False)]


FABRIC_KINDS = OpenNames("fat-tree", "rail-optimised", "dragonfly", "torus", "mesh", "switch")
"""Kinds of networks between nodes; a plug-in adds one (`network.topology.FABRICS`)."""


class Fabric(Strict):
    """The network between nodes."""

    kind: Annotated[str, FABRIC_KINDS]
    """"fat-tree": leaf switches with half their ports down and half up, or fewer up, and one or two
    levels above them; "rail-optimised": the same, but NICs of equal position in their nodes share a
    leaf; "dragonfly": groups of fully linked routers, every two groups linked; "torus": node to
    node, a ring of nodes in each dimension; "mesh": the same without the links that close rings, as
    on a wafer; "switch": one ideal switch; others as the plug-in that registers the name does."""
    link: str
    """Link type of every cable."""
    parameters: dict[str, float | str] = Field(default_factory=dict)
    """Of a fabric whose kind a plug-in registers: numbers and texts that its function reads."""
    radix: int | None = Field(default=None, ge=2, le=4096, multiple_of=2)
    """Ports of one switch; of a fat tree, and of a dragonfly without a shape."""
    levels: Literal[2, 3] = 2
    """Levels of switches of a fat tree."""
    oversubscription: Ratio | Annotated[tuple[Ratio, ...], Field(strict=False)] = 1.0
    """Of a leaf of a fat tree, its ports for NICs over those for uplinks; [2, 3]: of a leaf, and of
    the switches above it where there are three levels."""
    shape: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=(), strict=False)
    """Extents of a torus or a mesh in nodes, innermost first; fewer nodes are a slice (`slice_of`).
    Of a dragonfly: NICs of a router, routers of a group, global links of a router; without it, a
    balanced one of routers with `radix` ports."""
    cube: int = Field(default=0, ge=0)
    """Edge of the cubes that optical switches join to a torus: a slice's dimensions of so many
    nodes, or multiples of it, close to rings. Without it only a whole dimension does."""
    between: str = ""
    """Of a torus, link type of a cable from every node to a network that joins several such tori,
    slices of a machine: an ideal switch. Without it there is one."""
    routing: str = "shortest"
    """Name of a routing: shortest (on a fat tree D-mod-k), ecmp, up-down, slices."""
    all_reduce: str = ""
    """Name of the algorithm that all-reduces of a step use; "": the fastest that a library has."""
    source: str = ""
    """Where the network is documented."""

    @model_validator(mode="after")
    def _complete(self) -> Fabric:
        if self.parameters and self.kind in FABRIC_KINDS.shipped:
            raise FieldError(
                f"is of kinds that plug-ins register; this fabric is {self.kind}", "parameters"
            )
        match self.kind:
            case "torus" | "mesh" if not self.shape:
                raise ValueError(f"a {self.kind} needs a shape, for example shape: [4, 4, 4]")
            case kind if self.between and kind != "torus":
                raise FieldError(f"only tori are joined as slices; found {kind}", "between")
            case kind if self.cube and kind != "torus":
                raise FieldError(f"only tori are made of cubes; found {kind}", "cube")
            case "dragonfly" if self.shape and len(self.shape) != 3:
                raise FieldError(
                    "the shape of a dragonfly is NICs of a router, routers of a group and global "
                    f"links of a router, for example [2, 4, 2]; found {list(self.shape)}",
                    "shape",
                )
            case "dragonfly" if not self.shape and self.radix is None:
                raise ValueError("a dragonfly needs a shape, or the radix of its routers")
            case "fat-tree" | "rail-optimised":
                if self.radix is None:
                    raise ValueError(f"a fabric of kind {self.kind} needs the radix of a switch")
                self._check_tiers()
        return self

    def _check_tiers(self) -> None:
        """Refuse an oversubscription that is below 1, or leaves a switch no uplink."""
        assert self.radix is not None
        given = self.oversubscription
        tiers = given if isinstance(given, tuple) else (given,)
        if not 1 <= len(tiers) <= self.levels - 1:
            raise FieldError(
                f"one for each level of switches below the highest, {self.levels - 1}; found "
                f"{len(tiers)}",
                "oversubscription",
            )
        for over in tiers:
            if not 1 <= over <= self.radix - 1:
                raise FieldError(
                    f"an oversubscription of {over:g} leaves a switch of {self.radix} ports no "
                    f"uplink, or no port below; allowed: 1 to {self.radix - 1}",
                    "oversubscription",
                )

    @property
    def ports(self) -> int:
        """Ports of one switch, of a fabric that has such."""
        assert self.radix is not None  # see `_complete`
        return self.radix

    @property
    def leaf_ports(self) -> tuple[int, int]:
        """Ports of a fat tree's leaf for NICs, and for uplinks; a few may be left over."""
        return self._ports_of(0)

    @property
    def spine_ports(self) -> tuple[int, int]:
        """Ports of a switch above the leaves of three levels: for leaves, and for uplinks."""
        return self._ports_of(1)

    def _ports_of(self, tier: int) -> tuple[int, int]:
        given = self.oversubscription
        tiers = given if isinstance(given, tuple) else (given,)
        over = tiers[tier] if tier < len(tiers) else 1.0
        up = int(self.ports / (1 + over))
        return int(up * over), up

    @property
    def most_leaves(self) -> int:
        """Leaves that the switches above them in a fat tree have ports for."""
        return self.ports if self.levels == 2 else self.ports * self.spine_ports[0]

    @property
    def most_nics(self) -> int:
        """NICs that a fat tree joins at most."""
        return self.most_leaves * self.leaf_ports[0]

    @property
    def of_slice(self) -> int:
        """Nodes of a whole torus or mesh; of several tori each is whole."""
        return math.prod(self.shape)

    def slices_of(self, n_nodes: int) -> int:
        """Return how many tori so many nodes are: one, or whole ones that are joined."""
        many = bool(self.between) and n_nodes > self.of_slice and n_nodes % self.of_slice == 0
        return n_nodes // self.of_slice if many else 1

    def slice_of(self, n_nodes: int) -> tuple[int, ...]:
        """Return the extents of a slice of the torus or mesh: the squarest that has so many nodes.

        The longest extent is as short as can be, then the next; innermost first, as the shape's.
        Optical switches join whole cubes, in any row, so that they may be longer than the shape.
        Nothing if no slice has that many.
        """
        if n_nodes > math.prod(self.shape):
            return ()
        cubes, rest = divmod(n_nodes, self.cube ** len(self.shape)) if self.cube else (0, 1)
        if rest:
            return min(_extents(n_nodes, self.shape), key=_squareness, default=())
        rows = min(_extents(cubes, (cubes,) * len(self.shape)), key=_squareness)
        return tuple(self.cube * extent for extent in rows)

    def closes(self, extent: int, dimension: int) -> bool:
        """Tell whether a dimension of a slice is a ring."""
        whole = extent == self.shape[dimension] or bool(self.cube and extent % self.cube == 0)
        return whole and self.kind == "torus"


def _squareness(extents: tuple[int, ...]) -> list[int]:
    return sorted(extents, reverse=True)


def _extents(n: int, most: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield all ways to write a number as a product with a bound for each factor."""
    if not most:
        if n == 1:
            yield ()
        return
    for first in range(1, min(n, most[0]) + 1):
        if n % first == 0:
            for rest in _extents(n // first, most[1:]):
                yield (first, *rest)


SPEED_STD = 0.015
"""Standard deviation of the speed of equal devices where a cluster states none: 8 % between the
ends of the whiskers of a box plot, 5.4 standard deviations (P. Sinha et al., "Not All GPUs Are
Created Equal", SC22, arXiv:2208.11035)."""


class Storage(Strict):
    """Where the data set comes from."""

    description: str = ""
    """One line for people."""
    bandwidth: Sourced[units.BytesPerSecond]
    """Sequential read of the whole cluster."""


class NodeGroup(Strict):
    """Nodes of one kind in a cluster of several."""

    node: str
    """Name of a node, or a path."""
    count: int = Field(ge=1, le=1_000_000)
    """Nodes of the kind."""


class Cluster(Described):
    """Nodes on a fabric, equal or of several kinds. A single node, or device, is one of one."""

    kind: Literal["cluster"]
    """What the file describes: always ``cluster``."""
    node: str
    """Name of a node, or a path."""
    max_nodes: int = Field(default=1, ge=1, le=1_000_000)
    """The cluster takes its size from the plan, up to this many nodes."""
    groups: tuple[NodeGroup, ...] = Field(default=(), strict=False)
    """Instead of `node` and `max_nodes`: nodes of several kinds, in the order of their ranks."""
    energy_table: str | None = None
    """Prices of the fabric's links that name an entry: name of a table, or a path."""
    link_types: dict[str, LinkType] = Field(default_factory=dict)
    """By names of your own, which the fabric refers to."""
    fabric: Fabric | None = None
    """The network between nodes; more than one node needs it."""
    storage: Storage | None = None
    """Where the data set comes from; without it, it never limits a step."""
    device_speed_std: Sourced[Annotated[float, Field(ge=0, le=0.5)]] | None = None
    """Standard deviation of the speed of its devices, over their mean: a step waits for the slowest
    of all that it uses. None: `SPEED_STD`, what was measured of others."""
    pue: Sourced[Annotated[float, Field(ge=1, le=10)]] = Sourced[float](
        value=1.0, source=DEFAULT, basis="assumed"
    )
    """Power usage effectiveness of the building: its power over that of the nodes."""
    software: tuple[str, ...] = Field(default=(), strict=False)
    """Software stacks that it is usually run with, the first that can run a model counts; () as its
    node, or the device, says."""

    faults: tuple[str, ...] = Field(default=(), strict=False)
    """What is wrong with it, a line each: "link node0.device0 nvswitch down", "rank 3 slow 1.5"
    (`network.faults`)."""

    nodes: Node = Field(exclude=True)
    """The description of the nodes, of several kinds the first; put here by the loader."""
    group_nodes: tuple[Node, ...] = Field(default=(), exclude=True)
    """The descriptions of the nodes of `groups`."""
    drawn: Any = Field(default=None, exclude=True)
    """The network of all devices (`network.topology.Topology`), of a cluster that was not described
    as nodes and a fabric; put here by who read it (`network.resolve`)."""
    drawn_devices: tuple[Device, ...] = Field(default=(), exclude=True)
    """Of such, the device of each rank where they differ."""
    prices: EnergyTable | None = Field(default=None, exclude=True)
    overrides: dict[str, Any] = Field(default_factory=dict, exclude=True)
    """Fields that were replaced on the way from the files, by dotted path."""

    @model_validator(mode="after")
    def _consistent(self) -> Cluster:
        if self.max_nodes > 1 and self.drawn is None:
            if self.fabric is None:
                raise ValueError("a cluster of more than one node needs a fabric")
            for field in ("link", "between"):
                name = getattr(self.fabric, field)
                if name not in self.link_types and (name or field == "link"):
                    raise FieldError(
                        f"unknown link type {name!r}{nearest(name, self.link_types)}",
                        *("fabric", field),
                    )
            for node in self.group_nodes or (self.nodes,):
                if not node.nics:
                    type_ = next(iter(node.link_types), "TYPE")
                    raise ValueError(
                        f"the node {node.name!r} has no NIC to join a fabric: add to its file"
                        f" 'components: [{{name: nic0, kind: nic}}]', and to its links"
                        f" '- {{between: [device0, nic0], type: {type_}}}'"
                    )
        priced_links(self.link_types, self.prices)
        return self

    @property
    def device(self) -> Device:
        """The device that the cluster is made of."""
        return self.nodes.devices

    @property
    def speed_std(self) -> float:
        """Standard deviation of the speed of its devices, over their mean."""
        return SPEED_STD if self.device_speed_std is None else self.device_speed_std.value

    @property
    def max_devices(self) -> int:
        """How many devices there are at most."""
        return sum(node.count * count for node, count in self.kinds_of_nodes)

    @property
    def kinds_of_nodes(self) -> tuple[tuple[Node, int], ...]:
        """The nodes of each kind and how many there are, in the order of their ranks."""
        if not self.groups:
            return ((self.nodes, self.max_nodes),)
        counts = (group.count for group in self.groups)
        return tuple(zip(self.group_nodes, counts, strict=True))

    def nodes_of(self, n_devices: int) -> tuple[Node, ...]:
        """Return the nodes that so many devices fill, in the order of their ranks."""
        found: list[Node] = []
        left = n_devices
        for node, count in self.kinds_of_nodes:
            needed = min(count, max(0, -(-left // node.count)))
            found += [node] * needed
            left -= needed * node.count
        return tuple(found)

    def devices_of(self, n_devices: int) -> tuple[Device, ...]:
        """Return the device of each rank."""
        if self.drawn_devices:
            return self.drawn_devices[:n_devices]
        if not self.groups:
            return (self.device,) * n_devices
        every = (device for node in self.nodes_of(n_devices) for device in _devices_in(node))
        return tuple(every)[:n_devices]

    def seen_from(self, ranks: Sequence[int]) -> Cluster:
        """Return the cluster as a program sees it whose ranks are on some of its devices."""
        if not self.is_mixed:
            return self
        every = self.devices_of(max(ranks) + 1)
        devices = tuple(every[rank] for rank in ranks)
        nodes = self.nodes_of(ranks[0] + 1)[-1]
        fields = {
            "nodes": nodes.model_copy(update={"devices": devices[0]}),
            "groups": (),
            "drawn_devices": devices if any(one != devices[0] for one in devices) else (),
        }
        return self.model_copy(update=fields)

    @property
    def is_mixed(self) -> bool:
        """Whether its devices are of several kinds."""
        return len(self.kinds_of_devices) > 1

    @property
    def kinds_of_devices(self) -> tuple[Device, ...]:
        """The kinds of its devices, each once, in the order of their ranks."""
        every = self.drawn_devices or tuple(node.devices for node, _ in self.kinds_of_nodes)
        kinds: list[Device] = []
        for device in {id(device): device for device in every}.values():
            if device not in kinds:
                kinds.append(device)
        return tuple(kinds)

    def _repr_html_(self) -> str:
        return views.html("cluster", self)

    def __str__(self) -> str:
        return repr(self)

    def __repr__(self) -> str:
        if self.groups:
            each = ", ".join(f"{count} x {node.name}" for node, count in self.kinds_of_nodes)
            return f"<Cluster {self.name}: up to {each}>"
        return f"<Cluster {self.name}: up to {self.max_nodes} x {self.nodes.name}>"


def _devices_in(node: Node) -> tuple[Device, ...]:
    return (node.devices,) * node.count
