"""Figures of the rows of a table: one function for each kind, which `ridgeline.plot` offers.

Each takes a list of mappings or results, a data frame, or the path of a table. A figure that is
drawn from the path of a table into axes of its own remembers the file and what was asked, so that
``ridgeline verify`` can draw it again.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ridgeline.bounded_files import MAX_RESULT_BYTES, content_hash, read_json
from ridgeline.errors import ConfigError, RidgelineError, nearest

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Columns = str | Sequence[str]
_Figure = TypeVar("_Figure", bound=Callable[..., "Axes"])
_TABLES = (".csv", ".parquet")


def _recorded(function: _Figure) -> _Figure:
    """Let a figure of a table's file remember the file and what was asked."""

    @functools.wraps(function)
    def drawn(data: Any, ax: Axes | None = None, **options: Any) -> Axes:
        from ridgeline.report.figures.embedded import set_origin

        made = function(data, ax, **options)
        if ax is None and isinstance(data, str | Path) and Path(data).suffix in _TABLES:
            asked = {"of": "rows", "kind": kind_of(function), **options}
            hashed = content_hash(data)
            set_origin(
                made, {"repeat": asked, "table": {"file": Path(data).name, "sha256": hashed}}
            )
        return made

    return cast(_Figure, drawn)


def kind_of(function: Callable[..., Axes]) -> str:
    """Return the name that ``ridgeline plot`` takes for a function."""
    return function.__name__.replace("_", "-")


@_recorded
def time(data: Any, ax: Axes | None = None, *, by: Columns = ()) -> Axes:
    """Draw where the time of rows goes, a bar each, named by `by`."""
    return _bars("time", data, by, ax)


@_recorded
def energy(data: Any, ax: Axes | None = None, *, by: Columns = ()) -> Axes:
    """Draw where the energy of rows goes, a bar each, named by `by`."""
    return _bars("energy", data, by, ax)


@_recorded
def memory(data: Any, ax: Axes | None = None, *, by: Columns = ()) -> Axes:
    """Draw what fills the memory of rows, a bar each, named by `by`."""
    return _bars("memory", data, by, ax)


@_recorded
def curve(
    data: Any, ax: Axes | None = None, *, x: str, y: str, by: Columns = (), facet: str = "",
    title: str = "",
) -> Axes:  # fmt: skip
    """Draw one column over another, a line for each value of `by`, a panel for each of `facet`.

    Rows with ``Y.p05`` and ``Y.p95``, or results with a range, have a band.
    """
    from ridgeline.report.figures.study import curve as drawn

    rows = _rows(data)
    x, y, told = _name(x, rows), _name(y, rows), _names(by, rows)
    return _faceted(rows, facet, ax, title, lambda some, a, t: drawn(some, x, y, told, a, title=t))


@_recorded
def pareto(
    data: Any, ax: Axes | None = None, *, x: str, y: str, label: Columns = (), facet: str = "",
    title: str = "",
) -> Axes:  # fmt: skip
    """Draw the rows that no other beats in two columns, small values being best, as steps.

    `label` names the points of the front, `facet` makes a panel for each value of a column.
    """
    from ridgeline.report.figures.study import pareto_front
    from ridgeline.study.ranking import pareto as best

    rows = _rows(data)
    x, y, named = _name(x, rows), _name(y, rows), _names(label, rows)
    return _faceted(
        rows, facet, ax, title,
        lambda some, a, t: pareto_front(
            some, best([dict(row) for row in some], [x, y]), x, y, a, label=named, title=t
        ),
    )  # fmt: skip


@_recorded
def choice(data: Any, ax: Axes | None = None, *, x: str, y: str, by: Columns) -> Axes:
    """Draw which value of the first column of `by` is best where, by `y`."""
    from ridgeline.report.figures.choice import choice as drawn

    rows = _rows(data)
    told = _names(by, rows)
    if not told:
        raise ConfigError("a choice needs by, what is chosen between", field="plot")
    return drawn(rows, _name(x, rows), _name(y, rows), told, ax)


@_recorded
def heatmap(data: Any, ax: Axes | None = None, *, x: str, y: str, z: str, title: str = "") -> Axes:
    """Draw the column `z` as colours over the values of two fields."""
    from ridgeline.report.figures.fields import heat_map

    rows = _rows(data)
    return heat_map(rows, _name(x, rows), _name(y, rows), _name(z, rows), ax, title=title)


@_recorded
def parallel(
    data: Any, ax: Axes | None = None, *, columns: Columns, y: str, title: str = ""
) -> Axes:
    """Draw every row as a line over several columns, coloured by `y`."""
    from ridgeline.report.figures.fields import parallel as drawn

    rows = _rows(data)
    return drawn(rows, _names(columns, rows), _name(y, rows), ax, title=title)


@_recorded
def sobol(
    data: Any, ax: Axes | None = None, *, y: str = "", by: Columns = (), title: str = ""
) -> Axes:
    """Draw the Sobol indices of a column over the fields `by`, of whose values all combine."""
    from ridgeline.report.figures.fields import sobol_of_rows

    rows = _rows(data)
    if not y or not by:
        raise ConfigError("Sobol indices of rows need y and by, the fields", field="plot")
    return sobol_of_rows(rows, _name(y, rows), _names(by, rows), ax, title=title)


