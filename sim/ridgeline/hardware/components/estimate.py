"""Evaluate a component: ``component("sram", capacity="1 MiB", width="256 bit", node="22 nm")``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ridgeline import catalog, units
from ridgeline.config import Document, check_kind, read_yaml, validate
from ridgeline.errors import ConfigError, nearest
from ridgeline.hardware.components.grid import ram
from ridgeline.hardware.components.scaling import interpolated, node_factor, nominal_voltage
from ridgeline.hardware.components.schema import Component, ComponentUse, StorageCells, VariantPoint
from ridgeline.hardware.sourced import Sourced

Per = Literal["access", "op", "B", "B/m"]
_CLOSE = 1e-9
_COUNTER_BITS = 32
_MOST_ESTIMATES = 4096


@dataclass(frozen=True)
class ComponentEstimate:
    """What one instance of a component takes.

    Attributes
    ----------
    name, variant
        The component, and its row where it has some.
    per
        What energies are of: an access of `width_bits`, an operation, a byte, or a byte and metre.
    read_j, write_j
        Joules of that; equal where the source does not tell reads from writes. None: not published.
    area_m2, leakage_w, latency_s, cycle_s, bandwidth_bytes_per_s
        None: nothing is published of it.
    capacity_bytes, width_bits, node_m
        What was asked; None: does not apply.
    notes
        What was interpolated, extrapolated or assumed.
    sources
        Citations by key, as the component's file has them.
    """

    name: str
    variant: str
    per: Per
    read_j: float | None
    write_j: float | None
    area_m2: float | None
    leakage_w: float | None
    latency_s: float | None
    cycle_s: float | None
    bandwidth_bytes_per_s: float | None
    capacity_bytes: float | None
    width_bits: float | None
    node_m: float | None
    ports: str
    notes: tuple[str, ...]
    sources: Mapping[str, str]

    @property
    def energy_j_per_byte(self) -> float | None:
        """Joules of a byte that passes, the mean of reads and writes; None without a width."""
        if self.read_j is None or self.write_j is None:
            return None
        mean = (self.read_j + self.write_j) / 2
        if self.per == "B":
            return mean
        if self.per in ("access", "op") and self.width_bits:
            return mean / (self.width_bits / 8)
        return None

    @property
    def is_extrapolated(self) -> bool:
        """Whether any of it lies outside what was published."""
        return any(note.startswith("extrapolated") for note in self.notes)


def load_component(name: str) -> Component:
    """Load a component by catalogue name or path.

    Raises
    ------
    ConfigError
        With file, line and field of the first mistake.
    """
    path = catalog.find("components", name)
    return _checked(str(path), read_yaml(path))


_known: dict[str, tuple[Any, Component]] = {}


def _checked(path: str, document: Document) -> Component:
    known = _known.get(path)
    if known is not None and known[0] is document.data:  # equal text is parsed once
        return known[1]
    check_kind(document, "component")
    found = validate(document, Component).model_copy(update={"file": path})
    if len(_known) > 64:
        _known.clear()
    _known[path] = document.data, found
    return found


def component(name: str, **parameters: object) -> ComponentEstimate:
    """Evaluate a component.

    Parameters
    ----------
    name
        Name in the catalogue, or a path of a YAML file.
    parameters
        ``capacity="1 MiB"``, ``width="256 bit"``, ``ports="1RW"``, ``node="22 nm"``,
        ``voltage="0.8 V"``, ``temperature="350 K"``, ``cell="itrs-lstp"``, ``banks=4``,
        ``variant="fp16"``: as `ComponentUse`. What the component does not depend on is refused.

    Raises
    ------
    ConfigError
        If there is no such component or variant, a value has no unit, or one that is needed is
        missing.
    """
    given = {key: value for key, value in parameters.items() if value is not None}
    try:
        use = validate(Document("", {"name": name, **given}, {}), ComponentUse)
    except ConfigError as error:  # these parameters stand in no file
        raise ConfigError(error.message, field=error.field) from error
    return evaluate(load_component(name), use)


_estimates: dict[tuple[int, ComponentUse], tuple[Component, ComponentEstimate]] = {}


def evaluate(found: Component, use: ComponentUse) -> ComponentEstimate:
    """Evaluate a loaded component, or return what the same parameters gave before.

    Points of a sweep share most parts. For errors see `component`.
    """
    known = _estimates.get((id(found), use))
    if known is not None and known[0] is found:
        return known[1]
    _refuse(found, use)
    if found.grid is not None:
        estimate = _of_grid(found, use)
    elif found.cells is not None:
        estimate = _of_cells(found, found.cells, use)
    else:
        estimate = _of_variant(found, use)
    if len(_estimates) > _MOST_ESTIMATES:
        _estimates.clear()
    _estimates[id(found), use] = found, estimate
    return estimate


_APPLIES = {
    "grid": {"capacity", "width", "ports", "node", "voltage", "temperature", "cell", "banks"},
    "cells": {"capacity", "width", "ports", "node", "voltage"},
    "variants": {"variant", "width", "node", "voltage"},
}


def _refuse(found: Component, use: ComponentUse) -> None:
    """Refuse parameters that would change nothing; a memory level's own capacity is no mistake."""
    model = "grid" if found.grid else "cells" if found.cells else "variants"
    always = {"name", "count", "capacity"}
    extra = sorted(use.model_fields_set - _APPLIES[model] - always)
    if extra and getattr(use, extra[0]) is not None:
        raise ConfigError(
            f"the component {found.name!r} does not depend on {extra[0]!r} (it takes: "
            f"{', '.join(sorted(_APPLIES[model]))})"
        )


