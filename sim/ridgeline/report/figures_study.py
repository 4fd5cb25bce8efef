"""Figures of many results: the rows of a sweep, and the residuals of a validation.

Rows are flat mappings with the columns of ``Result.to_row``. Every function takes axes or makes
some, and returns them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from ridgeline.errors import RidgelineError
from ridgeline.report.manifest import digest
from ridgeline.report.style import COLOURS, FAINT, INK, SERIES, SMALL, head, sheet, words
from ridgeline.units import quantity
from ridgeline.version import __version__

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

Row = Mapping[str, Any]
_SPACE = (3.4, 0.85, 0.75, 1.0)
_MAX_BARS = 24
# What a column's last letters say of its unit: unit, and how many of it the SI value is.
_UNITS = (
    ("_per_s", "1/s", 1.0), ("_bytes", "GiB", 2.0**-30), ("_mm2", "mm²", 1.0),
    ("_s", "ms", 1e3), ("_j", "J", 1.0), ("_w", "W", 1.0), ("_usd", "USD", 1.0),
)  # fmt: skip
# Of stacked bars: the usual unit and others, by size in SI; the first with readable numbers is taken.
_SIZES = MappingProxyType(
    {
        "time_s": {"ms": 1e-3, "us": 1e-6, "s": 1.0},
        "energy_j": {"J": 1.0, "mJ": 1e-3, "uJ": 1e-6, "kJ": 1e3, "MJ": 1e6},
        "memory_bytes": {"GiB": 2.0**30, "MiB": 2.0**20, "KiB": 2.0**10},
    }
)
_READABLE = (0.05, 1e5)
_PARTS = MappingProxyType(
    {
        "time": ("time_s", "Time of a step"),
        "energy": ("energy_j", "Energy of a step"),
        "memory": ("memory_bytes", "Memory of the fullest rank"),
    }
)


def unit_of(column: str) -> tuple[str, float]:
    """Return the unit that a column is drawn in, and its size against the SI unit."""
    for part in column.split("."):
        for ending, unit, factor in _UNITS:
            if part.endswith(ending):
                return unit, factor
    return "", 1.0


def axis_label(column: str, rows: Sequence[Row]) -> str:
    """Return the name of a column with its unit, as it stands at an axis."""
    unit, _ = unit_of(column)
    if column.endswith("_per_s"):
        unit = f"{words(column.rpartition('.')[2].removesuffix('_per_s'))}/s"
    elif not unit and isinstance(first := rows[0].get(column), str):
        unit = _si_unit(first)
    return f"{_name(column)} ({unit})" if unit else _name(column)


def curve(
    rows: Sequence[Row], x: str, y: str, by: str | None = None, ax: Axes | None = None
) -> Axes:
    """Draw one column over another, a line for each value of a third (batch size against time).

    The vertical axis begins at zero.
    """
    rows = _whole(rows, x, y)

    def draw(axes: Axes) -> str:
        groups: dict[str, list[Row]] = {}
        for row in rows:
            groups.setdefault("" if by is None else str(row[by]), []).append(row)
        for i, (name, members) in enumerate(groups.items()):
            points = sorted((_number(row, x), _number(row, y)) for row in members)
            axes.plot(
                *zip(*points, strict=True), marker="o", markersize=3.5, linewidth=1.2,
                color=SERIES[i % len(SERIES)], linestyle=("-", "--", ":")[i // len(SERIES) % 3],
                label=name,
            )  # fmt: skip
        spread = [_number(row, x) for row in rows]
        if min(spread) > 0 and max(spread) >= 20 * min(spread):
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        elif all(value.is_integer() for value in spread):
            axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_ylim(bottom=0)
        axes.set_xlabel(axis_label(x, rows))
        axes.set_ylabel(axis_label(y, rows))
        handles = axes.get_lines() if by is not None else []
        head(axes, f"{_name(y).capitalize()} over {_name(x)}", list(handles), columns=4)
        lines = "" if by is None else f"A line for each {_name(by)}. "
        return f"{lines}{len(rows)} points; the vertical axis begins at 0."

    return sheet(_SPACE, draw, stamp(rows), ax)


def pareto_front(
    rows: Sequence[Row], front: Sequence[Row], x: str, y: str, ax: Axes | None = None
) -> Axes:
    """Draw all rows over two columns, and those that no other row beats joined by a line."""
    rows = _whole(rows, x, y)

    def draw(axes: Axes) -> str:
        both = [(_number(row, x), _number(row, y)) for row in rows]
        axes.plot(
            *zip(*both, strict=True), linestyle="", marker="o", markersize=3, color=FAINT,
            alpha=0.5, gid="rows", label="beaten by another row",
        )  # fmt: skip
        best = sorted((_number(row, x), _number(row, y)) for row in front)
        axes.plot(
            *zip(*best, strict=True), marker="o", markersize=4.5, linewidth=1.2, color=SERIES[0],
            gid="front", label="front",
        )  # fmt: skip
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.set_xlabel(axis_label(x, rows))
        axes.set_ylabel(axis_label(y, rows))
        head(axes, "Pareto front", list(axes.get_lines())[::-1])
        return f"{len(front)} of {len(rows)} points are on the front; both axes begin at 0."

    return sheet(_SPACE, draw, stamp(rows), ax)


def bars(rows: Sequence[Row], kind: str, by: str | None = None, ax: Axes | None = None) -> Axes:
    """Draw the parts of time, energy or memory of every row, one bar on the other.

    Parameters
    ----------
    kind
        "time", "energy" or "memory".
    by
        The column that names the bars.
    """
    group, title = _PARTS[kind]
    rows = _whole(rows, f"{group}.total")
    if len(rows) > _MAX_BARS:
        raise RidgelineError(f"{len(rows)} bars are too many to read; at most {_MAX_BARS} rows")
    parts = [
        name for name in rows[0] if name.startswith(f"{group}.")
        and name not in {f"{group}.total", f"{group}.capacity"}
    ]  # fmt: skip

    def draw(axes: Axes) -> str:
        unit, size = _unit_for(group, max(float(row[f"{group}.total"]) for row in rows))
        below = np.zeros(len(rows))
        shown: list[Artist] = []
        for i, part in enumerate(parts):
            heights = np.array([float(row[part]) / size for row in rows])
            if not heights.any():
                continue
            name = part.partition(".")[2]
            colour = COLOURS.get(name, SERIES[i % len(SERIES)])
            made = axes.barh(range(len(rows)), heights, 0.7, below, color=colour, label=words(name))
            shown.append(made.patches[0])
            made.patches[0].set_label(words(name))
            below += heights
        names = [str(row[by]) if by is not None else "" for row in rows]
        axes.set_yticks(range(len(rows)), names, fontsize=SMALL)
        axes.invert_yaxis()
        axes.set_xlim(left=0)
        axes.set_xlabel(f"{group.partition('_')[0]} ({unit})")
        head(axes, title, shown, columns=2)
        of = "" if by is None else f" A bar for each {_name(by)}."
        return f"Parts add up to the total; the axis begins at 0.{of}"

    return sheet((2.6 + 0.2 * len(rows), 2.0, 1.0, 1.15), draw, stamp(rows), ax)


def _unit_for(group: str, largest: float) -> tuple[str, float]:
    """Return the unit of a group of columns in which its largest value is a readable number."""
    least, most = _READABLE
    sizes = _SIZES[group]
    fitting = (unit for unit, size in sizes.items() if least <= largest / size < most)
    unit = next(fitting, next(iter(sizes)))
    return unit, sizes[unit]


def residuals(rows: Sequence[Row], ax: Axes | None = None) -> Axes:
    """Draw predictions over measurements, with the line where they are equal and 25 % around it.

    Every row has ``predicted`` and ``measured``, in one unit for all rows.
    """
    rows = _whole(rows, "measured", "predicted")

    def draw(axes: Axes) -> str:
        measured = np.array([float(row["measured"]) for row in rows])
        predicted = np.array([float(row["predicted"]) for row in rows])
        both = np.concatenate((measured, predicted))
        ends = np.array([both.min(), both.max()])
        axes.fill_between(ends, 0.75 * ends, 1.25 * ends, color=FAINT, alpha=0.2, linewidth=0)
        axes.plot(ends, ends, color=INK, linewidth=0.8, gid="equal")
        axes.plot(
            measured, predicted, linestyle="", marker="o", markersize=3, color=SERIES[0],
            alpha=0.6, gid="rows",
        )  # fmt: skip
        axes.set_xscale("log")
        axes.set_yscale("log")
        quantities = " and ".join(dict.fromkeys(str(row.get("quantity", "")) for row in rows))
        axes.set_xlabel(f"measured {quantities}")
        axes.set_ylabel(f"predicted {quantities}")
        head(axes, "Predicted against measured")
        error = np.abs(predicted / measured - 1)
        return (
            f"{len(rows)} measurements, median error {np.median(error):.1%}; the line is equality, "
            "the band 25 % around it; both axes are logarithmic."
        )

    return sheet(_SPACE, draw, stamp(rows), ax)


ROW_FIGURES: Mapping[str, Callable[..., Axes]] = MappingProxyType(
    {"curve": curve, "pareto": pareto_front, "residuals": residuals, **dict.fromkeys(_PARTS, bars)}
)


def stamp(rows: Sequence[Row]) -> str:
    """Say that rows were simulated, how many, and from which content."""
    hashes = [row.get("manifest_hash") or digest(dict(row)) for row in rows]
    what = f"manifest {hashes[0]}" if len(hashes) == 1 else f"manifests {digest(hashes)}"
    return f"simulated, not measured: {len(rows)} points; ridgeline {__version__}, {what}"


def _whole(rows: Sequence[Row], *columns: str) -> list[Row]:
    """Return the rows that have a value in each column, or raise RidgelineError."""
    kept = [row for row in rows if all(row.get(name) not in {None, ""} for name in columns)]
    if not kept:
        raise RidgelineError(f"no row has a value in {' and '.join(columns)}")
    return kept


def _number(row: Row, column: str) -> float:
    value = row[column]
    if not isinstance(value, str):
        return float(value) * unit_of(column)[1]
    text, _, unit = value.partition(" ")
    return float(text) if unit else quantity(text)


def _name(column: str) -> str:
    """Return what a column is, without the letters that stand for its unit."""
    if column.endswith("_per_s"):
        return "throughput"
    parts = column.removeprefix("plan.").split(".")[-2:]
    return words(" ".join(_without_unit(part) for part in parts))


def _without_unit(part: str) -> str:
    return part.removesuffix(next((end for end, _, _ in _UNITS if part.endswith(end)), ""))


def _si_unit(text: str) -> str:
    return text.partition(" ")[2]
