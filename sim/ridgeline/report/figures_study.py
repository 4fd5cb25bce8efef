"""Figures of many results: the rows of a sweep, and the residuals of a validation.

Rows are flat mappings with the columns of ``Result.to_row``. Every function takes axes or makes
some, and returns them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ridgeline.errors import RidgelineError
from ridgeline.report.column_axes import (
    axis_label,
    column_name,
    number,
    tick_quantities,
    valued,
)
from ridgeline.report.manifest import digest
from ridgeline.report.style import (
    COLOURS,
    FAINT,
    INK,
    SERIES,
    SMALL,
    head,
    sheet,
    words,
)
from ridgeline.version import __version__

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

Row = Mapping[str, Any]
_SPACE = (3.4, 0.85, 0.75, 1.0)
_MAX_BARS = 24
# Of stacked bars: the usual unit and others, by size in SI; the first that can be read is taken.
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


def curve(
    rows: Sequence[Row],
    x: str,
    y: str,
    by: str | Sequence[str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw one column over another, a line for each value of a third (batch size against time).

    Of two columns in `by` the first is told by colours and the second by dashes; the values of more
    are joined. The vertical axis begins at zero.
    """
    rows = whole(rows, x, y)
    from matplotlib.ticker import MaxNLocator

    told = [by] if isinstance(by, str) else list(by or ())

    def draw(axes: Axes) -> str:
        colours, dashes, lines = _told_apart(rows, told)
        for names, members in lines.items():
            points = sorted((number(row, x, rows), number(row, y, rows)) for row in members)
            axes.plot(
                *zip(*points, strict=True), marker="o", markersize=3.5, linewidth=1.2,
                color=colours[names[0]], linestyle=dashes[names[-1]], label=", ".join(names),
            )  # fmt: skip
        spread = [number(row, x, rows) for row in rows]
        if min(spread) > 0 and max(spread) >= 20 * min(spread):
            tens = all(math.log10(value).is_integer() for value in spread)
            axes.set_xscale("log", base=10 if tens else 2)
        elif all(value.is_integer() for value in spread):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        tick_quantities(axes.xaxis, x, rows)
        axes.set_ylim(bottom=0)
        axes.set_xlabel(axis_label(x, rows))
        axes.set_ylabel(axis_label(y, rows))
        handles = _keys(colours, dashes) if told else []
        head(axes, f"{column_name(y).capitalize()} over {column_name(x)}", handles, columns=4)
        each = f"A line for each {_listed(told)}. " if told else ""
        return f"{each}{len(rows)} points; the vertical axis begins at 0."

    return sheet(_SPACE, draw, stamp(rows), ax)


_Names = tuple[str, ...]
_Dash = Literal["-", "--", ":", "-."]
_DASHES: tuple[_Dash, ...] = ("-", "--", ":", "-.")