def _needed(value: float | None, found: Component, field: str, example: str) -> float:
    if value is None or value <= 0:
        raise ConfigError(f"the component {found.name!r} needs a {field}, for example {example!r}")
    return value


def _of_grid(found: Component, use: ComponentUse) -> ComponentEstimate:
    grid = found.grid
    assert grid is not None
    usual = grid.defaults
    capacity = _needed(use.capacity, found, "capacity", "1 MiB")
    node = _needed(use.node, found, "node", "22 nm")
    width_bits = 8 * (use.width or usual.width)
    kind = (use.cell or usual.cell, use.ports or usual.ports, use.banks or usual.banks)
    if width_bits > 8 * capacity:
        raise ConfigError(
            f"an access of {width_bits:g} bits is wider than the capacity, {8 * capacity:g} bits"
        )
    figures = ram(
        grid, found.file, capacity, width_bits, kind, node, use.voltage,
        use.temperature or usual.temperature,
    )  # fmt: skip
    return ComponentEstimate(
        name=found.name,
        variant=kind[0],
        per="access",
        read_j=figures.read_j,
        write_j=figures.write_j,
        area_m2=figures.area_m2,
        leakage_w=figures.leakage_w,
        latency_s=figures.latency_s,
        cycle_s=figures.cycle_s,
        bandwidth_bytes_per_s=None,
        capacity_bytes=capacity,
        width_bits=width_bits,
        node_m=node,
        ports=kind[1] if kind[2] == 1 else f"{kind[1]}, {kind[2]} banks",
        notes=figures.notes,
        sources=_cited(found, grid.source),
    )


def _of_cells(found: Component, cells: StorageCells, use: ComponentUse) -> ComponentEstimate:
    capacity = _needed(use.capacity, found, "capacity", "512 B")
    node = _needed(use.node, found, "node", "22 nm")
    width = use.width or cells.defaults.width
    ports = use.ports or cells.defaults.ports
    if width > capacity:
        raise ConfigError(f"an access of {8 * width:g} bits is wider than {capacity:g} bytes")
    notes: list[str] = []
    least, most = cells.range
    if not least <= capacity <= most:
        notes.append(
            f"extrapolated: the fit is for {least:g} B to {most / 1024:g} KiB; larger storage is "
            "built of RAM (component sram)"
        )
    dynamic = _supply(use, node, notes)
    energy, said = node_factor(cells.energy_node, node, "energy", "stillmaker-baas")
    logic, said_too = node_factor(cells.node, node, "area", "stillmaker-baas")
    counter, _ = node_factor(cells.node, node, "energy", "stillmaker-baas")
    notes += dict.fromkeys((*said, *said_too))
    grown = (capacity / cells.energy_capacity.value) ** cells.energy_exponent.value
    access_j = cells.energy.value * width * grown * energy
    bits = math.log2(max(capacity / width, 2.0))
    area = capacity * cells.area.value * (1 + cells.port_area.value * max(0, _count(ports) - 2))
    if cells.pointers:
        assert cells.pointer_energy is not None
        assert cells.pointer_area is not None
        access_j += cells.pointer_energy.value * counter * bits / _COUNTER_BITS
        area += cells.pointers * cells.pointer_area.value * bits / _COUNTER_BITS
    notes.append("leakage per bit kept at every node: no law of it is published")
    cited = (cells.energy, cells.energy_exponent, cells.area, cells.leakage, cells.port_area)
    return ComponentEstimate(
        name=found.name,
        variant="",
        per="access",
        read_j=access_j * dynamic,
        write_j=access_j * dynamic,
        area_m2=area * logic,
        leakage_w=capacity * cells.leakage.value,
        latency_s=None,
        cycle_s=None,
        bandwidth_bytes_per_s=None,
        capacity_bytes=capacity,
        width_bits=8 * width,
        node_m=node,
        ports=ports,
        notes=tuple(notes),
        sources=_cited(found, *(value.source for value in cited)),
    )


