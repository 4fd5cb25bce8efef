"""What a quantity becomes at another process node, by published tables.

Three laws, which disagree; a result names the one it is by:

- ``stillmaker-baas``: equations of logic from 180 to 7 nm at nominal supplies; below 7 nm the
  foundry's steps.
- ``tsmc``: the foundry's own statements of one process against the one before, 28 to 3 nm.
- ``sram``: area as bit cells; energy as supply squared times the length of wires (the square root
  of the area); delay and leakage unchanged, since wires get no faster and nothing is published.

A. Stillmaker, B. Baas, "Scaling equations for the accurate prediction of CMOS device performance
from 180 nm to 7 nm", Integration 58, 2017.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from functools import cache
from typing import Literal, NamedTuple, get_args

from pydantic import Field

from ridgeline import catalog, units
from ridgeline.config import Strict, load
from ridgeline.errors import ConfigError, nearest
from ridgeline.hardware.sourced import Basis, Described

ScaledQuantity = Literal["energy", "delay", "area", "leakage"]
Law = Literal["stillmaker-baas", "tsmc", "sram"]
_CLOSE = 1e-9


class _Node(Strict):
    node: units.Metres
    voltage: float
    delay: tuple[float, ...] = Field(strict=False, min_length=4, max_length=4)
    energy: tuple[float, ...] = Field(strict=False, min_length=3, max_length=3)
    power: tuple[float, ...] = Field(strict=False, min_length=3, max_length=3)
    area: float


class _Logic(Strict):
    source: str
    voltage_source: str
    nodes: tuple[_Node, ...] = Field(strict=False, min_length=2)


class _Step(Strict):
    from_: units.Metres = Field(alias="from")
    to: units.Metres
    power: float
    area: float
    source: str
    basis: Basis
    note: str = ""


class _BitCell(Strict):
    node: units.Metres
    area: units.SquareMetres
    source: str
    basis: Basis


class NodeScaling(Described):
    """The shipped tables, ``hwconfigs/components/tables/node-scaling.yaml``."""

    kind: Literal["node-scaling"]
    logic: _Logic
    steps: tuple[_Step, ...] = Field(strict=False)
    bit_cells: tuple[_BitCell, ...] = Field(strict=False, min_length=2)


class ScaledValue(NamedTuple):
    """A value at another node.

    Attributes
    ----------
    factor
        New value over old one.
    notes
        Where the tables were left or interpolated.
    """

    value: float
    factor: float
    notes: tuple[str, ...]


def scale_node(
    value: float,
    from_node: str,
    to_node: str,
    quantity: ScaledQuantity,
    law: Law = "stillmaker-baas",
) -> ScaledValue:
    """Scale a value between process nodes: ``scale_node(3.7, "45 nm", "7 nm", "energy")``.

    Parameters
    ----------
    value
        In any unit.
    from_node, to_node
        Feature sizes with their unit.
    quantity
        "energy", "delay", "area" or "leakage".
    law
        "stillmaker-baas", "tsmc" or "sram".

    Raises
    ------
    ConfigError
        If a node has no unit, or quantity or law is unknown.
    """
    for name, allowed in ((quantity, get_args(ScaledQuantity)), (law, get_args(Law))):
        if name not in allowed:
            raise ConfigError(
                f"there is no {name!r}{nearest(name, allowed)} (allowed: {', '.join(allowed)})"
            )
    start, end = (units.parse(node, "m") for node in (from_node, to_node))
    if min(start, end) <= 0:
        raise ConfigError("a process node must be more than 0 m")
    factor, notes = node_factor(start, end, quantity, law)
    return ScaledValue(value * factor, factor, notes)


@cache
def node_factor(
    start_m: float, end_m: float, quantity: str, law: str
) -> tuple[float, tuple[str, ...]]:
    """Return the factor between two nodes in metres, and what is to be said of it."""
    if math.isclose(start_m, end_m, rel_tol=_CLOSE):
        return 1.0, ()
    if quantity == "leakage" or (law == "sram" and quantity == "delay"):
        return 1.0, (
            f"{'leakage' if quantity == 'leakage' else 'latency'} kept as at {_nm(start_m)}: no "
            "law of it is published",
        )
    read = {"stillmaker-baas": _logic, "tsmc": _foundry, "sram": _sram}[law]
    (old, one), (new, other) = read(start_m, quantity), read(end_m, quantity)
    said = f"{quantity} scaled from {_nm(start_m)} to {_nm(end_m)} by {law}"
    return new / old, (said, *dict.fromkeys((*one, *other)))


def nominal_voltage(node_m: float) -> float:
    """Return the nominal supply in V of a node, interpolated, and held beyond the table."""
    nodes = tables().logic.nodes
    return interpolated(node_m, [n.node for n in nodes], [n.voltage for n in nodes])[0]


def delay_at(node_m: float, voltage: float) -> float:
    """Return the relative delay of logic at a supply, by the equation of the nearest node."""
    near = min(tables().logic.nodes, key=lambda n: abs(math.log(n.node / node_m)))
    return _polynomial(near.delay, voltage)


@cache
def tables() -> NodeScaling:
    """Load the tables once."""
    folder = catalog.root() / catalog.FOLDERS["components"] / "tables"
    return load(folder / "node-scaling.yaml", NodeScaling)


def _logic(node_m: float, quantity: str) -> tuple[float, tuple[str, ...]]:
    nodes = tables().logic.nodes
    at = [n.node for n in nodes]
    if quantity == "area":
        values = [n.area for n in nodes]
    else:
        values = [
            _polynomial(n.energy if quantity == "energy" else n.delay, n.voltage) for n in nodes
        ]
    value, note = interpolated(node_m, at, values)
    if node_m >= min(at) * (1 - _CLOSE):
        return value, note
    if quantity == "delay":
        return value, (f"delay below {_nm(min(at))} kept: the equations end there",)
    last, _ = _foundry(min(at), quantity)
    further, more = _foundry(node_m, quantity)
    return value * further / last, (
        f"below {_nm(min(at))} the equations end: {quantity} by the foundry's steps",
        *more,
    )


def _foundry(node_m: float, quantity: str) -> tuple[float, tuple[str, ...]]:
    if quantity == "delay":
        return 1.0, ("delay kept: the steps are at equal speed",)
    steps = tables().steps
    at, values = [steps[0].from_], [1.0]
    for step in steps:
        at.append(step.to)
        values.append(values[-1] * (step.area if quantity == "area" else step.power))
    return interpolated(node_m, at, values)


def _sram(node_m: float, quantity: str) -> tuple[float, tuple[str, ...]]:
    cells = tables().bit_cells
    area, notes = interpolated(node_m, [c.node for c in cells], [c.area for c in cells])
    if quantity == "area":
        return area, notes
    return math.sqrt(area) * nominal_voltage(node_m) ** 2, notes


def _polynomial(coefficients: Sequence[float], voltage: float) -> float:
    value = 0.0
    for coefficient in coefficients:
        value = value * voltage + coefficient
    return value


def interpolated(
    node_m: float, at: Sequence[float], values: Sequence[float]
) -> tuple[float, tuple[str, ...]]:
    """Interpolate logarithms between nodes; beyond them the nearest value is held, and said."""
    known = sorted(zip(at, values, strict=True))
    nodes = [node for node, _ in known]
    if node_m <= nodes[0] * (1 + _CLOSE) or node_m >= nodes[-1] * (1 - _CLOSE):
        end = 0 if node_m <= nodes[0] * (1 + _CLOSE) else -1
        if math.isclose(node_m, nodes[end], rel_tol=_CLOSE):
            return known[end][1], ()
        return known[end][1], (f"extrapolated: the table ends at {_nm(nodes[end])}, held",)
    right = bisect_left(nodes, node_m * (1 - _CLOSE))
    (high_node, high), (low_node, low) = known[right], known[right - 1]
    if math.isclose(node_m, high_node, rel_tol=_CLOSE):
        return high, ()
    share = math.log(node_m / low_node) / math.log(high_node / low_node)
    return low * (high / low) ** share, (
        f"{_nm(node_m)} is interpolated between {_nm(low_node)} and {_nm(high_node)}",
    )


def _nm(node_m: float) -> str:
    return f"{node_m * 1e9:.4g} nm"
