"""Figures of the rows of a table, by name and columns."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ridgeline.errors import ConfigError, nearest
from ridgeline.report.figures.rows import ROW_FIGURES
from ridgeline.study.columns import resolve
from ridgeline.study.ranking import candidates, pareto

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = dict[str, Any]


def draw_rows(
    kind: str, found: Sequence[Row], file: str, axes: Mapping[str, str | None], by: str | None,
    others: Sequence[str] = (),
) -> Axes:  # fmt: skip
    """Draw a figure of rows: time, energy or memory (bars), curve, pareto, choice or residuals.

    Parameters
    ----------
    found
        Rows of a sweep or a validation, with the names of ``Result.to_row``.
    file
        Name for messages.
    axes
        Columns ``x`` and ``y``, where the figure has them.
    by
        Columns that tell lines or bars apart, with commas between.
    others
        Names of other figures, for messages.

    Raises
    ------
    ConfigError
        If there is no such figure, a column is missing, or no row can be drawn.
    """
    if kind not in ROW_FIGURES:
        known = sorted({*ROW_FIGURES, *others})
        raise ConfigError(
            f"there is no figure {kind!r}{nearest(kind, known)} (there are: {', '.join(known)})"
        )
    rows = candidates(found)
    if not rows:
        raise ConfigError("there is no row to draw: all have errors or do not fit", file=file)
    if len(rows) < len(found):
        left = f"{len(found) - len(rows)} of {len(found)} rows have errors or do not fit"
        print(f"ridgeline: {left}, and are left out", file=sys.stderr)
    several = [resolve(name.strip(), rows[0]) for name in by.split(",")] if by else []
    names = {key: resolve(name, rows[0]) for key, name in axes.items() if name is not None}
    if kind in {"curve", "pareto", "choice"} and not {"x", "y"} <= names.keys():
        raise ConfigError(f"a {kind} needs --x and --y", field="plot")
    if kind == "choice" and not several:
        raise ConfigError("a choice needs --by, what is chosen between", field="plot")
    draw = ROW_FIGURES[kind]
    drawn: Axes
    if kind in {"curve", "choice"}:
        drawn = draw(rows, names["x"], names["y"], several)
    elif kind == "pareto":
        front = pareto(rows, [names["x"], names["y"]])
        drawn = draw(rows, front, names["x"], names["y"])
    elif kind == "residuals":
        if not {"measured", "predicted"} <= rows[0].keys():
            raise ConfigError("the rows have no columns measured and predicted", file=file)
        drawn = draw(rows)
    else:
        drawn = draw(rows, kind, several)
    return drawn