def _of_variant(found: Component, use: ComponentUse) -> ComponentEstimate:
    name = use.variant or found.default
    assert name is not None
    if name not in found.variants:
        raise ConfigError(
            f"the component {found.name!r} has no variant {name!r}"
            f"{nearest(name, found.variants)} (it has: {', '.join(found.variants)})"
        )
    row = found.variants[name]
    notes: list[str] = [row.note] if row.note else []
    used: list[Sourced[Any]] = []
    per: Per = "op"
    energy_j: float | None = None
    energies = [p for p in row.at if p.energy is not None]
    if energies:
        per = _per(energies[0])
        energy_j = _at_node(energies, "energy", use, notes, used)
        node = use.node
        if energies[0].node is not None and energy_j is not None and node is not None:
            energy_j *= _supply(use, node, notes)
    figures = {
        quantity: _at_node(
            [p for p in row.at if getattr(p, quantity) is not None], quantity, use, notes, used
        )
        for quantity in ("area", "leakage", "latency", "bandwidth")
    }
    if use.node is not None and all(point.node is None for point in row.at):
        notes.append("does not go with the accelerator's process node")
    width = use.width or row.width
    scaled = use.width / row.width if use.width and row.width else 1.0
    if scaled != 1.0:
        notes.append(f"in proportion to the width, from {8 * (row.width or 0):g} bits")
    for value in used:
        if value.basis in ("assumed", "extrapolated"):
            said = f"{value.basis}: {value.note or value.source}"
            notes += [said] if said not in notes else []
    return ComponentEstimate(
        name=found.name,
        variant=name,
        per=per,
        read_j=None if energy_j is None else energy_j * scaled,
        write_j=None if energy_j is None else energy_j * scaled,
        area_m2=None if figures["area"] is None else figures["area"] * scaled,
        leakage_w=None if figures["leakage"] is None else figures["leakage"] * scaled,
        latency_s=figures["latency"],
        cycle_s=None,
        bandwidth_bytes_per_s=figures["bandwidth"],
        capacity_bytes=use.capacity,
        width_bits=None if width is None else 8 * width,
        node_m=use.node,
        ports="",
        notes=tuple(notes),
        sources=_cited(found, *(value.source for value in used)),
    )


def _per(point: VariantPoint) -> Literal["op", "B", "B/m"]:
    assert point.energy is not None
    for unit in ("op", "B", "B/m"):
        try:
            units.parse(point.energy.value, f"J/{unit}")
        except ConfigError:
            continue
        return unit
    raise AssertionError(point.energy.value)


def _number(point: VariantPoint, quantity: str) -> float:
    value = getattr(point, quantity).value
    return units.quantity(value) if isinstance(value, str) else float(value)


def _at_node(
    points: list[VariantPoint],
    quantity: str,
    use: ComponentUse,
    notes: list[str],
    used: list[Sourced[Any]],
) -> float | None:
    """Return a quantity at the node that is asked: between points, else by the law of logic."""
    if not points:
        return None
    used += [getattr(point, quantity) for point in points]
    stated = [point for point in points if point.node is not None]
    if not stated:
        return _number(points[0], quantity)
    if use.node is None:
        raise ConfigError(f"the component {use.name!r} needs a node, for example '22 nm'")
    at = [point.node for point in stated if point.node is not None]
    node = use.node
    values = [_number(point, quantity) for point in stated]
    if min(at) * (1 - _CLOSE) <= node <= max(at) * (1 + _CLOSE):
        value, said = interpolated(node, at, values)
        notes += [note for note in said if note not in notes]
        return value
    near = min(range(len(at)), key=lambda i: abs(math.log(at[i] / node)))
    if quantity in ("latency", "bandwidth"):
        return values[near]
    factor, said = node_factor(at[near], node, quantity, "stillmaker-baas")
    published = ", ".join(f"{one * 1e9:g}" for one in sorted(at))
    marked = f"extrapolated: {quantity} is published at {published} nm"
    notes += [note for note in (marked, *said) if note not in notes]
    return values[near] * factor


def _supply(use: ComponentUse, node_m: float, notes: list[str]) -> float:
    """Return the factor of energy at another supply than the node's nominal one."""
    if use.voltage is None:
        return 1.0
    nominal = nominal_voltage(node_m)
    if not math.isclose(use.voltage, nominal, rel_tol=_CLOSE):
        notes.append(f"{use.voltage:g} V instead of {nominal:.3g} V: energy by its square")
    return (use.voltage / nominal) ** 2


def _count(ports: str) -> int:
    return sum(int(number) for number in re.findall(r"\d+", ports))


def _cited(found: Component, *keys: str) -> dict[str, str]:
    """Return the citations that values name, in the order in which they are named."""
    named = [part.strip() for key in keys for part in key.split(",")]
    return {key: found.sources[key] for key in named if key in found.sources}
