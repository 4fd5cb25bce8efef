"""A node: devices, host and the links between them as an explicit graph."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Annotated, Literal

from pydantic import Field, model_validator

from ridgeline import units, views
from ridgeline.config import FieldError, Strict
from ridgeline.errors import ConfigError, nearest
from ridgeline.hardware.collective_library import CollectiveLibrary, assumed_library
from ridgeline.hardware.device import Device
from ridgeline.hardware.energy import EnergyTable, stated
from ridgeline.hardware.node_power import NodeParts
from ridgeline.hardware.sourced import DEFAULT, Count, Described, Positive, Sourced


class LinkType(Strict):
    """A kind of link; every physical link carries data both ways at once."""

    bandwidth: Sourced[units.BytesPerSecond]
    """Peak, one direction, of one link."""
    achievable: Sourced[float] = Sourced[float](value=1.0, source=DEFAULT, basis="assumed")
    """Share of the peak that payload reaches."""
    latency: Sourced[units.Seconds]
    """Of one message over one hop, protocol included."""
    in_switch: Sourced[float] | None = None
    """Share of what payload reaches at which the switches on these links add up (NVLS); by default
    they do not."""
    exchanged: Sourced[float] | None = None
    """Share of what payload reaches at which an all-to-all of the library passes, whose messages
    each device sends to all others; by default all of it."""
    library: CollectiveLibrary | None = None
    """Library of collectives whose kernels load and store over these links, and what its protocols
    take. By default, on links that nothing but devices and their switches are on, the library of
    the devices' vendor (NCCL, RCCL) with its own figures."""
    energy: str
    """Entry of the energy table, or a quantity such as ``10 pJ/bit``."""

    def price_j(self, prices: EnergyTable | None) -> float:
        """Joules a byte.

        Raises
        ------
        ConfigError
            If neither an entry of the table nor an energy a byte is given.
        """
        stated_j = stated(self.energy, "J/B")
        if stated_j is not None:
            return stated_j
        if prices is None:
            raise ConfigError(
                f"found {self.energy!r}, but the file names no energy_table; name one, or write a "
                "quantity with its unit, for example 10 pJ/bit"
            )
        return prices.price_j(self.energy, "J/B")


Extents = tuple[Annotated[int, Field(ge=1)], ...]


class Link(Strict):
    """One or more parallel links between two vertices, or between all neighbours on a grid."""

    between: tuple[str, str] | None = Field(default=None, strict=False)
    """Names of two vertices of the node's graph."""
    mesh: Extents = Field(default=(), strict=False)
    """Instead: extents of a grid that all devices fill, innermost first; neighbours are linked."""
    torus: Extents = Field(default=(), strict=False)
    """Instead: as `mesh`, and the ends of every row are linked, too."""
    type: str
    """Name of one of the node's link types."""
    count: int = Field(default=1, ge=1, le=64)
    """Parallel links of the type."""

    @model_validator(mode="after")
    def _one_form(self) -> Link:
        if sum(map(bool, (self.between, self.mesh, self.torus))) != 1:
            raise ValueError(
                "a link has one of: between (two vertices), mesh or torus (extents of a grid of all"
                " devices)"
            )
        return self

    @property
    def ends(self) -> Sequence[tuple[str, str]]:
        """The two vertices of every link."""
        if self.between is not None:
            return (self.between,)
        shape = self.mesh or self.torus
        ends = []
        for device, (d, extent) in product(range(prod(shape)), enumerate(shape)):
            stride = prod(shape[:d])
            at = device // stride % extent
            if at < extent - 1 or (self.torus and extent > 2):
                after = device + ((at + 1) % extent - at) * stride
                ends.append((f"device{device}", f"device{after}"))
        return ends


class NodeVertex(Strict):
    """A vertex of the node's graph that is not a device."""

    name: str
    """Name of your own, which links refer to."""
    kind: Literal["host", "switch", "nic"]
    """host: processors; switch: passes on messages; nic: reaches out of the node."""


class Host(Strict):
    """The machine around the devices."""

    description: str = ""
    """One line for people."""
    memory: Sourced[units.Bytes] | None = None
    """That data and offloaded states can use."""
    memory_bandwidth: Sourced[units.BytesPerSecond] | None = None
    """Of all processors of the node together, peak; updates on the host use it."""
    cores: Sourced[Count] | None = None
    """Processor cores of the node, which decode the input."""
    clock: Sourced[units.Hertz] | None = None
    """Clock that all cores sustain together."""
    storage: Sourced[units.BytesPerSecond] | None = None
    """Sequential read of the node's own disks, from which the input comes."""
    issue: Sourced[Positive] = Sourced[Positive](value=1.0, source=DEFAULT, basis="assumed")
    """Time that a core takes to issue an op, over that of a Xeon Platinum 8480C."""