@_recorded
def residuals(data: Any, ax: Axes | None = None) -> Axes:
    """Draw predictions over measurements, the rows of ``validate``."""
    from ridgeline.report.figures.study import residuals as drawn

    rows = _rows(data)
    if not {"measured", "predicted"} <= rows[0].keys():
        raise ConfigError("the rows have no columns measured and predicted", file=name_of(data))
    return drawn(rows, ax)


@_recorded
def hypervolume(data: Any, ax: Axes | None = None) -> Axes:
    """Draw the hypervolume of each method of a search against its evaluations.

    `data` are all rows of the search, those with errors too.
    """
    from ridgeline.report.figures.search import hypervolume_curves
    from ridgeline.study.row_values import flat_rows

    return hypervolume_curves(flat_rows(read(data), name_of(data)), ax)


ROW_PLOTS: Mapping[str, Callable[..., Axes]] = {
    kind_of(function): function
    for function in (
        time, energy, memory, curve, pareto, choice, heatmap, parallel, sobol, residuals,
        hypervolume,
    )
}  # fmt: skip
"""Figures of rows by the name that ``ridgeline plot`` takes."""


def draw_rows(kind: str, data: Any, **options: Any) -> Axes:
    """Draw a figure of rows by the name of its kind.

    Raises
    ------
    ConfigError
        If there is no such kind, it does not take an option or lacks one, a column is missing, or
        no row can be drawn.
    """
    check_options(kind, options, ROW_PLOTS)
    return ROW_PLOTS[kind](data, **options)


def check_options(
    kind: str, options: Mapping[str, Any], kinds: Mapping[str, Callable[..., Axes]]
) -> None:
    """Raise ConfigError if there is no such kind, or it does not take an option, or lacks one."""
    if kind not in kinds:
        raise ConfigError(
            f"there is no figure {kind!r}{nearest(kind, kinds)} (there are: "
            f"{', '.join(sorted(kinds))})"
        )
    taken = options_of(kinds[kind])
    for name in options:
        if name not in taken:
            has = f"it takes {', '.join(f'--{one}' for one in taken)}" if taken else "it takes none"
            raise ConfigError(f"--{name} is no option of the figure {kind}: {has}", field="plot")
    lacking = [f"--{name}" for name, needed in taken.items() if needed and name not in options]
    if lacking:
        raise ConfigError(f"a {kind} needs {' and '.join(lacking)}", field="plot")


def options_of(function: Callable[..., Axes]) -> dict[str, bool]:
    """Return the options of a function, and whether it needs them."""
    return {
        one.name: one.default is inspect.Parameter.empty
        for one in inspect.signature(function).parameters.values()
        if one.kind is inspect.Parameter.KEYWORD_ONLY
    }


def read(data: Any) -> Any:
    """Return what stands in a table or a JSON file, or the data itself if it is no path."""
    if not isinstance(data, str | Path):
        return data
    from ridgeline.study.sweep import plain_rows

    if Path(data).suffix != ".json":
        return plain_rows(data)
    return read_json(data, MAX_RESULT_BYTES)


def name_of(data: Any) -> str:
    """Return the name of a file for messages; nothing if the data is no path."""
    return str(data) if isinstance(data, str | Path) else ""


def _bars(kind: str, data: Any, by: Columns, ax: Axes | None) -> Axes:
    from ridgeline.report.figures.study import bars

    rows = _rows(data)
    return bars(rows, kind, _names(by, rows), ax)


def _rows(data: Any) -> list[dict[str, Any]]:
    """Return the rows without errors and feasible, and say how many others there are."""
    from ridgeline.study.ranking import candidates
    from ridgeline.study.row_values import flat_rows

    found = flat_rows(read(data), name_of(data))
    rows = candidates(found)
    if not rows:
        raise ConfigError(
            "there is no row to draw: all have errors or do not fit", file=name_of(data)
        )
    if len(rows) < len(found):
        left = f"{len(found) - len(rows)} of {len(found)} rows have errors or do not fit"
        print(f"ridgeline: {left}, and are left out", file=sys.stderr)
    return rows


def _name(column: str, rows: Sequence[Mapping[str, Any]]) -> str:
    from ridgeline.study.columns import resolve

    return resolve(column, list(dict.fromkeys(name for row in rows for name in row)))


def _names(columns: Columns, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    parts = columns.split(",") if isinstance(columns, str) else columns
    return [_name(part.strip(), rows) for part in parts if part.strip()]


def _faceted(
    rows: Sequence[Mapping[str, Any]], facet: str, ax: Axes | None, title: str,
    drawn: Callable[[Sequence[Mapping[str, Any]], Axes | None, str], Axes],
) -> Axes:  # fmt: skip
    from ridgeline.report.figures.facets import facets

    if not facet:
        return drawn(rows, ax, title)
    if ax is not None:
        raise RidgelineError("facet makes panels of its own: it takes no ax")
    return facets(rows, _name(facet, rows), lambda some, a: drawn(some, a, ""), title)
