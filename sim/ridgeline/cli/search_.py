"""``ridgeline search``: the best points of a study, chosen by methods of search."""

from __future__ import annotations

import sys
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ridgeline.cli import INTERRUPTED_STATUS
from ridgeline.cli.number_options import Count, Whole
from ridgeline.cli.output import brief, console, headings, print_json
from ridgeline.cli.software import SoftwareOrAll
from ridgeline.cli.sweep_ import FAILED_STATUS

if TYPE_CHECKING:
    from ridgeline.study.search.result import DesignSearchResult

_SHOWN_ROWS = 20
_SHOWN_FAILURES = 3


def search_(
    study: str,
    *,
    output: str | None = None,
    method: str | None = None,
    evaluations: Count | None = None,
    seed: Whole | None = None,
    seeds: Count | None = None,
    parallel: Count | None = None,
    processes: Count = 1,
    restart: Annotated[bool, Parameter(negative="")] = False,
    cluster_address: str | None = None,
    software: SoftwareOrAll = None,
    plot: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Search the design space of a study file for its objectives.

    The study's search block names objectives and method; what its ``vary`` and ``zip`` say is the
    space, ``where`` and ``require`` are the conditions. Random search runs beside every method.
    Finished points are kept beside the output until all are there: a search that was killed goes
    on where it was. Where no point is feasible, the exit status is 1.

    Parameters
    ----------
    study
        A YAML file of kind study with a search block.
    output
        File for the rows, one an evaluation: .csv or .parquet.
    method
        In place of the study's: lazy-gp, random, exhaustive, tpe, nsga2 or nsga3, or several with
        commas between them.
    evaluations
        Points of each search.
    seed
        Seed of the first search of each method.
    seeds
        Searches of each method, with this seed and those after it.
    parallel
        Points that are suggested at once.
    processes
        Processes on this machine.
    restart
        Discard the finished points of a search that was killed.
    cluster_address
        Address of a Dask scheduler, whose workers simulate the points.
    software
        A stack in place of the study's own; all: each that can run the steps is one more choice.
    plot
        File for a figure of hypervolume over evaluations: .png, .svg or .pdf.
    json
        Print the summary and the front as JSON.
    """
    from ridgeline.cli.kept_points import add_points
    from ridgeline.study.search.run import finished, prepare_search
    from ridgeline.study.store import opened_store
    from ridgeline.study.sweep import check_output

    check_output(output)
    if plot is not None:
        from ridgeline.report.figures.result import check_figure

        check_figure(plot)
    options = {
        "method": None if method is None else [name.strip() for name in method.split(",")],
        "evaluations": evaluations,
        "seed": seed,
        "seeds": seeds,
        "parallel": parallel,
    }
    run = prepare_search(study, software or "", options)
    with opened_store(output, restart=restart) as store:
        simulate = partial(run.run, store, processes, cluster_address)
        if not add_points(store, run.study.name, run.most, simulate, kept=output is not None):
            return INTERRUPTED_STATUS
        result = finished(run, store, output)
    if plot is not None and result.front:
        from ridgeline.report.figures.result import save

        save(result.plot("hypervolume"), plot)
    if json:
        print_json(result.to_dict())
    else:
        _print(result, output)
    return _print_failed(result)


def _print(result: DesignSearchResult, output: str | None) -> None:
    from ridgeline.report.tables import plain_table
    from ridgeline.study.columns import resolve

    screen = console()
    size = "without end" if result.designs is None else f"{result.designs:,} designs"
    sides = ", ".join(f"{side} {name}" for name, side in result.objectives.items())
    screen.print(f"{result.study}: {sides}; space: {size}")
    table = plain_table(
        {
            "method": "left",
            "seeds": "right",
            "points": "right",
            "feasible": "right",
            "hypervolume": "right",
            "least": "right",
            "most": "right",
            "as random after": "right",
        }
    )
    for one in result.methods:
        table.add_row(
            one.method, str(len(one.hypervolume)), str(one.evaluations), str(one.feasible),
            f"{median(one.hypervolume):.3f}", f"{min(one.hypervolume):.3f}",
            f"{max(one.hypervolume):.3f}",
            "" if one.evaluations_to_random is None else str(one.evaluations_to_random),
        )  # fmt: skip
    screen.print(table)
    if not result.front:
        return
    objectives = [resolve(name, result.front[0]) for name in result.objectives]
    fields = [name for name in result.fields if name not in objectives]
    names = [*fields, *objectives]
    titles = headings(names)
    front = plain_table(
        {
            **dict.fromkeys(titles[: len(fields)], "left"),
            **dict.fromkeys(titles[len(fields) :], "right"),
        }
    )
    front.collapse_padding = True
    for row in result.front[:_SHOWN_ROWS]:
        front.add_row(*(brief(row[name]) for name in names))
    screen.print(front)
    left = len(result.front) - _SHOWN_ROWS
    more = f", {left} more rows" if left > 0 else ""
    screen.print(f"{len(result.front)} of {len(result.rows)} points on the front{more}")
    if output is not None:
        screen.print(f"wrote {len(result.rows)} rows to {output}", soft_wrap=True)


def _print_failed(result: DesignSearchResult) -> int:
    from ridgeline.study.study_file import shown

    failed = [row for row in result.rows if row["error"]]
    for row in failed[:_SHOWN_FAILURES]:
        print(f"ridgeline: {shown(row, result.fields)}: {row['error']}", file=sys.stderr)
    if len(failed) > _SHOWN_FAILURES:
        left = len(failed) - _SHOWN_FAILURES
        print(f"ridgeline: and {left} more could not be simulated", file=sys.stderr)
    if not result.front:
        print("ridgeline: no point is feasible", file=sys.stderr)
    return 0 if result.front else FAILED_STATUS