class Node(Described):
    """Devices, host and links. Devices are the vertices ``device0``, ``device1``, ..."""

    kind: Literal["node"]
    """What the file describes: always ``node``."""
    device: str
    """Name of a device, or a path."""
    base: str | None = None
    """Name or path of the node whose description this one starts from: mappings are merged field by
    field, everything else is replaced, and ``null`` removes a field."""
    count: int = Field(ge=1, le=1024)
    """Devices in the node."""
    year: int | None = None
    """Of its first delivery; for people."""
    price: Sourced[units.Dollars] | None = None
    """Of one node, devices included; gives costs of clusters."""
    host: Host = Host()
    """The machine around the devices, which feeds them."""
    power: NodeParts | None = None
    """Of everything in the node that is not a device; not part of ``energy_j``."""
    energy_table: str | None = None
    """Prices of the links that name an entry."""
    collective_latency: Sourced[units.Seconds] = Sourced[float](
        value=0.0, source=DEFAULT, basis="assumed"
    )
    """Fixed time of starting a collective, besides the hops."""
    link_types: dict[str, LinkType] = Field(default_factory=dict)
    """By names of your own, which `links` refer to."""
    components: tuple[NodeVertex, ...] = Field(default=(), strict=False)
    """Vertices of the graph besides the devices: switches, hosts, NICs."""
    links: tuple[Link, ...] = Field(default=(), strict=False)
    """Edges of the graph, from which routes and rings are found."""
    software: tuple[str, ...] = Field(default=(), strict=False)
    """Software stacks that it is usually run with: the first that can run a model counts."""
    devices_forward: bool = False
    """Devices pass on messages of others, as on a wafer or a board without switches."""

    devices: Device = Field(exclude=True)
    """The description of the devices; put here by the loader."""
    prices: EnergyTable | None = Field(default=None, exclude=True)

    @property
    def vertices(self) -> tuple[str, ...]:
        """Names of all vertices, devices first."""
        devices = tuple(f"device{i}" for i in range(self.count))
        return devices + tuple(component.name for component in self.components)

    @property
    def grid(self) -> tuple[int, ...]:
        """Extents of the grid that the devices are linked to; () if they are not."""
        return next((link.mesh or link.torus for link in self.links if not link.between), ())

    @property
    def nics(self) -> tuple[str, ...]:
        """Names of the vertices that reach out of the node."""
        return tuple(c.name for c in self.components if c.kind == "nic")

    @property
    def libraries(self) -> dict[str, CollectiveLibrary]:
        """Collective library by link type: as stated, or that of links made for devices alone."""
        found = {name: of.library for name, of in self.link_types.items() if of.library is not None}
        assumed = assumed_library(self.devices.vendor, self.devices.year)
        if assumed is not None:
            dedicated = self._dedicated_links()
            found |= {name: assumed for name in sorted(dedicated) if name not in found}
        return found

    def _dedicated_links(self) -> set[str]:
        """Link types that join devices with each other or with switches of devices alone."""
        ends = [(link.type, *pair) for link in self.links for pair in link.ends]
        devices = {f"device{i}" for i in range(self.count)}
        switches = {c.name for c in self.components if c.kind == "switch"}
        shared = {
            end
            for _, a, b in ends
            for end, other in ((a, b), (b, a))
            if end in switches and other not in devices
        }
        kinds: dict[str, bool] = {}
        for name, *pair in ends:
            own = all(end in devices or end in switches - shared for end in pair)
            kinds[name] = kinds.get(name, True) and own
        return {name for name, own in kinds.items() if own}

    @model_validator(mode="after")
    def _consistent(self) -> Node:
        vertices = self.vertices
        if len(set(vertices)) != len(vertices):
            raise ValueError("two components have the same name")
        for position, link in enumerate(self.links):
            place = ("links", position)
            shape = link.mesh or link.torus
            if shape and prod(shape) != self.count:
                raise FieldError(
                    f"a grid of {'x'.join(map(str, shape))} devices has {prod(shape)} places; the "
                    f"node has {self.count} devices",
                    *(*place, "mesh" if link.mesh else "torus"),
                )
            for end in link.between or ():
                if end not in vertices:
                    raise FieldError(
                        f"a link ends at {end!r}, which does not exist{nearest(end, vertices)} "
                        f"(there are: {', '.join(vertices)})",
                        *(*place, "between"),
                    )
            if link.between is not None and link.between[0] == link.between[1]:
                raise FieldError(f"a link joins {link.between[0]!r} to itself", *place, "between")
            if link.type not in self.link_types:
                raise FieldError(
                    f"unknown link type {link.type!r}{nearest(link.type, self.link_types)} "
                    f"(there are: {', '.join(self.link_types)})",
                    *(*place, "type"),
                )
        priced_links(self.link_types, self.prices)
        return self

    def _repr_html_(self) -> str:
        return views.html("node", self)

    def __str__(self) -> str:
        return repr(self)

    def __repr__(self) -> str:
        links = sum(len(link.ends) for link in self.links)
        return f"<Node {self.name}: {self.count} x {self.devices.name}, {links} links>"


def priced_links(link_types: dict[str, LinkType], prices: EnergyTable | None) -> None:
    """Raise FieldError if a link type's energy cannot be priced, or no payload can pass."""
    for name, link_type in link_types.items():
        try:
            link_type.price_j(prices)
        except ConfigError as error:
            raise FieldError(str(error), "link_types", name, "energy") from error
        for field in ("in_switch", "exchanged"):
            share = getattr(link_type, field)
            if share is not None and not 0 < share.value <= 1:
                raise FieldError(
                    "must be more than 0 and at most 1, a share of the achievable bandwidth",
                    *("link_types", name, field),
                )
        if not 0 < link_type.achievable.value <= 1:
            raise FieldError(
                "must be more than 0 and at most 1, a share of the peak bandwidth",
                *("link_types", name, "achievable"),
            )
