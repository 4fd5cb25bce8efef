"""Columns of tables as they stand at axes: their names, their units, their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ridgeline.report.style import words
from ridgeline.units import quantity, show, unprefixed

if TYPE_CHECKING:
    from matplotlib.axis import Axis

Row = Mapping[str, Any]
# What a column's last letters say of its unit: the unit drawn, how many of it the SI value is, and
# the SI unit.
_UNITS = (
    ("_bytes_per_s", "GB/s", 1e-9, "B/s"), ("_per_s", "1/s", 1.0, "1/s"),
    ("_bytes", "GiB", 2.0**-30, "B"), ("_mm2", "mm²", 1.0, "mm²"), ("_s", "ms", 1e3, "s"),
    ("_j", "J", 1.0, "J"), ("_w", "W", 1.0, "W"), ("_usd", "USD", 1.0, "USD"),
)  # fmt: skip
_NAMES = {"algbw_bytes_per_s": "algorithm bandwidth", "busbw_bytes_per_s": "bus bandwidth"}
_DECADES = 1000.0
"""Quantities that differ by as much are written with a prefix each."""


def unit_of(column: str) -> tuple[str, float]:
    """Return the unit that a column is drawn in, and its size against the SI unit."""
    _, unit, factor, _ = _ending(column)
    return unit, factor


def axis_label(column: str, rows: Sequence[Row]) -> str:
    """Return the name of a column with its unit, as it stands at an axis."""
    unit, _ = unit_of(column)
    if _is_rate(column):
        unit = f"{words(column.rpartition('.')[2].removesuffix('_per_s'))}/s"
    elif not unit and isinstance(first := rows[0].get(column), str):
        unit = first.partition(" ")[2]
    unit = "" if _are_spread(column, rows) else unit
    return f"{column_name(column)} ({unit})" if unit else column_name(column)


def number(row: Row, column: str, rows: Sequence[Row]) -> float:
    """Return a value in the unit of its axis; of quantities that is the unit of the first one."""
    value = row[column]
    if not isinstance(value, str):
        return float(value) * unit_of(column)[1]
    unit = str(rows[0][column]).partition(" ")[2]
    if value.partition(" ")[2] == unit:
        return float(value.partition(" ")[0])
    return quantity(value) / (quantity(f"1 {unit}") if unit else 1.0)


def column_name(column: str) -> str:
    """Return what a column is, without the letters that stand for its unit."""
    if (last := column.rpartition(".")[2]) in _NAMES:
        return _NAMES[last]
    if _is_rate(column):
        return "throughput"
    parts = column.removeprefix("plan.").removeprefix("collective.").split(".")[-2:]
    return words(" ".join(part.removesuffix(_ending(part)[0]) for part in parts))


def valued(column: str, value: Any) -> str:
    """Return a value as the name of a line or a bar: one that says little with its column."""
    text = said(value, column)
    says_little = isinstance(value, bool) or text[:1].isdigit() or text[:1] in {"-", ".", "["}
    return f"{column_name(column)} {text}" if says_little else text


def written(value: float, column: str) -> str:
    """Write an SI value of a column for people, in two digits or three."""
    unit = _ending(column)[3]
    return show(value, unit) if unit else f"{value:.3g}"


def said(value: Any, column: str) -> str:
    """Write a value of a table for people: a quantity with the prefix that it needs."""
    if isinstance(value, str):
        return _with_prefix(quantity(value), value) if _is_quantity(value) else value
    return written(value, column) if isinstance(value, float) else str(value)


def tick_quantities(axis: Axis, column: str, rows: Sequence[Row]) -> None:
    """Write quantities that lie decades apart with a prefix each, as 1 kB and 1 GB."""
    if not _are_spread(column, rows):
        axis.set_major_formatter(lambda value, _: f"{value:,g}")
        return
    first = str(rows[0][column])
    one = quantity(f"1 {first.partition(' ')[2]}")
    axis.set_major_formatter(lambda value, _: _with_prefix(value * one, first) if value else "0")


def _with_prefix(value: float, like: str) -> str:
    return show(value, unprefixed(like.partition(" ")[2]))


def _are_spread(column: str, rows: Sequence[Row]) -> bool:
    values = [quantity(row[column]) for row in rows if _is_quantity(row.get(column))]
    return len(values) > 1 and min(values) > 0 and max(values) >= _DECADES * min(values)


def _is_quantity(value: Any) -> bool:
    return isinstance(value, str) and " " in value and value[:1].isdigit()


def _ending(column: str) -> tuple[str, str, float, str]:
    for part in column.split("."):
        for found in _UNITS:
            if part.endswith(found[0]):
                return found
    return "", "", 1.0, ""


def _is_rate(column: str) -> bool:
    return column.endswith("_per_s") and not column.endswith("_bytes_per_s")
