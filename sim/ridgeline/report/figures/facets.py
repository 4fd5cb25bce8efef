"""Small multiples: one panel for each value of a column, on shared axes, in place of a legend."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ridgeline.errors import RidgelineError
from ridgeline.report.figures.column_axes import valued
from ridgeline.report.figures.study import stamp, whole
from ridgeline.report.figures.style import FAINT, PAPER, SMALL, STAMP, TEXT, themed
from ridgeline.report.figures.themes import chosen

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]
_MOST_PANELS = 12
_PANEL_IN = 2.3
_STAMP_IN = 0.32
_KEYS = 4
"""Entries of the legend side by side."""
_MOST_TICKS = 3


def facets(
    rows: Sequence[Row], column: str, draw: Callable[[Sequence[Row], Axes], Axes], title: str = ""
) -> Axes:
    """Draw rows in panels by the value of a column; return the axes of the first one.

    Parameters
    ----------
    draw
        Draws rows into axes, as the figures of rows do.
    title
        Network, machine and stack.

    Raises
    ------
    RidgelineError
        If there are more than twelve values.
    """
    rows = whole(rows, column)
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(valued(column, row[column]), []).append(row)
    if len(groups) > _MOST_PANELS:
        raise RidgelineError(
            f"{len(groups)} values of {column} are too many panels; at most {_MOST_PANELS}"
        )
    with themed():
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
        from matplotlib.ticker import MaxNLocator

        across = min(len(groups), 3)
        down = math.ceil(len(groups) / across)
        size_in = (max(chosen().width_in, _PANEL_IN * across), 0.9 + _PANEL_IN * down)
        made = Figure(figsize=size_in, facecolor=PAPER)
        made.set_gid(f"{chosen().dpi} dpi")
        FigureCanvasAgg(made)
        grid = made.subplots(down, across, sharex=True, sharey=True, squeeze=False)
        captions: dict[str, None] = {}
        for panel, (name, members) in zip(grid.flat, groups.items(), strict=False):
            draw(members, panel)
            for text in list(panel.texts):  # what a panel says, the figure says once
                if text.get_gid() in {"caption", "stamp", "subject"}:
                    if text.get_gid() == "caption":
                        captions[text.get_text().replace("\n", " ")] = None
                    text.remove()
            heading = str(panel.get_title(loc="left"))
            panel.set_title(name, fontsize=SMALL, pad=4, gid="panel")
        for panel in grid.flat[len(groups) :]:
            panel.set_axis_off()
        for panel in grid.flat:
            if isinstance(panel.xaxis.get_major_locator(), MaxNLocator):
                panel.xaxis.set_major_locator(MaxNLocator(_MOST_TICKS))
            if not panel.get_subplotspec().is_last_row():
                panel.set_xlabel("")
            if not panel.get_subplotspec().is_first_col():
                panel.set_ylabel("")
        below_in = _STAMP_IN
        legends = [panel.get_legend() for panel in grid.flat[: len(groups)]]
        if legends[0] is not None:
            handles = legends[0].legend_handles
            labels = [text.get_text() for text in legends[0].get_texts()]
            anchor = (0.01, (below_in + 0.04) / size_in[1])
            made.legend(
                handles, labels, loc="lower left", bbox_to_anchor=anchor, ncols=_KEYS,
                fontsize=SMALL, borderaxespad=0.0,
            )  # fmt: skip
            below_in += 0.12 + 0.17 * -(-len(labels) // _KEYS)
        for legend in legends:
            if legend is not None:
                legend.remove()
        above = 1.0 - below_in / size_in[1]
        made.set_layout_engine(ConstrainedLayoutEngine(rect=(0.0, 1.0 - above, 1.0, above)))
        same = list(captions) if len(captions) == 1 else []
        made.text(
            0.01, 0.06 / size_in[1], "\n".join([*same, stamp(rows)]), fontsize=STAMP, color=FAINT,
            gid="stamp",
        )  # fmt: skip
        made.suptitle(
            "\n".join(filter(None, (heading.replace("\n", " "), title))), x=0.01, ha="left",
            fontsize=TEXT + 1, fontweight="bold",
        )  # fmt: skip
    axes: Axes = grid.flat[0]
    return axes
