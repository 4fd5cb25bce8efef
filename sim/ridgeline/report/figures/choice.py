"""What is best where: for every place of a table the best of some choices, and by how much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ridgeline.errors import RidgelineError
from ridgeline.report.figures.column_axes import ColumnScale, column_name, said, valued, written
from ridgeline.report.figures.study import counted, stamp, whole
from ridgeline.report.figures.style import CAPTION, INK, PAPER, SERIES, head, sheet, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]
Cell = dict[str, float]
_LEFT_IN, _ROW_IN = 1.35, 0.42
_MAX_COLUMNS = 12


def choice(rows: Sequence[Row], x: str, y: str, by: Sequence[str], ax: Axes | None = None) -> Axes:
    """Draw which choice is best over a second column, a line of cells for all other columns.

    Parameters
    ----------
    y
        What is small for the best; large if it is a rate (``..._per_s``).
    by
        The column of the choices, then those that tell the lines of cells apart.

    Raises
    ------
    RidgelineError
        If there are more choices than colours, or more cells in a line than can be read.
    """
    rows = whole(rows, x, y)
    across = ColumnScale.of(x, rows)
    chosen, *others = by
    largest = y.endswith("_per_s")
    cells: dict[str, dict[float, Cell]] = {}
    for row in rows:
        line = cells.setdefault(", ".join(valued(name, row[name]) for name in others), {})
        cell = line.setdefault(across.number(row), {})
        name, value = str(row[chosen]), float(row[y])
        better = max if largest else min
        cell[name] = better(cell.get(name, value), value)
    places = sorted({place for line in cells.values() for place in line})
    if len(places) > _MAX_COLUMNS:
        raise RidgelineError(
            f"{len(places)} values of {x} are too many cells in a line to read; at most "
            f"{_MAX_COLUMNS}"
        )
    best = {
        (i, places.index(place)): sorted(cell, key=lambda n: (cell[n], n), reverse=largest)
        for i, line in enumerate(cells.values())
        for place, cell in line.items()
    }
    taken = list(dict.fromkeys(names[0] for _, names in sorted(best.items())))
    if len(taken) > len(SERIES):
        raise RidgelineError(f"{len(taken)} choices are best somewhere; colours are for six")
    texts = {across.number(row): said(row[x], x) for row in rows}

    def draw(axes: Axes) -> str:
        from matplotlib.patches import Rectangle

        for (i, j), names in best.items():
            cell = cells[list(cells)[i]][places[j]]
            axes.add_patch(
                Rectangle(
                    (j, i), 1, 1, facecolor=SERIES[taken.index(names[0])], alpha=0.3,
                    edgecolor=PAPER, linewidth=1.5, gid=f"{names[0]} {i} {j}",
                )
            )  # fmt: skip
            axes.text(
                j + 0.5, i + 0.38, written(cell[names[0]], y), ha="center", va="center",
                fontsize=CAPTION - 1.0, color=INK,
            )  # fmt: skip
            if len(names) > 1:
                a, b = cell[names[0]], cell[names[1]]
                ratio = (a / b if largest else b / a) if min(a, b) > 0 else 1.0
                axes.text(
                    j + 0.5, i + 0.74, f"×{ratio:.2f}" if ratio < 9.995 else f"×{ratio:,.0f}",
                    ha="center", va="center", fontsize=CAPTION - 2.0, color=INK,
                )  # fmt: skip
        axes.set_xlim(0, len(places))
        axes.set_ylim(len(cells), 0)
        axes.set_xticks([j + 0.5 for j in range(len(places))], [texts[p] for p in places])
        labels = ["\n".join(wrapped(name, CAPTION, 66 * _LEFT_IN)) for name in cells]
        axes.set_yticks([i + 0.5 for i in range(len(cells))], labels, fontsize=CAPTION)
        axes.tick_params(length=0)
        axes.tick_params(axis="x", labelsize=CAPTION - 1.0)
        axes.spines[:].set_visible(False)
        axes.set_xlabel(column_name(x))
        keys = [
            Rectangle((0, 0), 1, 1, facecolor=SERIES[i], alpha=0.3, label=name)
            for i, name in enumerate(taken)
        ]
        head(axes, f"Best {column_name(chosen)} by {column_name(y)}", keys, columns=3)
        least = "most" if largest else "least"
        return (
            f"Colour: the {column_name(chosen)} with the {least} {column_name(y)}, which is "
            f"written in the cell; × by how much the next one differs. {counted(rows, 'point')}."
        )

    space = (1.9 + _ROW_IN * len(cells), _LEFT_IN, 0.85, 1.05)
    return sheet(space, draw, stamp(rows), ax)
