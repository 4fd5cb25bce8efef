"""Figure of residuals: every prediction over its measurement, by suite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ridgeline.report.figures.style import DUST, FAINT, GRID, INK, SMALL, head, sheet
from ridgeline.version import __version__

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ridgeline.study.validate import Validation

_ROW_IN = 0.34
_LEAST, _MOST = 1 / 8, 8.0  # beyond, points stand at the edge
_SHARED = 0.25


def residuals(made: Sequence[Validation], ax: Axes | None = None) -> Axes:
    """Draw one line of points for each suite: predicted over measured, on a logarithmic scale.

    Suites whose errors are differences of shares are drawn as 1 + difference. Returns the axes.
    """
    space = (1.75 + _ROW_IN * len(made), 1.25, 0.45, 1.05)
    stamp = f"simulated beside published measurements; ridgeline {__version__}"
    return sheet(space, lambda axes: _draw(axes, made), stamp, ax)


def ratios(one: Validation) -> list[float]:
    """Return what is drawn of a suite: 1 + error of every row, within the edges."""
    return [min(max(1.0 + o.error, _LEAST), _MOST) for o in one.outcomes if np.isfinite(o.error)]


def _draw(ax: Axes, made: Sequence[Validation]) -> str:
    ax.axvspan(1 - _SHARED, 1 + _SHARED, color=GRID, linewidth=0)
    ax.axvline(1.0, color=FAINT, linewidth=0.8)
    for place, one in enumerate(made):
        found = np.sort(ratios(one))
        # Neighbours stand at different heights, the same in every drawing.
        height = place + 0.6 * ((np.arange(len(found)) * 0.618034) % 1.0 - 0.5)
        ax.plot(found, height, linestyle="", marker="o", markersize=2, color="#0072B2",
                alpha=0.35, markeredgewidth=0)  # fmt: skip
        median = one.summary.median_abs_error
        if median is not None and median > DUST:
            ax.annotate(f"{median:.1%}", (1.0, place), xycoords=("axes fraction", "data"),
                        ha="right", va="center", fontsize=SMALL, color=INK)  # fmt: skip
    ax.set_xscale("log", base=2)
    ax.set_xlim(_LEAST, _MOST)
    ticks = [0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0]
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.set_yticks(range(len(made)), [one.suite for one in made])
    ax.set_ylim(len(made) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel("predicted over measured")
    head(ax, "Predictions against measurements")
    return "Grey: within 25 %. At the right the median error, weighted by group."
