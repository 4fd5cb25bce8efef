"""Figures by kind: ``rl.plot.KIND(data, ax=None, **options)``, as ``ridgeline plot KIND``.

Figures of a step take a `Result`, a saved one, or the path of one; figures of rows take a list of
mappings or results, a polars or pandas data frame, or the path of a table. Every function returns
the axes it drew into; without `ax` it makes a figure of its own. Columns may be given by the end of
their name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.errors import ConfigError, RidgelineError, nearest

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_MOST_JSON_BYTES = 2**28
Columns = str | Sequence[str]


def _of_step(kind: str) -> Callable[..., Axes]:
    """Return the function of a figure of one step."""

    def draw(data: Any, ax: Axes | None = None) -> Axes:
        from ridgeline.report.figures.result import draw as drawn

        return drawn(kind, _result(data, kind, fold=kind != "topology"), ax)

    draw.__name__ = draw.__qualname__ = kind.replace("-", "_")
    draw.__doc__ = f"Draw the {kind} of a step: see `Result.plot`."
    return draw


roofline = _of_step("roofline")
timeline = _of_step("timeline")
pipeline = _of_step("pipeline")
power = _of_step("power")
tornado = _of_step("tornado")
topology = _of_step("topology")


def time(data: Any, ax: Axes | None = None, *, by: Columns = ()) -> Axes:
    """Draw where the time goes: of a step, or of rows with a bar each, named by `by`."""
    return _parts("time", data, by, ax)


def energy(data: Any, ax: Axes | None = None, *, by: Columns = ()) -> Axes:
    """Draw where the energy goes: of a step, or of rows with a bar each, named by `by`."""
    return _parts("energy", data, by, ax)


def memory(data: Any, ax: Axes | None = None, *, by: Columns = ()) -> Axes:
    """Draw the memory of a step over time, or of rows with a bar each, named by `by`."""
    return _parts("memory", data, by, ax)


def utilisation(data: Any, ax: Axes | None = None) -> Axes:
    """Draw how busy the arithmetic is: of a step by layer and pass, or of an op by cell."""
    found = read(data)
    if _is_op(found):
        return _op("utilisation", found, ax, None)
    return _of_step("utilisation")(found, ax)


def op_gantt(data: Any, ax: Axes | None = None, *, tiles: int | None = None) -> Axes:
    """Draw the first `tiles` tiles of an op over memory port, buffers and array."""
    return _op("op-gantt", read(data), ax, tiles)


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


def choice(data: Any, ax: Axes | None = None, *, x: str, y: str, by: Columns) -> Axes:
    """Draw which value of the first column of `by` is best where, by `y`."""
    from ridgeline.report.figures.choice import choice as drawn

    rows = _rows(data)
    told = _names(by, rows)
    if not told:
        raise ConfigError("a choice needs by, what is chosen between", field="plot")
    return drawn(rows, _name(x, rows), _name(y, rows), told, ax)


def heatmap(data: Any, ax: Axes | None = None, *, x: str, y: str, z: str, title: str = "") -> Axes:
    """Draw the column `z` as colours over the values of two fields."""
    from ridgeline.report.figures.fields import heat_map

    rows = _rows(data)
    return heat_map(rows, _name(x, rows), _name(y, rows), _name(z, rows), ax, title=title)


def parallel(
    data: Any, ax: Axes | None = None, *, columns: Columns, y: str, title: str = ""
) -> Axes:
    """Draw every row as a line over several columns, coloured by `y`."""
    from ridgeline.report.figures.fields import parallel as drawn

    rows = _rows(data)
    return drawn(rows, _names(columns, rows), _name(y, rows), ax, title=title)


def sobol(
    data: Any, ax: Axes | None = None, *, y: str = "", by: Columns = (), title: str = ""
) -> Axes:
    """Draw Sobol indices: of a step over its resources, or of a column over the fields `by`."""
    from ridgeline.report.figures.fields import sobol_of_rows

    found = read(data)
    if is_step(found):
        if y or by:
            raise RidgelineError("y and by are of rows; a step is asked over its resources")
        return _of_step("sobol")(found, ax)
    rows = _rows(found)
    if not y or not by:
        raise ConfigError("Sobol indices of rows need y and by, the fields", field="plot")
    return sobol_of_rows(rows, _name(y, rows), _names(by, rows), ax, title=title)


def residuals(data: Any, ax: Axes | None = None) -> Axes:
    """Draw predictions over measurements, the rows of ``validate``."""
    from ridgeline.report.figures.study import residuals as drawn

    rows = _rows(data)
    if not {"measured", "predicted"} <= rows[0].keys():
        raise ConfigError("the rows have no columns measured and predicted", file=_said(data))
    return drawn(rows, ax)


def scaling(data: Any, ax: Axes | None = None) -> Axes:
    """Draw throughput and efficiency of a scaling study over its devices."""
    return _scaling("scaling", data, ax)


def distributed_roofline(data: Any, ax: Axes | None = None) -> Axes:
    """Draw the ceilings of device and network of a scaling study, and its strategies."""
    return _scaling("distributed-roofline", data, ax)


def run(data: Any, ax: Axes | None = None) -> Axes:
    """Draw what the job does over a run: of a `TrainingResult`, or of a file of kind run."""
    from ridgeline.training.train import train
    from ridgeline.training.training_result import TrainingResult

    if isinstance(data, str | Path):
        data = train(data)
    if not isinstance(data, TrainingResult):
        raise RidgelineError(
            "this figure is of a run: what rl.train returns, or a file of kind run"
        )
    return data.plot("timeline", ax)


KINDS: Mapping[str, Callable[..., Axes]] = {
    function.__name__.replace("_", "-"): function
    for function in (
        roofline, timeline, pipeline, time, energy, memory, power, tornado, sobol, utilisation,
        topology, op_gantt, curve, pareto, choice, heatmap, parallel, residuals, scaling,
        distributed_roofline, run,
    )
}  # fmt: skip
"""Figures by the name that ``ridgeline plot`` takes."""


def draw(kind: str, data: Any, ax: Axes | None = None, **options: Any) -> Axes:
    """Draw a figure by the name of its kind.

    Raises
    ------
    RidgelineError
        If there is no such kind, or it does not take an option, or lacks one.
    """
    check_options(kind, options)
    return KINDS[kind](data, ax, **options)


def check_options(kind: str, options: Mapping[str, Any]) -> None:
    """Raise ConfigError if there is no such kind, or it does not take an option, or lacks one."""
    if kind not in KINDS:
        raise ConfigError(
            f"there is no figure {kind!r}{nearest(kind, KINDS)} (there are: "
            f"{', '.join(sorted(KINDS))})"
        )
    taken = options_of(kind)
    for name in options:
        if name not in taken:
            has = f"it takes {', '.join(f'--{one}' for one in taken)}" if taken else "it takes none"
            raise ConfigError(f"--{name} is no option of the figure {kind}: {has}", field="plot")
    lacking = [f"--{name}" for name, needed in taken.items() if needed and name not in options]
    if lacking:
        raise ConfigError(f"a {kind} needs {' and '.join(lacking)}", field="plot")


def options_of(kind: str) -> dict[str, bool]:
    """Return the options of a kind, and whether it needs them."""
    parameters = inspect.signature(KINDS[kind]).parameters.values()
    return {
        one.name: one.default is inspect.Parameter.empty
        for one in parameters
        if one.kind is inspect.Parameter.KEYWORD_ONLY
    }


def read(data: Any) -> Any:
    """Return what stands in a table or a JSON file, or the data itself if it is no path."""
    if not isinstance(data, str | Path):
        return data
    from ridgeline.config import read_text
    from ridgeline.study.sweep import plain_rows
    from ridgeline.workload.trace.json_files import read_json

    if Path(data).suffix != ".json":
        return plain_rows(data)
    return read_json(read_text(str(data), limit=_MOST_JSON_BYTES).encode(), str(data))


def _said(data: Any) -> str:
    return str(data) if isinstance(data, str | Path) else ""


def is_step(read: Any) -> bool:
    """Return whether this is the result of a step, or a saved one."""
    from ridgeline.report.result import Result

    return isinstance(read, Result) or (isinstance(read, Mapping) and "manifest" in read)


def _is_op(read: Any) -> bool:
    return hasattr(read, "request") or (isinstance(read, Mapping) and "request" in read)


def _result(data: Any, kind: str, *, fold: bool) -> Any:
    from ridgeline.report.result import Result
    from ridgeline.study.repeat import repeat

    found = read(data)
    if isinstance(found, Result):
        return found
    if not is_step(found):
        raise ConfigError(
            f"a {kind} is of one result, JSON of ridgeline run --json", file=_said(data)
        )
    return repeat(found, file=_said(data), fold=fold)


def _op(kind: str, read: Any, ax: Axes | None, tiles: int | None) -> Axes:
    from ridgeline.kernels.single_op import repeat
    from ridgeline.report.figures.op import draw_op

    if not _is_op(read):
        raise ConfigError(f"{kind} is of one op, JSON of ridgeline gemm --json or conv --json")
    request = read["request"] if isinstance(read, Mapping) else read.request
    return draw_op(kind, repeat(request), ax, tiles=tiles)


def _scaling(kind: str, data: Any, ax: Axes | None) -> Axes:
    from ridgeline.study.scaling_figures import draw as drawn

    found = read(data)
    saved = found.to_dict() if hasattr(found, "to_dict") else found
    return drawn(kind, saved, ax, file=_said(data))


def _parts(kind: str, data: Any, by: Columns, ax: Axes | None) -> Axes:
    from ridgeline.report.figures.study import bars

    found = read(data)
    if is_step(found):
        if by:
            raise RidgelineError("by names the bars of rows; this is one step")
        return _of_step(kind)(found, ax)
    rows = _rows(found)
    return bars(rows, kind, _names(by, rows), ax)


def _rows(data: Any) -> list[dict[str, Any]]:
    """Return the rows without errors and feasible, and say how many others there are."""
    import sys

    from ridgeline.study.ranking import candidates
    from ridgeline.study.row_values import flat_rows

    found = flat_rows(read(data), _said(data))
    rows = candidates(found)
    if not rows:
        raise ConfigError(
            "there is no row to draw: all have errors or do not fit", file=_said(data)
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
