"""Components inside a device: what its file leaves out follows from its parts.

A memory level or an engine may name a component. Before the file meets its schema, the level's
energy, latency and bandwidth and the engine's energies are put in from there where the file states
none; area and idle power of the device, too. What the file states wins, always.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ridgeline import catalog, units
from ridgeline.config import Document
from ridgeline.errors import ConfigError
from ridgeline.hardware.components.estimate import ComponentEstimate, evaluate, load_component
from ridgeline.hardware.components.schema import Component, ComponentUse

Open = Callable[[str], Component]
FLOP_PER_MAC = 2
SUMMED = "components"
"""Source of what is a sum over a device's components."""


@dataclass(frozen=True)
class DesignPart:
    """Equal instances of a component in a device.

    Attributes
    ----------
    place
        ``memory.l2`` or ``engines.mesh``.
    count
        Instances; None: the file does not tell how many.
    """

    place: str
    count: int | None
    estimate: ComponentEstimate

    @property
    def area_m2(self) -> float | None:
        """Of all instances; None where nothing is published, or nobody says how many."""
        return self._all(self.estimate.area_m2)

    @property
    def leakage_w(self) -> float | None:
        """As `area_m2`."""
        return self._all(self.estimate.leakage_w)

    def _all(self, one: float | None) -> float | None:
        return None if one is None or self.count is None else one * self.count


def with_components(document: Document) -> tuple[Document, tuple[DesignPart, ...]]:
    """Return a device's document with what follows from its components, and these.

    What cannot be read is left as it is: the schema says what is wrong with it.

    Raises
    ------
    ConfigError
        If a component cannot be evaluated for what the file says of it.
    """
    data = document.data
    node = _quantity(data.get("process_node"), "m")
    parts: list[DesignPart] = []
    filled = dict(data)
    base = Path(document.file).parent

    @cache  # engines share one kind of unit, and every reading of a file costs time
    def open_(name: str) -> Component:
        return load_component(_from(base, name))

    for field, fill in (("memory", _level), ("engines", _engine)):
        described = data.get(field)
        if not isinstance(described, dict):
            continue
        new = dict(described)
        for name, fields in described.items():
            if isinstance(fields, dict) and (use := _use(fields.get("component"))) is not None:
                try:
                    new[name], part = fill(fields, use, node, open_)
                except ConfigError as error:
                    raise document.error(error.message, (field, name, "component")) from error
                if part is not None:
                    parts.append(replace(part, place=f"{field}.{name}"))
        filled[field] = new
    if not parts:
        return document, ()
    filled |= _sums(data, parts)
    return replace(document, data=filled), tuple(parts)


def _level(
    fields: Mapping[str, Any], use: ComponentUse, node: float | None, open_: Open
) -> tuple[dict[str, Any], DesignPart | None]:
    instances = _value(fields.get("instances", 1))
    capacity = _quantity(fields.get("capacity"), "B")
    if capacity is None or not isinstance(instances, int) or instances < 1:
        return dict(fields), None
    one = use.model_copy(
        update={
            "capacity": use.capacity or capacity / instances,
            "node": use.node or node,
            "count": instances,
        }
    )
    estimate = evaluate(open_(use.name), one)
    if estimate.per == "B/m":
        raise ConfigError(f"the component {use.name!r} is priced per length: it is no memory")
    found: dict[str, Any] = {}
    if "energy" not in fields:
        energy = estimate.energy_j_per_byte
        if energy is None:
            raise ConfigError(
                f"the component {use.name!r} publishes no energy per byte; state the level's energy"
            )
        found["energy"] = f"{energy!r} J/B"
    if "latency" not in fields and estimate.latency_s is not None:
        found["latency"] = _derived(estimate.latency_s, "s", f"component {use.name}")
    if "bandwidth" not in fields and estimate.bandwidth_bytes_per_s is not None:
        found["bandwidth"] = _derived(
            estimate.bandwidth_bytes_per_s * instances, "B/s", f"component {use.name}"
        )
    return {**fields, **found}, DesignPart("", instances, estimate)


