"""Schemas of component files, and of what a user says of a component."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from ridgeline import units
from ridgeline.config import FieldError, Strict
from ridgeline.errors import ConfigError, nearest
from ridgeline.hardware.sourced import Described, Positive, Sourced

_PLAIN = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z]+)\s*")
_PORTS = re.compile(r"(?:(\d+)RW)?(?:(\d+)R(?!W))?(?:(\d+)W)?")
_ENERGIES = ("J/op", "J/B", "J/B/m")


def _plain(unit: str, example: str, most: float) -> BeforeValidator:
    """Read a voltage or a temperature, which no other quantity of the project is made of."""

    def read(raw: object) -> float:
        match = _PLAIN.fullmatch(raw) if isinstance(raw, str) and len(raw) < 40 else None
        if match is None or match[2] != unit or not 0 < float(match[1]) <= most:
            raise ValueError(
                f"{raw!r} is not between 0 and {most:g} {unit}; write for example {example!r}"
            )
        return float(match[1])

    return BeforeValidator(read, json_schema_input_type=str)


def _ports(raw: object) -> str:
    match = _PORTS.fullmatch(raw) if isinstance(raw, str) else None
    if not raw or match is None:
        raise ValueError(f"{raw!r} are no ports; write for example '1RW', '1R1W' or '4R2W'")
    return str(raw)


def _energy(raw: str) -> str:
    for unit in _ENERGIES:
        try:
            if units.parse(raw, unit) < 0:
                raise ValueError(f"{raw!r} must be at least 0")
        except ConfigError:
            continue
        return raw
    raise ValueError(f"{raw!r} is no energy; write '1.5 pJ/op', '4 pJ/bit' or '0.1 pJ/bit/mm'")


Voltage = Annotated[float, _plain("V", "0.8 V", 10.0)]
Kelvin = Annotated[float, _plain("K", "350 K", 500.0)]
Ports = Annotated[str, BeforeValidator(_ports)]
Energy = Annotated[str, BeforeValidator(_energy)]


class ComponentUse(Strict):
    """A component with its parameters, as a device or a command names it."""

    name: str
    """Name in the catalogue (``ridgeline list components``), or a path."""
    variant: str | None = None
    """Row of a component with variants: number format, type of memory or link."""
    capacity: units.Bytes | None = None
    """Of one instance; a memory level gives its own."""
    width: units.Bytes | None = None
    """Of one access or transfer: ``256 bit``."""
    ports: Ports | None = None
    """``1RW``, ``2RW``, ``1R1W``, ``4R2W``."""
    node: units.Metres | None = None
    """Feature size; in a device, by default that of the device."""
    voltage: Voltage | None = None
    """Supply; by default that of the node."""
    temperature: Kelvin | None = None
    """Of the junction; decides the leakage of RAM."""
    cell: str | None = None
    """Kind of transistors of a RAM: itrs-hp (fast), itrs-lop (low power), itrs-lstp (low
    standby power: what real caches are near to)."""
    banks: int | None = Field(default=None, ge=1, le=1024)
    """Banks of a RAM that share its capacity."""
    count: int | None = Field(default=None, ge=1)
    """Units of an engine, where its array does not tell."""

    @model_validator(mode="before")
    @classmethod
    def _bare(cls, raw: Any) -> Any:
        return {"name": raw} if isinstance(raw, str) else raw


class GridDefaults(Strict):
    """What a RAM is where nothing else is said."""

    width: units.Bytes
    ports: Ports
    cell: str
    banks: int
    temperature: Kelvin


_Nanometres = Annotated[int, Field(strict=False)]  # a key of YAML comes as text
_Curve = Annotated[tuple[float, ...], Field(strict=False)]


class PointGrid(Strict):
    """A table of points over cell, ports, banks, node, width and capacity."""

    points: str
    """File beside this one: one row per point, units in the names of its columns."""
    source: str
    defaults: GridDefaults
    voltages: dict[str, dict[_Nanometres, float]]
    """Supply in V by cell and node in nm."""
    temperatures: tuple[float, ...] = Field(strict=False, min_length=2)
    leakage_mw: dict[str, dict[_Nanometres, _Curve]]
    """Subthreshold leakage at these temperatures by cell and node, of one size."""


class CellsDefaults(Strict):
    """What a register file is where nothing else is said."""

    width: units.Bytes
    ports: Ports


class StorageCells(Strict):
    """Storage of equal cells: area and leakage per bit, energy that grows with the capacity."""

    defaults: CellsDefaults
    range: tuple[units.Bytes, units.Bytes] = Field(strict=False)
    """Capacities that the fit is for."""
    energy: Sourced[units.JoulesPerByte]
    """Of an access, at `energy_capacity`."""
    energy_capacity: Sourced[units.Bytes]
    energy_exponent: Sourced[Positive]
    energy_node: units.Metres
    area: Sourced[units.SquareMetresPerByte]
    leakage: Sourced[units.WattsPerByte]
    node: units.Metres
    """Of area, leakage and pointers."""
    port_area: Sourced[Positive]
    """Share of the area that every port beyond two adds."""
    pointers: int = Field(default=0, ge=0)
    """Counters of a queue, of which one counts at an access."""
    pointer_energy: Sourced[units.JoulesPerOp] | None = None
    """Of a counter of 32 bits; as `pointer_area`."""
    pointer_area: Sourced[units.SquareMetres] | None = None

    @model_validator(mode="after")
    def _whole(self) -> StorageCells:
        if self.pointers and (self.pointer_energy is None or self.pointer_area is None):
            raise FieldError("pointers need pointer_energy and pointer_area", "pointers")
        return self


class VariantPoint(Strict):
    """What is published of a variant at one node; what nobody publishes is left out."""

    node: units.Metres | None = None
    """None: it does not go with the accelerator's node."""
    energy: Sourced[Energy] | None = None
    """``pJ/op`` of an operation, ``pJ/bit`` of a transfer, ``pJ/bit/mm`` of a wire."""
    area: Sourced[units.SquareMetres] | None = None
    leakage: Sourced[units.Watts] | None = None
    latency: Sourced[units.Seconds] | None = None
    bandwidth: Sourced[units.BytesPerSecond] | None = None


class ComponentVariant(Strict):
    """One row of a component: a number format, a type of memory, a kind of link."""

    at: tuple[VariantPoint, ...] = Field(strict=False, min_length=1)
    width: units.Bytes | None = None
    """Of one operation, where it has one."""
    note: str = ""


class Component(Described):
    """A part with a size: a grid of points, a fit for storage cells, or a table of variants."""

    kind: Literal["component"]
    grid: PointGrid | None = None
    cells: StorageCells | None = None
    variants: dict[str, ComponentVariant] = Field(default_factory=dict)
    default: str | None = None
    """Variant that is meant where none is named."""
    file: str = Field(default="", exclude=True)
    """Where it was read from; put here by the loader."""

    @model_validator(mode="after")
    def _one_model(self) -> Component:
        models = [self.grid is not None, self.cells is not None, bool(self.variants)]
        if sum(models) != 1:
            raise ValueError("a component has one of grid, cells and variants")
        if self.variants and self.default not in self.variants:
            raise FieldError(
                f"there is no variant {self.default!r}"
                f"{nearest(str(self.default), self.variants)} (there are: "
                f"{', '.join(self.variants)})",
                "default",
            )
        return self
