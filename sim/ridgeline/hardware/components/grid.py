"""RAM from a grid of points: interpolation of logarithms, monotone in capacity by construction.

Along the capacity every series of the grid is made monotone (pool adjacent violators, on
logarithms), so that more capacity never costs less. Between grid points, and beyond them along the
slope of the last two, the logarithm is linear in the logarithm of capacity, width and node. A kind
of RAM that has points at few nodes is the plain one times a ratio.
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from io import StringIO
from pathlib import Path
from typing import NamedTuple

from ridgeline.bounded_files import read_text
from ridgeline.errors import ConfigError, nearest
from ridgeline.hardware.components.scaling import delay_at, node_factor, nominal_voltage
from ridgeline.hardware.components.schema import PointGrid

QUANTITIES = {
    "read_pj": "r", "write_pj": "w", "access_ns": "a", "cycle_ns": "t",
    "leakage_mw": "l", "gate_leakage_mw": "g", "area_mm2": "m",
}  # fmt: skip
"""Columns of a grid, and their letters in its column `computed`."""
_WORDS = {"r": "read energy", "w": "write energy", "a": "latency", "l": "leakage", "m": "area"}
_PER_BIT = frozenset({"area_mm2", "leakage_mw", "gate_leakage_mw"})
_PLAIN = ("itrs-hp", "1RW", 1)
_CLOSE = 1e-9

Kind = tuple[str, str, int]
"""Cell, ports, banks."""


class Tables(NamedTuple):
    """A grid as it is used."""

    widths: tuple[int, ...]
    capacities: tuple[int, ...]
    nodes: dict[Kind, tuple[int, ...]]
    series: dict[tuple[Kind, int, int, str], tuple[float, ...]]
    """Kind, node, width, column -> logarithms over the capacities."""
    computed: dict[tuple[Kind, int, int, int], str]
    """Kind, node, width, capacity -> letters of what the tool computed."""


class RamFigures(NamedTuple):
    """What a RAM of one instance takes: per access J, m2, W, s."""

    read_j: float
    write_j: float
    area_m2: float
    leakage_w: float
    latency_s: float
    cycle_s: float
    notes: tuple[str, ...]


def ram(
    grid: PointGrid,
    file: str,
    capacity_bytes: float,
    width_bits: float,
    kind: Kind,
    node_m: float,
    voltage: float | None,
    temperature_k: float,
) -> RamFigures:
    """Evaluate a RAM.

    Raises
    ------
    ConfigError
        If the grid has no such cell, ports or number of banks.
    """
    tables = read_tables(str(Path(file).parent / grid.points))
    _check_kind(tables, kind)
    notes: list[str] = []
    capacity, width, macros = capacity_bytes, width_bits, 1
    if width > tables.widths[-1]:
        macros = math.ceil(width / tables.widths[-1])
        capacity, width = capacity / macros, width / macros
        notes.append(
            f"wider than {tables.widths[-1]} bits: {macros} macros of {width:.4g} bits side by side"
        )
    if width < tables.widths[0]:
        notes.append(f"narrower than {tables.widths[0]} bits: taken as {tables.widths[0]} bits")
        width = float(tables.widths[0])
    node_nm = node_m * 1e9
    low, high = tables.nodes[_PLAIN][0], tables.nodes[_PLAIN][-1]
    at_nm = min(max(node_nm, low), high)
    found = {
        column: math.exp(_value(tables, kind, at_nm, width, capacity, column)) * macros
        for column in QUANTITIES
    }
    if macros > 1:  # side by side: they answer together
        for column in ("access_ns", "cycle_ns"):
            found[column] /= macros
    notes += _range_notes(tables, kind, at_nm, width, capacity)
    factors = dict.fromkeys(("energy", "delay", "area"), 1.0)
    if not math.isclose(at_nm, node_nm, rel_tol=_CLOSE):
        law = "sram" if node_nm < at_nm else "stillmaker-baas"
        for quantity in factors:
            factors[quantity], said = node_factor(at_nm * 1e-9, node_m, quantity, law)
            notes += [note for note in said if note not in notes]
        notes.append(
            f"extrapolated: the points end at {at_nm:g} nm and know no FinFETs"
            if node_nm < at_nm
            else f"extrapolated: the points end at {at_nm:g} nm"
        )
    dynamic, delay, static = 1.0, 1.0, 1.0
    if voltage is not None:
        nominal = _nominal(grid, kind[0], node_nm)
        if not math.isclose(voltage, nominal, rel_tol=_CLOSE):
            dynamic, static = (voltage / nominal) ** 2, voltage / nominal
            delay = delay_at(node_m, voltage) / delay_at(node_m, nominal)
            if not 0 < delay < math.inf or not 0.5 <= voltage <= 1.3:
                raise ConfigError(
                    f"a supply of {voltage:g} V lies outside the equations of delay (0.5 to 1.3 V)"
                )
            notes.append(
                f"{voltage:g} V instead of {nominal:.3g} V: energy by its square, leakage in "
                "proportion, latency by the equation of logic"
            )
    hot, said_of_heat = _heat(grid, kind[0], at_nm, temperature_k)
    notes += said_of_heat
    leakage_mw = (found["leakage_mw"] * hot + found["gate_leakage_mw"]) * static
    return RamFigures(
        read_j=found["read_pj"] * 1e-12 * factors["energy"] * dynamic,
        write_j=found["write_pj"] * 1e-12 * factors["energy"] * dynamic,
        area_m2=found["area_mm2"] * 1e-6 * factors["area"],
        leakage_w=leakage_mw * 1e-3,
        latency_s=found["access_ns"] * 1e-9 * factors["delay"] * delay,
        cycle_s=found["cycle_ns"] * 1e-9 * factors["delay"] * delay,
        notes=tuple(notes),
    )


@lru_cache(maxsize=8)
def read_tables(path: str) -> Tables:
    """Read a grid's file.

    Raises
    ------
    ConfigError
        If the file cannot be read or a cell of it is no positive number.
    """
    logs: dict[tuple[Kind, int, int, str], list[tuple[int, float]]] = {}
    computed: dict[tuple[Kind, int, int, int], str] = {}
    for line, row in enumerate(csv.DictReader(StringIO(read_text(path))), 2):
        try:
            kind = (row["cell"], row["ports"], int(row["banks"]))
            node, width = int(row["node_nm"]), int(row["width_bits"])
            capacity = int(row["capacity_bytes"])
            computed[kind, node, width, capacity] = row["computed"]
            for column in QUANTITIES:
                value = math.log(float(row[column]))
                logs.setdefault((kind, node, width, column), []).append((capacity, value))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"is no row of a grid: {error}", file=path, line=line) from error
    series = {key: monotone([value for _, value in sorted(points)]) for key, points in logs.items()}
    kinds = {key[0] for key in logs}
    return Tables(
        widths=tuple(sorted({key[2] for key in logs})),
        capacities=tuple(sorted({key[3] for key in computed})),
        nodes={kind: tuple(sorted({k[1] for k in logs if k[0] == kind})) for kind in kinds},
        series=series,
        computed=computed,
    )


def monotone(values: Sequence[float]) -> tuple[float, ...]:
    """Return the nearest values (least squares) that never fall: pool adjacent violators."""
    pools: list[tuple[float, int]] = []
    for value in values:
        pools.append((value, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (one, many), (other, more) = pools[-2:]
            pools[-2:] = [((one * many + other * more) / (many + more), many + more)]
    return tuple(mean for mean, count in pools for _ in range(count))


def _value(
    tables: Tables, kind: Kind, node_nm: float, width: float, capacity: float, column: str
) -> float:
    """Return the logarithm of one quantity."""
    series = _series(tables, _PLAIN, node_nm, width, column)
    for side in _sides(kind):
        nodes = tables.nodes[side]
        near = min(max(node_nm, nodes[0]), nodes[-1])
        plain = _series(tables, _PLAIN, near, width, column)
        other = _series(tables, side, near, width, column)
        series = [s + o - p for s, o, p in zip(series, other, plain, strict=True)]
    for position in range(1, len(series)):  # a product of ratios may fall where none of them does
        series[position] = max(series[position], series[position - 1])
    at = [math.log(c) for c in tables.capacities]
    x = math.log(capacity)
    if x > at[-1] and column in _PER_BIT:  # twice the bits are at least twice the cells
        return series[-1] + max(_along(at, series, x) - series[-1], x - at[-1])
    return _along(at, series, x)


def _sides(kind: Kind) -> list[Kind]:
    """Kinds that differ from the plain one in one thing."""
    plain_cell, plain_ports, plain_banks = _PLAIN
    cell, ports, banks = kind
    sides = [(cell, plain_ports, plain_banks), (plain_cell, ports, plain_banks)]
    return [k for k in (*sides, (plain_cell, plain_ports, banks)) if k != _PLAIN]


def _series(tables: Tables, kind: Kind, node_nm: float, width: float, column: str) -> list[float]:
    """Logarithms over the capacities, between the nodes and widths of the grid."""
    nodes, widths = tables.nodes[kind], tables.widths
    left, right, share = _between(nodes, node_nm)
    low, high, part = _between(widths, width)
    corners = [
        (tables.series[kind, node, at, column], weight)
        for node, one in ((left, 1 - share), (right, share))
        for at, other in ((low, 1 - part), (high, part))
        if (weight := one * other) > 0
    ]
    return [
        sum(series[position] * weight for series, weight in corners)
        for position in range(len(tables.capacities))
    ]


def _between(at: Sequence[int], x: float) -> tuple[int, int, float]:
    """Return the neighbours of x, and the share of the right one on a logarithmic scale."""
    right = min(max(bisect_right(at, x * (1 + _CLOSE)), 1), len(at) - 1)
    low, high = at[right - 1], at[right]
    share = math.log(x / low) / math.log(high / low)
    return low, high, 0.0 if abs(share) < _CLOSE else 1.0 if abs(share - 1) < _CLOSE else share


def _along(at: Sequence[float], values: Sequence[float], x: float) -> float:
    """Interpolate, and go on along the first and the last slope."""
    right = min(max(bisect_right(at, x + _CLOSE), 1), len(at) - 1)
    low, high = at[right - 1], at[right]
    share = (x - low) / (high - low)
    if abs(share) < _CLOSE:
        return values[right - 1]
    return values[right - 1] + share * (values[right] - values[right - 1])


def _check_kind(tables: Tables, kind: Kind) -> None:
    known = tables.nodes
    for what, found, allowed in (
        ("cell", kind[0], sorted({k[0] for k in known})),
        ("ports", kind[1], sorted({k[1] for k in known})),
        ("number of banks", kind[2], sorted({k[2] for k in known})),
    ):
        if found not in allowed:
            listed = [str(one) for one in allowed]
            raise ConfigError(
                f"the points have no {what} {found!r}{nearest(str(found), listed)} (they have: "
                f"{', '.join(listed)})"
            )


def _range_notes(
    tables: Tables, kind: Kind, node_nm: float, width: float, capacity: float
) -> list[str]:
    """Say what is between the points or beyond them."""
    notes = []
    least, most = tables.capacities[0], tables.capacities[-1]
    if capacity > most * (1 + _CLOSE) or capacity < least * (1 - _CLOSE):
        end = most if capacity > most else least
        notes.append(
            f"extrapolated: the points end at {end / 1024:g} KiB; along the slope of the last two"
        )
    sides = _sides(kind)
    for side in sides:
        nodes = tables.nodes[side]
        if not nodes[0] * (1 - _CLOSE) <= node_nm <= nodes[-1] * (1 + _CLOSE):
            end = nodes[0] if node_nm < nodes[0] else nodes[-1]
            notes.append(
                f"extrapolated: {' '.join(map(str, side))} has points at "
                f"{', '.join(map(str, nodes))} nm; its ratio to the plain RAM at {end} nm is used"
            )
    if len(sides) > 1:
        notes.append(
            "extrapolated: cell, ports and banks were varied one by one; ratios multiplied"
        )
        return notes
    exact = [
        min(choices, key=lambda c: abs(math.log(c / x)))
        for choices, x in (
            (tables.nodes[kind], node_nm), (tables.widths, width), (tables.capacities, capacity),
        )
    ]  # fmt: skip
    on_grid = all(
        math.isclose(one, x, rel_tol=1e-6)
        for one, x in zip(exact, (node_nm, width, capacity), strict=True)
    )
    if not on_grid:
        notes.append("interpolated between points")
        return notes
    letters = tables.computed.get((kind, exact[0], exact[1], exact[2]), "")
    missing = [word for letter, word in _WORDS.items() if letter not in letters]
    if missing:
        notes.append(f"predicted from neighbouring points: {', '.join(missing)}")
    return notes


def _nominal(grid: PointGrid, cell: str, node_nm: float) -> float:
    """Supply of a cell at a node: that of its points, beyond them in proportion to logic's."""
    known = sorted(grid.voltages[cell].items())
    near_nm, volts = min(known, key=lambda k: abs(math.log(k[0] / node_nm)))
    return volts * nominal_voltage(node_nm * 1e-9) / nominal_voltage(near_nm * 1e-9) if (
        not math.isclose(near_nm, node_nm, rel_tol=1e-6)
    ) else volts  # fmt: skip


def _heat(
    grid: PointGrid, cell: str, node_nm: float, temperature_k: float
) -> tuple[float, list[str]]:
    """Return subthreshold leakage at a temperature over that of the points', and remarks."""
    usual = grid.defaults.temperature
    if math.isclose(temperature_k, usual):
        return 1.0, []
    curves = grid.leakage_mw[cell]
    near = min(curves, key=lambda node: abs(math.log(node / node_nm)))
    logs = list(monotone([math.log(value) for value in curves[near]]))
    at = grid.temperatures
    within = min(max(temperature_k, at[0]), at[-1])
    ratio = math.exp(_along(at, logs, within) - _along(at, logs, usual))
    notes = [f"leakage at {temperature_k:g} K by the curve of {cell} at {near} nm"]
    if within != temperature_k:
        notes.append(f"extrapolated: the curve ends at {within:g} K, held")
    return ratio, notes
