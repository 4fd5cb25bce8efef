"""Figures of studies with several fields: heat maps, parallel coordinates, Sobol indices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from ridgeline.errors import RidgelineError
from ridgeline.report.figures.column_axes import (
    ColumnScale,
    column_name,
    plain_number,
    said,
)
from ridgeline.report.figures.study import counted, stamp, whole
from ridgeline.report.figures.style import (
    CAPTION,
    COLOURS,
    FAINT,
    GRID,
    INK,
    SMALL,
    head,
    sheet,
)
from ridgeline.report.sobol import SobolIndices, of_grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]
_MOST_CELLS = 40
_WRITTEN_CELLS = 12
_MOST_AXES = 8
_DECADES = 100.0
"""Values that are so far apart are drawn on a logarithmic axis, and that is said."""
_MOST_BARS = 16


def heat_map(
    rows: Sequence[Row], x: str, y: str, z: str, ax: Axes | None = None, *, title: str = ""
) -> Axes:
    """Draw a column as colours over the values of two fields.

    A cell of several rows, which differ in something else, has their median.

    Raises
    ------
    RidgelineError
        If a field has more than forty values.
    """
    rows = whole(rows, x, y, z)
    across, up = ([said(row[name], name) for row in rows] for name in (x, y))
    columns, lines = (_in_order(rows, name) for name in (x, y))
    for name, found in ((x, columns), (y, lines)):
        if len(found) > _MOST_CELLS:
            raise RidgelineError(
                f"{len(found)} values of {name} are too many cells to read; at most {_MOST_CELLS}"
            )
    scale = ColumnScale.of(z, rows)
    members: dict[tuple[int, int], list[float]] = {}
    for row, a, b in zip(rows, across, up, strict=True):
        members.setdefault((lines.index(b), columns.index(a)), []).append(scale.number(row))
    cells = np.full((len(lines), len(columns)), np.nan)
    for place, values in members.items():
        cells[place] = median(values)
    known = cells[np.isfinite(cells)]
    log = bool(known.min() > 0 and known.max() >= _DECADES * known.min())

    def draw(axes: Axes) -> str:
        from matplotlib.colors import LogNorm, Normalize

        norm = (LogNorm if log else Normalize)(known.min(), max(known.max(), known.min() * 1.0001))
        drawn = axes.pcolormesh(cells, norm=norm, cmap="viridis", edgecolors="none", gid="cells")
        if max(cells.shape) <= _WRITTEN_CELLS:
            for (i, j), value in np.ndenumerate(cells):
                if math.isfinite(value):
                    light = float(np.dot(drawn.cmap(norm(value))[:3], (0.3, 0.59, 0.11))) > 0.5
                    axes.text(
                        j + 0.5, i + 0.5, f"{value:.3g}", ha="center", va="center",
                        fontsize=CAPTION, color="#000000" if light else "#ffffff",
                    )  # fmt: skip
        axes.set_xticks(np.arange(len(columns)) + 0.5, columns, fontsize=SMALL)
        axes.set_yticks(np.arange(len(lines)) + 0.5, lines, fontsize=SMALL)
        if max(map(len, columns)) * len(columns) > 60:
            axes.tick_params(axis="x", rotation=45)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_xlabel(column_name(x))
        axes.set_ylabel(column_name(y))
        figure = axes.get_figure(root=True)
        assert figure is not None
        inner = axes.inset_axes((1.02, 0.0, 0.035, 1.0))
        bar = figure.colorbar(drawn, cax=inner)
        bar.outline.set_visible(False)
        inner.tick_params(labelsize=CAPTION)
        if not log:
            inner.yaxis.set_major_formatter(lambda value, _: plain_number(value))
        head(axes, f"{scale.label} by {column_name(x)} and {column_name(y)}", subject=title)
        several = max(map(len, members.values())) > 1
        joined = "; a cell has the median of its rows" if several else ""
        colours = "; colours are logarithmic" if log else ""
        return f"{counted(rows, 'point')}{joined}{colours}. White: no row."

    height = 1.9 + 0.28 * max(4, len(lines))
    axes = sheet((height, 0.95, 0.6, 1.05), lambda a: _with_room(a, draw), stamp(rows), ax)
    return axes


def _with_room(axes: Axes, draw: Any) -> str:
    """Leave room at the right for the bar of colours."""
    box = axes.get_position()
    axes.set_position((box.x0, box.y0, box.width * 0.88, box.height))
    said_below: str = draw(axes)
    return said_below


def _in_order(rows: Sequence[Row], column: str) -> list[str]:
    """Return the values of a column as they are written, numbers and quantities by size."""
    values = {said(row[column], column): row for row in rows}
    try:
        scale = ColumnScale.of(column, rows)
        return sorted(values, key=lambda text: scale.number(values[text]))
    except RidgelineError:
        return list(values)


def parallel(
    rows: Sequence[Row], columns: Sequence[str], y: str, ax: Axes | None = None, *, title: str = ""
) -> Axes:
    """Draw every row as a line over several columns, coloured by `y`.

    Raises
    ------
    RidgelineError
        If there are fewer than two columns, or more than eight.
    """
    shown = list(dict.fromkeys([*columns, y]))
    if not 2 <= len(shown) <= _MOST_AXES:
        raise RidgelineError(
            f"parallel coordinates need 2 to {_MOST_AXES} columns, found {len(shown)}"
        )
    rows = whole(rows, *shown)
    places = [_place(rows, name) for name in shown]
    key = places[shown.index(y)][0]

    def draw(axes: Axes) -> str:
        import matplotlib
        from matplotlib.collections import LineCollection

        lines = [
            [(j, place[0][i]) for j, place in enumerate(places)]
            for i in np.argsort(-key, kind="stable").tolist()
        ]
        shades = matplotlib.colormaps["viridis"](np.sort(key)[::-1])
        alpha = float(np.clip(12 / math.sqrt(len(rows)), 0.15, 0.9))
        axes.add_collection(
            LineCollection(lines, colors=shades, linewidths=0.9, alpha=alpha, gid="rows")
        )
        for j, (name, (_, ends, log)) in enumerate(zip(shown, places, strict=True)):
            axes.axvline(j, color=FAINT, linewidth=0.8)
            for share, text in zip((0, 1), ends, strict=True):
                axes.annotate(
                    text, (j, share), xytext=(0, 7 if share else -7), textcoords="offset points",
                    ha="center", va="bottom" if share else "top", fontsize=CAPTION, color=INK,
                    annotation_clip=False,
                )  # fmt: skip
            label = column_name(name) + (" (log)" if log else "")
            axes.annotate(
                label, (j, 1), xytext=(0, 19 + 10 * (j % 2)), textcoords="offset points",
                ha="center", va="bottom", fontsize=CAPTION, color=INK, weight="bold",
                annotation_clip=False,
            )  # fmt: skip
        axes.set_xlim(-0.35, len(shown) - 0.65)
        axes.set_ylim(-0.02, 1.02)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_visible(False)
        head(axes, "\n\n")
        axes.set_title(
            "\n".join(filter(None, (f"{counted(rows, 'point')} over {len(shown)} columns", title))),
            pad=46, gid="title",
        )  # fmt: skip
        logs = " Marked axes are logarithmic." if any(place[2] for place in places) else ""
        return f"A line for each row; dark: small {column_name(y)}.{logs}"

    return sheet((3.6, 0.35, 1.1, 0.85), draw, stamp(rows), ax)


def _place(rows: Sequence[Row], column: str) -> tuple[Any, tuple[str, str], bool]:
    """Return where rows cross an axis, from 0 to 1, the texts of its ends, and if it is log."""
    try:
        scale = ColumnScale.of(column, rows)
        values = np.array([scale.number(row) for row in rows])
    except RidgelineError:
        words = list(dict.fromkeys(said(row[column], column) for row in rows))
        places = np.array([words.index(said(row[column], column)) for row in rows], np.float64)
        return places / max(1, len(words) - 1), (words[0], words[-1]), False
    log = bool(values.min() > 0 and values.max() >= _DECADES * values.min())
    drawn = np.log10(values) if log else values
    ends = tuple(said(rows[int(i)][column], column) for i in (values.argmin(), values.argmax()))
    span = np.ptp(drawn) or 1.0
    return (drawn - drawn.min()) / span, (ends[0], ends[1]), log


def sobol_of_rows(
    rows: Sequence[Row], y: str, fields: Sequence[str], ax: Axes | None = None, *, title: str = ""
) -> Axes:
    """Draw the Sobol indices of a column over the fields of a whole grid."""
    rows = whole(rows, y, *fields)
    found = of_grid(rows, fields, y)
    caption = (
        f"All {found.values:,} combinations, each equally likely: the indices have no error. "
        "What is missing to a sum of 1 alone is interaction."
    )
    return sheet(
        (1.9 + 0.32 * min(len(found.inputs), _MOST_BARS), 1.9, 0.75, 1.05),
        lambda axes: draw_sobol(axes, found, f"Variance of {column_name(y)}", caption, title),
        stamp(rows),
        ax,
    )


def draw_sobol(axes: Axes, found: SobolIndices, title: str, caption: str, about: str = "") -> str:
    """Draw first-order and total indices as bars, with their standard errors; return a caption."""
    from matplotlib.patches import Patch

    n = min(len(found.inputs), _MOST_BARS)
    for i in range(n):
        for offset, index, error, colour in (
            (-0.2, found.first, found.first_error, COLOURS["compute"]),
            (0.2, found.total, found.total_error, COLOURS["dram"]),
        ):
            axes.barh(i + offset, max(0.0, float(index[i])), 0.38, color=colour, linewidth=0)
            if error[i] > 0:
                low = max(0.0, float(index[i] - error[i]))
                axes.plot(
                    [low, max(0.0, float(index[i] + error[i]))], [i + offset] * 2, color=INK,
                    linewidth=1.0, gid="error",
                )  # fmt: skip
    names = [column_name(name) if "." in name else name for name in found.inputs[:n]]
    axes.set_yticks(range(n), names, fontsize=SMALL)
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, max(1.0, 1.05 * float(np.max(found.total + found.total_error))))
    axes.grid(axis="x", color=GRID, linewidth=0.6)
    axes.set_xlabel("share of the variance (1)")
    handles = [
        Patch(color=COLOURS["compute"], label="alone (first order)"),
        Patch(color=COLOURS["dram"], label="with interactions (total)"),
    ]
    head(axes, title, handles, columns=2, subject=about)
    return caption
