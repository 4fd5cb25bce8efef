"""Figure of a search: how soon each method finds what is good."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ridgeline.errors import RidgelineError
from ridgeline.report.figures.study import stamp
from ridgeline.report.figures.style import FAINT, SERIES, head, sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SPACE = (3.4, 0.85, 0.75, 1.0)
_COLUMNS = ("method", "seed", "evaluation", "hypervolume")
_RANDOM = "random"


def hypervolume_curves(rows: Sequence[Mapping[str, Any]], ax: Axes | None = None) -> Axes:
    """Draw hypervolume over evaluations: a line a method, through the median of its seeds.

    Bands reach from the least to the most of the seeds. Random search is grey.

    Raises
    ------
    RidgelineError
        If the rows are not those of a search.
    """
    if not rows or any(name not in rows[0] for name in _COLUMNS):
        raise RidgelineError("hypervolume is drawn of the rows of ridgeline search")
    curves: dict[str, dict[Any, list[float]]] = {}
    for row in rows:
        curves.setdefault(row["method"], {}).setdefault(row["seed"], []).append(row["hypervolume"])

    def draw(axes: Axes) -> str:
        colours = iter(SERIES * len(curves))
        for method, seeds in curves.items():
            colour = FAINT if method == _RANDOM else next(colours)
            length = min(map(len, seeds.values()))
            values = np.array([curve[:length] for curve in seeds.values()])
            at = np.arange(1, length + 1)
            axes.plot(
                at, np.median(values, axis=0), color=colour, linewidth=1.4, label=method,
                drawstyle="steps-post", gid=f"median-{method}",
            )  # fmt: skip
            if len(values) > 1:
                axes.fill_between(
                    at, values.min(axis=0), values.max(axis=0), step="post", color=colour,
                    alpha=0.2, linewidth=0, gid=f"band-{method}",
                )  # fmt: skip
        axes.set_xlim(left=1)
        axes.set_ylim(0, 1)
        axes.set_xlabel("evaluations")
        axes.set_ylabel("hypervolume (share of the box)")
        head(axes, "What each search has found", list(axes.get_lines()))
        seeds_of = max(map(len, curves.values()))
        several = (
            f"Medians of {seeds_of} seeds; bands: least to most. " if seeds_of > 1 else "One seed. "
        )
        return f"{several}Both axes are linear; the vertical one begins at 0."

    return sheet(_SPACE, draw, stamp(rows), ax)
