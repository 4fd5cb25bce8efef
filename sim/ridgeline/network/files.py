"""Topologies from YAML files: any graph of devices, switches, NICs and links."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from ridgeline import units
from ridgeline.config import FieldError, Strict, overridden, read_yaml, validate
from ridgeline.errors import nearest
from ridgeline.network.topology import DEVICE, Drawing, LinkKind, Topology


class _LinkType(Strict):
    bandwidth: units.BytesPerSecond
    """Of one link in one direction, as payload reaches it."""
    latency: units.Seconds
    energy: units.JoulesPerByte = 0.0
    cost: units.Dollars | None = None
    """Of one link with both of its ends."""
    power: units.Watts | None = None


class _Link(Strict):
    between: tuple[str, str] = Field(strict=False)
    type: str
    count: int = Field(default=1, ge=1, le=4096)


class _Graph(Strict):
    """What a topology file holds."""

    kind: Literal["topology"]
    name: str
    description: str = ""
    devices: tuple[str, ...] = Field(strict=False, min_length=1)
    """In rank order."""
    switch_cost: units.Dollars | None = None
    """Of one switch."""
    switch_power: units.Watts | None = None
    switches: tuple[str, ...] = Field(default=(), strict=False)
    devices_forward: bool = False
    routing: str = "shortest"
    shape: tuple[int, ...] = Field(default=(), strict=False)
    link_types: dict[str, _LinkType]
    links: tuple[_Link, ...] = Field(strict=False)

    @model_validator(mode="after")
    def _consistent(self) -> _Graph:
        names = (*self.devices, *self.switches)
        if len(set(names)) != len(names):
            raise FieldError("two vertices have the same name", "devices")
        for position, link in enumerate(self.links):
            for end in link.between:
                if end not in names:
                    raise FieldError(
                        f"a link ends at {end!r}, which does not exist{nearest(end, names)}",
                        *("links", position, "between"),
                    )
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
    graph = validate(overridden(read_yaml(path), overrides or {}), _Graph)
    drawing = Drawing()
    vertex = {name: drawing.vertex(name, DEVICE, node=0) for name in graph.devices}
    vertex |= {name: drawing.vertex(name, "switch", node=0) for name in graph.switches}
    kinds = {
        name: LinkKind(name, of.bandwidth, of.latency, of.energy)
        for name, of in graph.link_types.items()
    }
    for link in graph.links:
        a, b = link.between
        drawing.join(vertex[a], vertex[b], kinds[link.type], link.count)
    return drawing.finish(
        graph.name,
        [vertex[name] for name in graph.devices],
        routing=graph.routing,
        shape=graph.shape,
        devices_forward=graph.devices_forward,
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
