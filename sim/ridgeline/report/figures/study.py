"""Figures of many results: the rows of a sweep, and the residuals of a validation.

Rows are flat mappings with the columns of ``Result.to_row``. Every function takes axes or makes
some, and returns them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ridgeline.errors import RidgelineError
from ridgeline.report.figures.column_axes import (
    ColumnScale,
    column_name,
    plain_number,
    readable_unit,
    said,
    si_label,
    tick_quantities,
    valued,
)
from ridgeline.report.figures.style import (
    CAPTION,
    COLOURS,
    FAINT,
    INK,
    SERIES,
    SMALL,
    head,
    sheet,
    text_pt,
    words,
    wrapped,
)
from ridgeline.report.figures.themes import chosen
from ridgeline.report.manifest import digest
from ridgeline.version import __version__

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

Row = Mapping[str, Any]
_SPACE = (3.4, 0.85, 0.75, 1.0)
_MAX_BARS = 24
_LETTERS = 60  # that fit side by side below an axis
_DECADES = 1000.0
"""Lines that are so far apart are drawn on a logarithmic axis."""
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
    *,
    title: str = "",
) -> Axes:
    """Draw one column over another, a line for each value of a third (batch size against time).

    Rows that state the range of their value (`band_columns`) have a band from 5 to 95 %.

    Of two columns in `by` the first is told by colours and the second by dashes; the values of more
    are joined. Where a line has several points at one place, in rows that differ in something else,
    it joins their medians. The vertical axis begins at zero; for values over several decades it is
    logarithmic, with a small frame that shows the same on a linear one.
    """
    rows = whole(rows, x, y)
    from matplotlib.ticker import LogLocator, MaxNLocator

    told = [by] if isinstance(by, str) else list(by or ())

    def draw(axes: Axes) -> str:
        colours, dashes, lines = _told_apart(rows, told)
        across, up = ColumnScale.of(x, rows), ColumnScale.of(y, rows)
        repeated = banded = False
        band = band_columns(rows, y)
        for names, members in lines.items():
            points = sorted((across.number(row), up.number(row)) for row in members)
            middles = [
                (place, median(height for _, height in there))
                for place, there in groupby(points, key=itemgetter(0))
            ]
            axes.plot(
                *zip(*middles, strict=True), marker="o", markersize=3.5, linewidth=1.2,
                color=colours[names[0]], linestyle=dashes[names[-1]], label=", ".join(names),
            )  # fmt: skip
            if band is not None and len(middles) == len(members):
                ordered = sorted(members, key=across.number)
                low, high = ([float(row[name]) / up.size for row in ordered] for name in band)
                axes.fill_between(
                    [across.number(row) for row in ordered], low, high, color=colours[names[0]],
                    alpha=0.2, linewidth=0, gid="band",
                )  # fmt: skip
                banded = True
            if len(middles) < len(points):
                repeated = True
                along, high = np.transpose(points)
                axes.scatter(along, high, s=4, color=colours[names[0]], alpha=0.5)
        spread = sorted({across.number(row) for row in rows})
        if spread[0] > 0 and spread[-1] >= 20 * spread[0]:
            tens = all(math.log10(value).is_integer() for value in spread)
            axes.set_xscale("log", base=10 if tens else 2)
            labels = [said(row[x], x) for row in rows if isinstance(row[x], str)]
            most = _ticks_that_fit(labels or [plain_number(spread[-1])])
            axes.xaxis.set_major_locator(LogLocator(10 if tens else 2, numticks=most))
        elif len(spread) == 1:
            axes.set_xticks(spread)
        elif all(value.is_integer() for value in spread):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        tick_quantities(axes.xaxis, x, rows)
        heights = [up.number(row) for row in rows]
        if min(heights) > 0 and max(heights) >= _DECADES * min(heights):
            begins = _logarithmic(axes)
        else:
            begins = _from_zero(axes, heights)
        axes.set_xlabel(across.label)
        axes.set_ylabel(up.label)
        handles = _keys(colours, dashes) if told else []
        head(axes, f"{column_name(y).capitalize()} over {column_name(x)}", handles, columns=4,
             subject=title)  # fmt: skip
        each = f"A line for each {_listed(told)}. " if told else ""
        joined = "; lines join medians" if repeated else ""
        joined += "; bands: 90 % of what is expected" if banded else ""
        return f"{each}{counted(rows, 'point')}{joined}; {begins}."

    return sheet(_SPACE, draw, stamp(rows), ax)


def band_columns(rows: Sequence[Row], y: str) -> tuple[str, str] | None:
    """Return the columns with the 5 and the 95 % of a column, if every row has both.

    ``Y.p05`` and ``Y.p95``, or those of a result's ``uncertainty``.
    """
    for start in (y, f"uncertainty.{y}", f"uncertainty.{y.removesuffix('.total')}"):
        names = f"{start}.p05", f"{start}.p95"
        if all(isinstance(row.get(name), int | float) for row in rows for name in names):
            return names
    return None


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
    rows: Sequence[Row],
    front: Sequence[Row],
    x: str,
    y: str,
    ax: Axes | None = None,
    *,
    label: Sequence[str] = (),
    title: str = "",
) -> Axes:
    """Draw all rows over two columns, and those that no other row beats joined by steps.

    Between two points of a front nothing is known to be better than the worse value of each, so
    that the line goes in steps. An axis whose values cross decades is logarithmic.

    Parameters
    ----------
    label
        Columns that name the points of the front, where there is room.
    title
        Network, machine and stack.
    """
    rows = whole(rows, x, y)

    def draw(axes: Axes) -> str:
        across, up = ColumnScale.of(x, rows), ColumnScale.of(y, rows)
        both = [(across.number(row), up.number(row)) for row in rows]
        axes.plot(
            *zip(*both, strict=True), linestyle="", marker="o", markersize=3, color=FAINT,
            alpha=0.5, gid="rows", label="beaten by another row",
        )  # fmt: skip
        best = sorted(((across.number(row), up.number(row)), i) for i, row in enumerate(front))
        axes.plot(
            *zip(*(place for place, _ in best), strict=True), marker="o", markersize=4.5,
            linewidth=1.2, color=SERIES[0], drawstyle="steps-post", gid="front", label="front",
        )  # fmt: skip
        said_axes = _front_axes(axes, *zip(*both, strict=True))
        axes.set_xlabel(across.label)
        axes.set_ylabel(up.label)
        head(axes, "Pareto front", list(axes.get_lines())[1::-1], subject=title)
        named = ""
        if label:
            texts = [", ".join(said(front[i].get(name), name) for name in label) for _, i in best]
            _name_points(axes, [place for place, _ in best], texts)
            named = f" Named by {_listed(label)}."
        return f"{len(front)} of {counted(rows, 'point')} on the front; {said_axes}.{named}"

    return sheet(_SPACE, draw, stamp(rows), ax)


_CROSSED = 30.0
"""Values that are so far apart cross a decade or two: their axis is logarithmic."""


def _front_axes(axes: Axes, lefts: Sequence[float], ups: Sequence[float]) -> str:
    """Make axes logarithmic where values cross decades, else begin them at zero; say which."""
    logs = [min(v) > 0 and max(v) >= _CROSSED * min(v) for v in (lefts, ups)]
    begins = ""
    if not logs[1]:
        begins = _from_zero(axes, ups)
    if not logs[0]:
        _plain_below(axes, max(lefts))
        if min(lefts) >= 0:
            axes.set_xlim(left=0)
            begins = (
                begins.replace("the vertical axis begins", "both axes begin")
                or "the horizontal axis begins at 0"
            )
    for name, log, axis, scale in (
        ("horizontal", logs[0], axes.xaxis, axes.set_xscale),
        ("vertical", logs[1], axes.yaxis, axes.set_yscale),
    ):
        if log:
            scale("log")
            axis.set_major_formatter(lambda value, _: plain_number(value))
            begins = f"{begins}; the {name} axis is logarithmic".removeprefix("; ")
    return begins.replace(
        "the horizontal axis is logarithmic; the vertical axis is logarithmic",
        "both axes are logarithmic",
    )


def _name_points(axes: Axes, places: Sequence[tuple[float, float]], texts: Sequence[str]) -> None:
    """Write names to the upper right of points, those that overlap none written before."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    taken: list[tuple[float, float, float, float]] = []
    point = figure.dpi / 72
    high = CAPTION * point * 1.2
    for place, text in zip(places, texts, strict=True):
        x, y = axes.transData.transform(place)
        wide = text_pt(text, CAPTION) * point
        left = min(x + 4 * point, axes.bbox.x1 + 0.15 * figure.dpi - wide)
        box = (left, y + 3 * point, left + wide, y + 3 * point + high)
        if any(_overlap(box, other) for other in taken) or box[3] > axes.bbox.y1:
            continue
        taken.append(box)
        axes.annotate(
            text, place, xytext=((left - x) / point, 3), textcoords="offset points",
            fontsize=CAPTION, color=INK, gid="name",
        )  # fmt: skip