def _engine(
    fields: Mapping[str, Any], use: ComponentUse, node: float | None, open_: Open
) -> tuple[dict[str, Any], DesignPart | None]:
    rates = fields.get("rates")
    stated = fields.get("energy", {})
    if not isinstance(rates, dict) or not isinstance(stated, dict) or not rates:
        return dict(fields), None
    component = open_(use.name)
    estimates = {}
    energies = dict(stated)
    for format_ in rates:
        variant = use.variant or _variant(str(format_), fields, component.variants)
        if component.variants and variant not in component.variants and format_ in stated:
            continue
        if component.variants and variant not in component.variants and use.variant is None:
            raise ConfigError(
                f"the component {use.name!r} has no variant {variant!r} (it has:"
                f" {', '.join(component.variants)}); give the engine the energy of this format"
                f" yourself: energy: {{{format_}: ... pJ/FLOP}}"
            )
        one = use.model_copy(update={"node": use.node or node, "variant": variant, "count": None})
        estimates[format_] = estimate = evaluate(component, one)
        if format_ not in stated:
            if estimate.per != "op" or estimate.read_j is None:
                raise ConfigError(
                    f"the component {use.name!r} publishes no energy per operation; state the "
                    f"engine's energy of {format_}"
                )
            energies[format_] = f"{estimate.read_j / FLOP_PER_MAC!r} J/FLOP"
    result = {**fields, "energy": energies}
    if not estimates:
        return result, None
    # One unit does all formats: it is at least as large as that of the largest.
    largest = max(estimates.values(), key=lambda estimate: estimate.area_m2 or 0.0)
    return result, DesignPart("", use.count or _units(fields), largest)


def _variant(format_: str, fields: Mapping[str, Any], variants: Mapping[str, Any]) -> str:
    """Return the row of a format, with the accumulator that the engine states where there is one.

    The schema's default accumulator counts only if the file says it.
    """
    wide = f"{format_}-{fields.get('accumulate')}"
    return wide if wide in variants else format_


def _units(fields: Mapping[str, Any]) -> int | None:
    """Count the multiply-accumulate units of an engine, where its block tells."""
    sides: tuple[Any, ...]
    try:
        if isinstance(array := fields.get("array"), dict):
            sides = (array["rows"], array["columns"], array.get("count", 1))
        elif isinstance(array := fields.get("spatial"), dict):
            sides = (array["rows"], array["columns"])
        elif isinstance(array := fields.get("grid"), dict):
            sides = (array["side"], array["side"], array.get("cores", 1))
        else:
            return None
        return math.prod(int(_value(side)) for side in sides)
    except (KeyError, TypeError, ValueError):
        return None  # the schema says so


def _sums(data: Mapping[str, Any], parts: list[DesignPart]) -> dict[str, Any]:
    """Return area and idle power of the parts, where the file states none."""
    found: dict[str, Any] = {}
    leakage = [part.leakage_w for part in parts if part.leakage_w is not None]
    if "idle_power" not in data and leakage:
        found["idle_power"] = {
            **_derived(math.fsum(leakage), "W", SUMMED),
            "note": "The sum of the leakage of its components",
        }
    areas = [part.area_m2 for part in parts if part.area_m2 is not None]
    if "area" not in data and areas:
        found["area"] = {
            **_derived(math.fsum(areas), "m2", SUMMED),
            "note": "The sum of its components; control, networks and pads are left out",
        }
    return found


def part_notes(parts: tuple[DesignPart, ...], *, idle_is_leakage: bool) -> Iterator[str]:
    """Say what a device has from its components, and where they were extrapolated."""
    if not parts:
        return
    yield (
        f"energy, area and leakage of {', '.join(part.place for part in parts)} come from "
        f"components{'; idle power is their leakage' if idle_is_leakage else ''}"
    )
    for part in parts:
        marked = [n for n in part.estimate.notes if n.startswith("extrapolated")]
        if marked:
            yield f"{part.place}, {part.estimate.name}: {'; '.join(marked)}"
        for what, one, all_ in (
            ("area", part.estimate.area_m2, part.area_m2),
            ("leakage", part.estimate.leakage_w, part.leakage_w),
        ):
            if one is None and not _off_die(part):
                yield f"{part.place}, {part.estimate.name}: no {what} is published; it is left out"
            elif all_ is None and one is not None:
                yield f"{part.place}: {what} is left out; say how many units with component.count"


def _off_die(part: DesignPart) -> bool:
    return part.estimate.per == "B"


def _use(raw: Any) -> ComponentUse | None:
    if raw is None:
        return None
    try:
        return ComponentUse.model_validate(raw)
    except ValidationError:
        return None  # the schema says so, with the place


def _from(base: Path, name: str) -> str:
    if name not in catalog.names("components") and catalog.is_path(name):
        return str(base / name)
    return name


def _derived(value: float, unit: str, source: str) -> dict[str, Any]:
    return {"value": f"{value!r} {unit}", "source": source, "basis": "derived"}


def _value(raw: Any) -> Any:
    return raw.get("value") if isinstance(raw, dict) else raw


def _quantity(raw: Any, unit: str) -> float | None:
    """Read a quantity of the document, or None: the schema says what is wrong with it."""
    try:
        value = units.parse(_value(raw), unit)
    except ConfigError:
        return None
    return value if value > 0 else None