def _told_apart(
    rows: Sequence[Row], told: Sequence[str]
) -> tuple[dict[str, str], dict[str, _Dash], dict[_Names, list[Row]]]:
    """Return colours and dashes by name, and the rows of every line by its names."""
    lines: dict[_Names, list[Row]] = {}
    for row in rows:
        names = tuple(valued(column, row[column]) for column in told) or ("",)
        if len(names) > 2:
            names = (", ".join(names),)
        lines.setdefault(names, []).append(row)
    firsts = list(dict.fromkeys(names[0] for names in lines))
    lasts = list(dict.fromkeys(names[-1] for names in lines))
    n = len(SERIES)
    colours = {name: SERIES[i % n] for i, name in enumerate(firsts)}
    if len(told) == 2 and len(lasts) <= len(_DASHES):
        return colours, dict(zip(lasts, _DASHES, strict=False)), lines
    joined: dict[_Names, list[Row]] = {(", ".join(names),): of for names, of in lines.items()}
    each = [name for (name,) in joined]
    return (
        {name: SERIES[i % n] for i, name in enumerate(each)},
        {name: _DASHES[i // n % len(_DASHES)] for i, name in enumerate(each)},
        joined,
    )


def _keys(colours: Mapping[str, str], dashes: Mapping[str, _Dash]) -> list[Artist]:
    """Return the entries of a legend: of lines, or of colours and then of dashes."""
    from matplotlib.lines import Line2D

    if colours.keys() == dashes.keys():
        return [
            Line2D([], [], color=colours[name], linestyle=dashes[name], marker="o", markersize=3.5,
                   label=name)
            for name in colours
        ]  # fmt: skip
    return [
        *(
            Line2D([], [], color=colour, linewidth=3, label=name)
            for name, colour in colours.items()
        ),
        *(Line2D([], [], color=INK, linestyle=dash, label=name) for name, dash in dashes.items()),
    ]


def pareto_front(
    rows: Sequence[Row], front: Sequence[Row], x: str, y: str, ax: Axes | None = None
) -> Axes:
    """Draw all rows over two columns, and those that no other row beats joined by a line."""
    rows = whole(rows, x, y)

    def draw(axes: Axes) -> str:
        both = [(number(row, x, rows), number(row, y, rows)) for row in rows]
        axes.plot(
            *zip(*both, strict=True), linestyle="", marker="o", markersize=3, color=FAINT,
            alpha=0.5, gid="rows", label="beaten by another row",
        )  # fmt: skip
        best = sorted((number(row, x, rows), number(row, y, rows)) for row in front)
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


def bars(rows: Sequence[Row], kind: str, by: Sequence[str] = (), ax: Axes | None = None) -> Axes:
    """Draw the parts of time, energy or memory of every row, one bar on the other.

    Parameters
    ----------
    kind
        "time", "energy" or "memory".
    by
        The columns that name the bars.
    """
    group, title = _PARTS[kind]
    rows = whole(rows, f"{group}.total")
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
        names = [", ".join(valued(column, row[column]) for column in by) for row in rows]
        axes.set_yticks(range(len(rows)), names, fontsize=SMALL)
        axes.invert_yaxis()
        axes.set_xlim(left=0)
        axes.set_xlabel(f"{group.partition('_')[0]} ({unit})")
        head(axes, title, shown, columns=2)
        of = f" A bar for each {_listed(by)}." if by else ""
        return f"Parts add up to the total; the axis begins at 0.{of}"

    return sheet((2.6 + 0.2 * len(rows), 2.0, 1.0, 1.15), draw, stamp(rows), ax)


def _unit_for(group: str, largest: float) -> tuple[str, float]:
    """Return the unit of a group of columns in which its largest value is a readable number."""
    least, most = _READABLE
    sizes = _SIZES[group]
    fitting = (unit for unit, size in sizes.items() if least <= largest / size < most)
    unit = next(fitting, next(iter(sizes)))
    return unit, sizes[unit]


def _listed(columns: Sequence[str]) -> str:
    """Return names in one phrase: cluster, data and pipeline."""
    *first, last = map(column_name, columns)
    return f"{', '.join(first)} and {last}" if first else last


def residuals(rows: Sequence[Row], ax: Axes | None = None) -> Axes:
    """Draw predictions over measurements, with the line where they are equal and 25 % around it.

    Every row has ``predicted`` and ``measured``, in one unit for all rows.
    """
    rows = whole(rows, "measured", "predicted")

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


def stamp(rows: Sequence[Row]) -> str:
    """Say that rows were simulated, how many, and from which content."""
    hashes = [row.get("manifest_hash") or digest(dict(row)) for row in rows]
    what = f"manifest {hashes[0]}" if len(hashes) == 1 else f"manifests {digest(hashes)}"
    return f"simulated, not measured: {len(rows)} points; ridgeline {__version__}, {what}"


def whole(rows: Sequence[Row], *columns: str) -> list[Row]:
    """Return the rows that have a value in each column, or raise RidgelineError."""
    kept = [row for row in rows if all(row.get(name) not in {None, ""} for name in columns)]
    if not kept:
        raise RidgelineError(f"no row has a value in {' and '.join(columns)}")
    return kept
