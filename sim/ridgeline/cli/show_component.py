"""What ``ridgeline show`` prints of a component, and of the parts of a device."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ridgeline import catalog
from ridgeline.cli.output import console, print_json
from ridgeline.config import read_yaml
from ridgeline.units import show

if TYPE_CHECKING:
    from rich.console import Console

    from ridgeline.hardware.components import ComponentEstimate
    from ridgeline.hardware.device import Device

_PER = {"access": "an access", "op": "an operation", "B": "a byte", "B/m": "a byte and metre"}


def show_component(name: str, parameters: Mapping[str, object], *, json: bool) -> None:
    """Print what a component takes for these parameters, or its file where none is given."""
    from ridgeline.hardware.components import component, load_component

    if not parameters:
        _show_file(name, json)
        return
    load_component(name)
    estimate = component(name, **parameters)
    if json:
        figures = dataclasses.asdict(estimate)
        print_json({**figures, "energy_j_per_byte": estimate.energy_j_per_byte})
        return
    _print_estimate(estimate, console())


def _show_file(name: str, json: bool) -> None:
    from ridgeline.cli.field_rows import field_rows
    from ridgeline.hardware.components import load_component
    from ridgeline.report.tables import plain_table

    document = read_yaml(catalog.find("components", name))
    load_component(name)  # complains if it is wrong
    if json:
        print_json(document.data)
        return
    table = plain_table({"field": "left", "value": "left", "basis": "left", "source": "left"})
    for path, value, basis, source in field_rows(document.data, ""):
        table.add_row(path, value, basis, source)
    screen = console()
    screen.print(str(document.data.get("description", name)), markup=False)
    screen.print(table)
    for short, citation in document.data.get("sources", {}).items():
        screen.print(f"[{short}] {citation}", soft_wrap=True, markup=False)
    if "grid" in document.data or "cells" in document.data:
        screen.print(
            f"what one takes: ridgeline show {name} --capacity 1KiB --node 22nm", soft_wrap=True
        )


def _print_estimate(estimate: ComponentEstimate, screen: Console) -> None:
    from ridgeline.report.tables import plain_table

    asked = [
        estimate.variant,
        "" if estimate.capacity_bytes is None else _size(estimate.capacity_bytes),
        "" if estimate.width_bits is None else f"{estimate.width_bits:g} bit",
        estimate.ports,
        "" if estimate.node_m is None else f"{estimate.node_m * 1e9:g} nm",
    ]
    screen.print(f"{estimate.name}: {', '.join(filter(None, asked))}", markup=False)
    table = plain_table({"quantity": "left", "value": "right"})
    for quantity, value in _rows(estimate):
        table.add_row(quantity, value)
    screen.print(table)
    for note in estimate.notes:
        screen.print(f"note: {note}", soft_wrap=True, markup=False)
    for short, citation in estimate.sources.items():
        screen.print(f"[{short}] {citation}", soft_wrap=True, markup=False)


def _rows(estimate: ComponentEstimate) -> list[tuple[str, str]]:
    per, missing = _PER[estimate.per], "not published"

    def energy(joules: float | None) -> str:
        if joules is None:
            return missing
        if estimate.per == "B":
            return f"{joules / 8 * 1e12:.4g} pJ/bit"
        if estimate.per == "B/m":
            return f"{joules / 8 * 1e9:.4g} pJ/bit/mm"
        return show(joules, "J", 4)

    found = [
        (f"energy of {per}, read", energy(estimate.read_j)),
        (f"energy of {per}, written", energy(estimate.write_j)),
    ]
    if estimate.per == "access" and estimate.energy_j_per_byte is not None:
        found.append(("energy per bit", f"{estimate.energy_j_per_byte / 8 * 1e12:.4g} pJ/bit"))
    area = estimate.area_m2
    found.append(("area", missing if area is None else f"{area * 1e6:.4g} mm2"))
    for quantity, value, unit in (
        ("leakage", estimate.leakage_w, "W"),
        ("latency", estimate.latency_s, "s"),
        ("cycle", estimate.cycle_s, "s"),
        ("bandwidth", estimate.bandwidth_bytes_per_s, "B/s"),
    ):
        if value is not None or quantity in ("leakage", "latency"):
            found.append((quantity, missing if value is None else show(value, unit, 4)))
    return found


def print_parts(device: Device, screen: Console) -> None:
    """Print area, leakage and energy of a device's parts, and what they add up to."""
    from ridgeline.report.tables import plain_table

    table = plain_table(
        {"part": "left", "component": "left", "count": "right", "energy per bit": "right",
         "area mm2": "right", "leakage W": "right", "latency": "right"}
    )  # fmt: skip
    for part in device.parts:
        one = part.estimate
        per_byte = one.energy_j_per_byte
        table.add_row(
            part.place,
            " ".join(filter(None, (one.name, one.variant))),
            "" if part.count is None else f"{part.count:,}",
            _per_bit(one, per_byte),
            _blank(part.area_m2, 1e6),
            _blank(part.leakage_w, 1.0),
            "" if one.latency_s is None else show(one.latency_s, "s"),
        )
    screen.print(table)
    area = device.area_m2
    if area is not None:
        screen.print(f"area: {area * 1e6:.4g} mm2")
    screen.print(f"idle power: {device.idle_power.value:.4g} W")
    screen.print(f"peak power on the die, estimated: {device.peak_power_w:.4g} W", soft_wrap=True)
    if (density := device.peak_power_density_w_m2) is not None:
        limit = device.thermal_limit
        beside = "" if limit is None else f" (limit: {limit.value * 1e-6:.3g} W/mm2)"
        screen.print(f"peak power density: {density * 1e-6:.3g} W/mm2{beside}", soft_wrap=True)
    for note in device.component_notes:
        screen.print(f"note: {note}", soft_wrap=True, markup=False)


def _per_bit(one: ComponentEstimate, per_byte: float | None) -> str:
    if one.per == "op":
        return "" if one.read_j is None else f"{one.read_j * 1e12:.3g} pJ/op"
    return "" if per_byte is None else f"{per_byte / 8 * 1e12:.3g} pJ"


def _blank(value: float | None, scale: float) -> str:
    return "" if value is None else f"{value * scale:.4g}"


def _size(size: float) -> str:
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{size / scale:g} {unit}"
    return f"{size:g} B"
