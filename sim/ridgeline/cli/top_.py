"""``ridgeline top``: the best rows of a sweep by one column."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from ridgeline.cli.number_options import Count
from ridgeline.cli.output import brief, console, headings, print_json

_FIRST_RESULTS = frozenset({"step_time_s", "time_s"})  # of a step, of a collective


def top_(
    file: str,
    *,
    by: str,
    n: Count = 10,
    largest: Annotated[bool, Parameter(negative="")] = False,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Print the rows of a sweep that are best in one column.

    Parameters
    ----------
    file
        What ``ridgeline sweep`` wrote: .csv or .parquet.
    by
        Column to sort by, such as energy_j.total; the smallest value comes first.
    n
        Number of rows.
    largest
        Sort the largest value first.
    json
        Print the rows as JSON.
    """
    from ridgeline.study.columns import resolve
    from ridgeline.study.ranking import top
    from ridgeline.study.sweep import plain_rows

    rows = plain_rows(file)
    best = top(rows, by, n, largest=largest)
    if json:
        print_json(best)
        return
    print_best(best, rows, [resolve(by, rows[0])] if rows else [])


def print_best(best: list[dict[str, Any]], rows: list[dict[str, Any]], by: list[str]) -> None:
    """Print rows: what tells them apart, and the columns that they were chosen by."""
    from ridgeline.report.tables import plain_table

    varied = varied_columns(rows)
    shown = [*varied, *(name for name in by if name not in varied)]
    if any(row.get("fits") is False for row in best):  # which nobody would choose
        shown.append("fits")
    chosen_by = dict.fromkeys(shown[len(varied) :], "right")
    table = plain_table({**dict.fromkeys(headings(varied), "left"), **chosen_by})
    for row in best:
        table.add_row(*(brief(row.get(name)) for name in shown))
    console().print(table)
    console().print(f"{len(best)} of {len(rows)} rows")


def varied_columns(rows: list[dict[str, Any]]) -> list[str]:
    """Return the columns before the results that differ between rows: the study's fields."""
    names = list(rows[0]) if rows else []
    first = next((i for i, name in enumerate(names) if name in _FIRST_RESULTS), 0)
    return [name for name in names[:first] if len({row.get(name) for row in rows}) > 1]
