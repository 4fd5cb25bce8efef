"""Figures by kind: ``rl.plot.KIND(data, ax=None, **options)``, as ``ridgeline plot KIND``.

Figures of a step take a `Result`, a saved one, or the path of one; figures of rows take a list of
mappings or results, a polars or pandas data frame, or the path of a table. Every function returns
the axes it drew into; without `ax` it makes a figure of its own. Columns may be given by the end of
their name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.study import row_plots
from ridgeline.study.row_plots import (
    Columns,
    choice,
    curve,
    heatmap,
    hypervolume,
    kind_of,
    name_of,
    parallel,
    pareto,
    read,
    residuals,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
    return _of_step_or_rows(row_plots.time, data, ax, by=by)


def energy(data: Any, ax: Axes | None = None, *, by: Columns = ()) -> Axes:
    """Draw where the energy goes: of a step, or of rows with a bar each, named by `by`."""
    return _of_step_or_rows(row_plots.energy, data, ax, by=by)


def memory(data: Any, ax: Axes | None = None, *, by: Columns = ()) -> Axes:
    """Draw the memory of a step over time, or of rows with a bar each, named by `by`."""
    return _of_step_or_rows(row_plots.memory, data, ax, by=by)


def sobol(
    data: Any, ax: Axes | None = None, *, y: str = "", by: Columns = (), title: str = ""
) -> Axes:
    """Draw Sobol indices: of a step over its resources, or of a column over the fields `by`."""
    return _of_step_or_rows(row_plots.sobol, data, ax, y=y, by=by, title=title)


def utilisation(data: Any, ax: Axes | None = None) -> Axes:
    """Draw how busy the arithmetic is: of a step by layer and pass, or of an op by cell."""
    found = read(data)
    if _is_op(found):
        return _op("utilisation", found, ax, None)
    return _of_step("utilisation")(found, ax)


def op_gantt(data: Any, ax: Axes | None = None, *, tiles: int | None = None) -> Axes:
    """Draw the first `tiles` tiles of an op over memory port, buffers and array."""
    return _op("op-gantt", read(data), ax, tiles)


def scaling(data: Any, ax: Axes | None = None) -> Axes:
    """Draw throughput and efficiency of a scaling study over its devices."""
    return _scaling("scaling", data, ax)


def distributed_roofline(data: Any, ax: Axes | None = None) -> Axes:
    """Draw the ceilings of device and network of a scaling study, and its strategies."""
    return _scaling("distributed-roofline", data, ax)


def run(data: Any, ax: Axes | None = None) -> Axes:
    """Draw what the job does over a run: of a `TrainingResult`, or of a file of kind run."""
    return _run("timeline", data, ax)


def run_costs(data: Any, ax: Axes | None = None) -> Axes:
    """Draw what a run costs by category: of a `TrainingResult`, or of a file of kind run."""
    return _run("costs", data, ax)


KINDS: Mapping[str, Callable[..., Axes]] = {
    kind_of(function): function
    for function in (
        roofline, timeline, pipeline, time, energy, memory, power, tornado, sobol, utilisation,
        topology, op_gantt, curve, pareto, choice, heatmap, parallel, residuals, hypervolume,
        scaling, distributed_roofline, run, run_costs,
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
    row_plots.check_options(kind, options, KINDS)


def is_step(found: Any) -> bool:
    """Return whether this is the result of a step, or a saved one."""
    from ridgeline.report.result import Result

    return isinstance(found, Result) or (isinstance(found, Mapping) and "manifest" in found)


def _is_op(found: Any) -> bool:
    return hasattr(found, "request") or (isinstance(found, Mapping) and "request" in found)


def _is_table(data: Any) -> bool:
    return isinstance(data, str | Path) and Path(data).suffix != ".json"


def _result(data: Any, kind: str, *, fold: bool) -> Any:
    from ridgeline.report.result import Result
    from ridgeline.study.repeat import repeat

    found = read(data)
    if isinstance(found, Result):
        return found
    if not is_step(found):
        raise ConfigError(
            f"a {kind} is of one result, JSON of ridgeline run --json", file=name_of(data)
        )
    return repeat(found, file=name_of(data), fold=fold)


def _op(kind: str, found: Any, ax: Axes | None, tiles: int | None) -> Axes:
    from ridgeline.kernels.single_op import repeat
    from ridgeline.report.figures.op import draw_op

    if not _is_op(found):
        raise ConfigError(f"{kind} is of one op, JSON of ridgeline gemm --json or conv --json")
    request = found["request"] if isinstance(found, Mapping) else found.request
    return draw_op(kind, repeat(request), ax, tiles=tiles)


def _scaling(kind: str, data: Any, ax: Axes | None) -> Axes:
    from ridgeline.study.scaling_figures import draw as drawn

    found = read(data)
    saved = found.to_dict() if hasattr(found, "to_dict") else found
    return drawn(kind, saved, ax, file=name_of(data))


def _run(kind: Literal["timeline", "costs"], data: Any, ax: Axes | None) -> Axes:
    from ridgeline.training.train import train
    from ridgeline.training.training_result import TrainingResult

    found = train(data) if isinstance(data, str | Path) else data
    if not isinstance(found, TrainingResult):
        raise RidgelineError(
            "this figure is of a run: what rl.train returns, or a file of kind run"
        )
    return found.plot(kind, ax)


def _of_step_or_rows(
    of_rows: Callable[..., Axes], data: Any, ax: Axes | None, **options: Any
) -> Axes:
    """Draw a kind that steps and rows have; its options are of rows."""
    given = {name: value for name, value in options.items() if value}
    found = data if _is_table(data) else read(data)
    if is_step(found):
        if given:
            raise RidgelineError(f"the data is one step; {' and '.join(given)} would be of rows")
        return _of_step(kind_of(of_rows))(_result(data, kind_of(of_rows), fold=True), ax)
    return of_rows(data, ax, **given)