def _overlap(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


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
    room_pt = 72 * (chosen().width_in / 2 - 0.15)  # names at the left get at most half of a figure
    names = [", ".join(valued(column, row[column]) for column in by) for row in rows]
    broken = [wrapped(name, SMALL, room_pt) for name in names]
    each_in = max(0.2, 0.13 * max(map(len, broken)) + 0.07)

    def draw(axes: Axes) -> str:
        unit, size = readable_unit(group, [float(row[f"{group}.total"]) for row in rows])
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
        axes.set_yticks(range(len(rows)), ["\n".join(lines) for lines in broken], fontsize=SMALL)
        axes.invert_yaxis()
        axes.set_xlim(left=0)
        _plain_below(axes, max(below))
        axes.set_xlabel(f"{group.partition('_')[0]} ({unit})")
        head(axes, title, shown, columns=2)
        of = f" A bar for each {_listed(by)}." if by else ""
        return f"Parts add up to the total; the axis begins at 0.{of}"

    return sheet((2.6 + each_in * len(rows), 2.0, 1.0, 1.15), draw, stamp(rows), ax)


def _ticks_that_fit(labels: Sequence[str]) -> int:
    """Return how many numbers as long as these stand side by side below an axis."""
    return max(2, min(9, _LETTERS // (max(map(len, labels)) + 2)))


def _plain_below(axes: Axes, most: float) -> None:
    """Write the numbers below an axis in full, as many as stand side by side."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_formatter(lambda value, _: plain_number(value))
    axes.xaxis.set_major_locator(MaxNLocator(_ticks_that_fit([plain_number(most)])))


def _from_zero(axes: Axes, values: Sequence[float]) -> str:
    """Let a vertical axis begin at zero, or show a line there if values are below it; say which."""
    axes.yaxis.set_major_formatter(lambda value, _: plain_number(value))
    if min(values) >= 0:
        axes.set_ylim(bottom=0, top=None if max(values) > 0 else 1)
        return "the vertical axis begins at 0"
    axes.axhline(0, color=INK, linewidth=0.8, gid="zero")
    return "the horizontal line is at 0"


def _logarithmic(axes: Axes) -> str:
    """Make a vertical axis logarithmic, and draw its lines once more in a linear frame; say so."""
    from matplotlib.ticker import MaxNLocator

    drawn = axes.get_lines()
    heights = [np.asarray(line.get_ydata(), np.float64) for line in drawn]
    rises = math.fsum(math.log(y[-1] / y[0]) for y in heights) >= 0
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * (high / low) ** 0.3)  # the small frame is above the lines
    inner = axes.inset_axes((0.1 if rises else 0.62, 0.64, 0.36, 0.32), zorder=6)
    inner.set_gid("linear")
    inner.set_xscale(axes.get_xscale())
    for line in drawn:
        inner.plot(
            line.get_xdata(), line.get_ydata(), color=line.get_color(),
            linestyle=line.get_linestyle(), linewidth=0.9,
        )  # fmt: skip
    inner.set_ylim(bottom=0)
    inner.set_xticks([])
    inner.minorticks_off()
    inner.spines[["top", "right"]].set_visible(False)
    inner.spines[["left", "bottom"]].set_color(FAINT)
    inner.tick_params(labelsize=SMALL - 1.5, color=FAINT, labelcolor=INK, length=2, pad=1.5)
    inner.yaxis.set_major_locator(MaxNLocator(3))
    inner.yaxis.set_major_formatter(lambda value, _: plain_number(value))
    inner.set_title("linear", fontsize=SMALL - 1, loc="left", pad=2, fontweight="normal", color=INK)
    return "the vertical axis is logarithmic; small frame: the same, linear from 0"


def counted(rows: Sequence[Row], what: str) -> str:
    """Say how many rows there are: 1 point, 2 points."""
    return f"{len(rows)} {what}" + ("" if len(rows) == 1 else "s")


def _listed(columns: Sequence[str]) -> str:
    """Return names in one phrase: cluster, data and pipeline."""
    *first, last = map(column_name, columns)
    return f"{', '.join(first)} and {last}" if first else last


def residuals(rows: Sequence[Row], ax: Axes | None = None) -> Axes:
    """Draw predictions over measurements, with the line where they are equal and 25 % around it.

    Every row has ``predicted`` and ``measured``, in one SI unit for all rows.

    Raises
    ------
    RidgelineError
        If no row has two values above zero, which logarithmic axes need.
    """
    given = whole(rows, "measured", "predicted")
    rows = [row for row in given if float(row["measured"]) > 0 and float(row["predicted"]) > 0]
    if not rows:
        raise RidgelineError("no row has a measured and a predicted value above 0")

    def draw(axes: Axes) -> str:
        measured = np.array([float(row["measured"]) for row in rows])
        predicted = np.array([float(row["predicted"]) for row in rows])
        both = np.concatenate((measured, predicted))
        ends = np.array([both.min() / _MARGIN, both.max() * _MARGIN])
        axes.fill_between(ends, 0.75 * ends, 1.25 * ends, color=FAINT, alpha=0.2, linewidth=0)
        axes.plot(ends, ends, color=INK, linewidth=0.8, gid="equal")
        axes.plot(
            measured, predicted, linestyle="", marker="o", markersize=3, color=SERIES[0],
            alpha=0.6, gid="rows",
        )  # fmt: skip
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlim(*ends)
        axes.set_ylim(*ends)
        what = _quantities(rows)
        axes.set_xlabel(f"measured {what}")
        axes.set_ylabel(f"predicted {what}")
        head(axes, "Predicted against measured")
        error = np.abs(predicted / measured - 1)
        left = len(given) - len(rows)
        return (
            f"{counted(rows, 'measurement')}, median error {np.median(error):.1%}; the line is "
            "equality, the band 25 % around it; both axes are logarithmic."
            + (f" Not drawn: {left} with a value that is not above 0." if left else "")
        )

    return sheet(_SPACE, draw, stamp(rows), ax)


_MARGIN = 1.2  # between the outermost values and the frame


def _quantities(rows: Sequence[Row]) -> str:
    """Name what rows are of, with the SI unit: at most two of them, or that there are several."""
    names = list(dict.fromkeys(str(row.get("quantity", "")) for row in rows))
    if len(names) > 2:
        return f"values of {len(names)} quantities (SI units)"
    return " and ".join(si_label(name) for name in names)


def stamp(rows: Sequence[Row]) -> str:
    """Say that rows were simulated, how many, and from which content."""
    hashes = [row.get("manifest_hash") or digest(dict(row)) for row in rows]
    what = f"manifest {hashes[0]}" if len(hashes) == 1 else f"manifests {digest(hashes)}"
    return f"simulated, not measured: {counted(rows, 'point')}; ridgeline {__version__}, {what}"


def whole(rows: Sequence[Row], *columns: str) -> list[Row]:
    """Return the rows that have a value in each column, or raise RidgelineError."""
    kept = [row for row in rows if all(row.get(name) not in {None, ""} for name in columns)]
    if not kept:
        raise RidgelineError(f"no row has a value in {' and '.join(columns)}")
    return kept
