"""Names of lines, written where no marker is beneath them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from matplotlib.patheffects import withStroke

from ridgeline.report.figures.style import INK, PAPER, SMALL, text_pt

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = npt.NDArray[np.float64]
Marks = Sequence[tuple[float, float]]
HALO = [withStroke(linewidth=2, foreground=PAPER)]  # keeps names legible among the points
_INDENT_PT = 10.0
_STEP_PT = 6.0  # in which a place is looked for
_AROUND_PT = 5.0  # of a marker: its half, and a gap
_ABOVE_PT = 3 + 0.8 * SMALL  # the top of capital letters, from their line


def in_points(ax: Axes, marks: Marks) -> Floats:
    """Return [n, 2] where marks stand in a figure, in points."""
    places: Floats = ax.transData.transform(np.array(marks, float).reshape(-1, 2))
    return places * 72 / ax.figure.dpi


def level_name(
    ax: Axes, text: str, at: tuple[float, float], colour: str = INK,
    *, marks: Marks = (), below: bool = False,
) -> None:  # fmt: skip
    """Write what a level line is, above or below it, so that it ends at a place or left of it."""
    side = -1.0 if below else 1.0
    start, end = in_points(ax, [(ax.get_xlim()[0], at[1]), at])
    away = (in_points(ax, marks) - end) * (-1.0, side)
    shift = _shift(away, text_pt(text, SMALL) + 3, end[0] - start[0])
    ax.annotate(
        text, at, xytext=(-3 - shift, 3 * side), ha="right", va="top" if below else "baseline",
        textcoords="offset points", fontsize=SMALL, color=colour, path_effects=HALO, zorder=4,
    )  # fmt: skip


def slope_name(
    ax: Axes, bandwidth: float, text: str, colour: str, *, marks: Marks = (), until: float = np.inf
) -> None:
    """Write on the slope of a bandwidth, from the lower left end of it that the frame shows."""
    (left, _), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    x, end = max(left, bottom / bandwidth), min(top, until) / bandwidth
    first, last = in_points(ax, [(x, x * bandwidth), (end, end * bandwidth)])
    length = float(np.hypot(*(last - first)))
    along = (last - first) / length
    start = first + _INDENT_PT * along
    away = (in_points(ax, marks) - start) @ np.array([along, (-along[1], along[0])]).T
    shift = _shift(away, text_pt(text, SMALL), length - _INDENT_PT)
    ax.annotate(
        text, (x, x * bandwidth), xytext=tuple((_INDENT_PT + shift) * along + (0, 2)),
        textcoords="offset points", rotation=math.degrees(math.atan2(along[1], along[0])),
        rotation_mode="anchor", fontsize=SMALL, color=colour, path_effects=HALO, zorder=4,
    )  # fmt: skip


def _shift(away: Floats, width: float, room: float) -> float:
    """Return by how much text goes along its line to stand on no marker; 0 if there is no place.

    Parameters
    ----------
    away
        [n, 2] markers from where the text begins: along the line, and above it.
    """
    near = (away[:, 1] > -_AROUND_PT) & (away[:, 1] < _ABOVE_PT + _AROUND_PT)
    along = away[near, 0]
    for shift in np.arange(0.0, max(room - width, _STEP_PT), _STEP_PT).tolist():
        if not np.any((along > shift - _AROUND_PT) & (along < shift + width + _AROUND_PT)):
            return float(shift)
    return 0.0
