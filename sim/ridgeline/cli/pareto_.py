"""``ridgeline pareto``: the rows of a sweep that no other row beats."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from ridgeline.cli.output import print_json


def pareto_(
    file: str,
    *,
    min_: Annotated[str, Parameter(name="--min")] = "",
    max_: Annotated[str, Parameter(name="--max")] = "",
    plot: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Print the rows that no other row beats in all of some columns.

    Parameters
    ----------
    file
        What ``ridgeline sweep`` wrote: .csv or .parquet.
    min_
        Columns to minimise, with commas between them: step_time_s,area_mm2.
    max_
        Columns to maximise.
    plot
        File for a figure of the front over the first two columns: .png, .svg or .pdf.
    json
        Print the rows as JSON.
    """
    from ridgeline.cli.top_ import print_best
    from ridgeline.errors import ConfigError
    from ridgeline.study.columns import resolve
    from ridgeline.study.ranking import candidates, pareto
    from ridgeline.study.sweep import plain_rows

    smallest = [name.strip() for name in min_.split(",") if name.strip()]
    largest = [name.strip() for name in max_.split(",") if name.strip()]
    columns = [*smallest, *largest]
    if len(columns) < 2:
        raise ConfigError("name at least two columns: --min step_time_s,energy_j.total")
    rows = plain_rows(file)
    front = pareto(rows, smallest, largest)
    columns = [resolve(name, rows[0]) for name in columns] if rows else []
    if plot is not None and front:
        from ridgeline.report.figures.result import save
        from ridgeline.report.figures.study import pareto_front

        save(pareto_front(candidates(rows), front, columns[0], columns[1]), plot)
    if json:
        print_json(front)
    else:
        print_best(front, rows, columns)
