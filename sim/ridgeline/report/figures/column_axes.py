"""Columns of tables as they stand at axes: their names, their units, their numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.report.figures.style import words
from ridgeline.units import quantity, show, unprefixed

if TYPE_CHECKING:
    from matplotlib.axis import Axis

Row = Mapping[str, Any]
_TIMES = {"ms": 1e-3, "us": 1e-6, "s": 1.0, "ns": 1e-9}
_ENERGIES = {"J": 1.0, "mJ": 1e-3, "uJ": 1e-6, "kJ": 1e3, "MJ": 1e6, "GJ": 1e9}
_SIZES = {"GiB": 2.0**30, "MiB": 2.0**20, "KiB": 2.0**10, "TiB": 2.0**40}
_SPEEDS = {"GB/s": 1e9, "MB/s": 1e6, "kB/s": 1e3, "TB/s": 1e12}
_POWERS = {"W": 1.0, "mW": 1e-3, "kW": 1e3, "MW": 1e6}
# What a column's last letters say of its unit: the SI unit, and how large those are in it that it
# may be drawn in. The first in which the largest value can be read is taken.
_UNITS: tuple[tuple[str, str, Mapping[str, float]], ...] = (
    ("_bytes_per_s", "B/s", _SPEEDS), ("_per_s", "1/s", {"1/s": 1.0}), ("_bytes", "B", _SIZES),
    ("_mm2", "mm²", {"mm²": 1.0}), ("_s", "s", _TIMES), ("_j", "J", _ENERGIES),
    ("_w", "W", _POWERS), ("_usd", "USD", {"USD": 1.0}),
)  # fmt: skip
_READABLE = (0.05, 1e5)
_NAMES = {"algbw_bytes_per_s": "algorithm bandwidth", "busbw_bytes_per_s": "bus bandwidth"}
_DECADES = 1000.0
"""Quantities that differ by as much are written with a prefix each."""


class ColumnScale(NamedTuple):
    """How the values of a column are drawn.

    Attributes
    ----------
    unit, size
        The unit at the axis, and how large it is in SI; of quantities, the unit of the first one.
    label
        Name and unit, as they stand at the axis.
    """

    column: str
    unit: str
    size: float
    label: str

    @classmethod
    def of(cls, column: str, rows: Sequence[Row]) -> ColumnScale:
        """Choose the unit of a column in some rows."""
        values = [row[column] for row in rows if row.get(column) not in {None, ""}]
        unit, size = readable_unit(column, [v for v in values if not isinstance(v, str)])
        if _is_rate(column):
            unit = f"{words(column.rpartition('.')[2].removesuffix('_per_s'))}/s"
        elif not unit and values and isinstance(values[0], str):
            unit = values[0].partition(" ")[2]
        shown = "" if _are_spread(column, rows) else unit
        label = f"{column_name(column)} ({shown})" if shown else column_name(column)
        return cls(column, unit, size, label)

    def number(self, row: Row) -> float:
        """Return the value of a row in the unit of its axis.

        Raises
        ------
        RidgelineError
            If it is a word.
        """
        value = row[self.column]
        if not isinstance(value, str):
            return float(value) / self.size
        try:
            if value.partition(" ")[2] == self.unit:
                return float(value.partition(" ")[0])
            return quantity(value) / (quantity(f"1 {self.unit}") if self.unit else 1.0)
        except (ConfigError, ValueError) as error:
            raise RidgelineError(
                f"{self.column} is {value!r} in a row: an axis needs numbers; lines, bars and cells"
                " are named by words (--by)"
            ) from error


def readable_unit(column: str, values: Sequence[float]) -> tuple[str, float]:
    """Return the unit in which the largest value of a column can be read, and its size in SI."""
    _, _, sizes = _ending(column)
    least, most = _READABLE
    largest = max((abs(float(value)) for value in values), default=0.0)
    fitting = (unit for unit, size in sizes.items() if least <= largest / size < most)
    usual = next(iter(sizes))
    if largest / sizes[usual] >= most:
        usual = max(sizes, key=lambda unit: sizes[unit])
    unit = next(fitting, usual)
    return unit, sizes[unit]


def column_name(column: str) -> str:
    """Return what a column is, without the letters that stand for its unit."""
    if (last := column.rpartition(".")[2]) in _NAMES:
        return _NAMES[last]
    if _is_rate(column):
        return "throughput"
    parts = column.removeprefix("plan.").removeprefix("collective.").split(".")[-2:]
    return words(" ".join(part.removesuffix(_ending(part)[0]) for part in parts))


def si_unit(column: str) -> str:
    """Return the SI unit that the last letters of a column say, or nothing."""
    return _ending(column)[1]


def si_label(column: str) -> str:
    """Return the name of a column whose values are drawn as they are, with its SI unit."""
    unit = f"{words(column.removesuffix('_per_s'))}/s" if _is_rate(column) else _ending(column)[1]
    return f"{column_name(column)} ({unit})" if unit else words(column)


def valued(column: str, value: Any) -> str:
    """Return a value as the name of a line or a bar: one that says little with its column."""
    text = said(value, column)
    says_little = isinstance(value, bool) or text[:1].isdigit() or text[:1] in {"-", ".", "["}
    return f"{column_name(column)} {text}" if says_little else text


def written(value: float, column: str) -> str:
    """Write an SI value of a column for people, in two digits or three."""
    unit = _ending(column)[1]
    return show(value, unit) if unit else f"{value:.3g}"


def said(value: Any, column: str) -> str:
    """Write a value of a table for people: a quantity with the prefix that it needs."""
    if isinstance(value, str):
        return _with_prefix(quantity(value), value) if _is_quantity(value) else value
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return written(value, column) if isinstance(value, float) else str(value)


def tick_quantities(axis: Axis, column: str, rows: Sequence[Row]) -> None:
    """Write quantities that lie decades apart with a prefix each, as 1 kB and 1 GB."""
    if not _are_spread(column, rows):
        axis.set_major_formatter(lambda value, _: plain_number(value))
        return
    first = str(rows[0][column])
    one = quantity(f"1 {first.partition(' ')[2]}")
    axis.set_major_formatter(lambda value, _: _with_prefix(value * one, first) if value else "0")


def plain_number(value: float) -> str:
    """Write a number at an axis in full: 1,048,576 and 0.25."""
    return f"{value:,.10g}"


_BINARY = re.compile(r"[KMGTP]i(?=[A-Z])")


def _with_prefix(value: float, like: str) -> str:
    """Write an SI value with the prefix that it needs: a binary one if `like` has one."""
    unit = like.partition(" ")[2]
    if not _BINARY.match(unit):
        return show(value, unprefixed(unit))
    bare = _BINARY.sub("", unit, count=1)
    power = next((n for n in range(5, 0, -1) if abs(value) >= 1024**n), 0)
    prefix = f"{'KMGTP'[power - 1]}i" if power else ""
    return f"{value / 1024**power:.4g} {prefix}{bare}"


def _are_spread(column: str, rows: Sequence[Row]) -> bool:
    values = [quantity(row[column]) for row in rows if _is_quantity(row.get(column))]
    return len(values) > 1 and min(values) > 0 and max(values) >= _DECADES * min(values)


def _is_quantity(value: Any) -> bool:
    return isinstance(value, str) and " " in value and value[:1].isdigit()


def _ending(column: str) -> tuple[str, str, Mapping[str, float]]:
    for part in column.split("."):
        for found in _UNITS:
            if part.endswith(found[0]):
                return found
    return "", "", {"": 1.0}


def _is_rate(column: str) -> bool:
    return column.endswith("_per_s") and not column.endswith("_bytes_per_s")
