"""``ridgeline reproduce``: published results computed anew, with their residuals."""

from __future__ import annotations

import os
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ridgeline.cli.number_options import Whole
from ridgeline.cli.output import console, print_json
from ridgeline.cli.software import OPTION, Software, one_stack
from ridgeline.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table

    from ridgeline.study.reproduce import ReproducedFigure, Reproduction

_MOST_PROCESSES = 4  # each compiles or loads the kernels


def reproduce_(
    name: str | None = None,
    *,
    software: Software = None,
    processes: Whole | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Compute a published result anew: predicted, published, residual, with and without fits.

    Parameters
    ----------
    name
        Name of the published result; "all" for a line of each; by default all are listed.
    processes
        With "all": processes that share them; by default up to four, if there are cores for them.
    json
        Print the answer as JSON.
    """
    from ridgeline.study.reproduce import REPRODUCTIONS, reproduce

    if processes is not None and (name != "all" or processes < 1):
        problem = 'is for "all"' if name != "all" else f"must be at least 1, found {processes}"
        raise ConfigError(problem, field="--processes")
    stack = one_stack(software) or None
    if name is None:
        if stack is not None:
            raise ConfigError("name the reproduction whose steps it is to run", field=OPTION)
        _list(REPRODUCTIONS, json)
    elif name == "all":
        if stack is not None:
            raise ConfigError("name the reproduction whose steps it is to run", field=OPTION)
        if processes is None:
            processes = min(os.cpu_count() or 1, _MOST_PROCESSES)
        _print_all(REPRODUCTIONS, processes, json)
    elif json:
        print_json(reproduce(name, stack).to_dict())
    else:
        _print(reproduce(name, stack))


def _list(known: dict[str, str], json: bool) -> None:
    from ridgeline.report.tables import plain_table

    if json:
        print_json(known)
        return
    rows = plain_table({"name": "left", "what it is": "left"})
    for name, title in known.items():
        rows.add_row(name, title)
    console().print(rows)


def _print_all(known: dict[str, str], processes: int, json: bool) -> None:
    """Print a line of each: figures, kept promises, the middle and the largest residual."""
    from ridgeline.report.progress import progress_bar
    from ridgeline.report.tables import plain_table
    from ridgeline.study.parallel_run import mapped
    from ridgeline.study.reproduce import LONGEST, summary_of

    order = sorted(known, key=lambda name: (name not in LONGEST, name))
    with progress_bar("reproduce", len(order)) as advance:
        found_by_name = dict(
            zip(order, mapped(summary_of, order, processes, advance=advance), strict=True)
        )
    made = [found_by_name[name] for name in known]
    if json:
        print_json(made)
        return
    numbers = ("figures", "within", "of", "median", "largest")
    table = plain_table({"name": "left", **dict.fromkeys(numbers, "right"), "what it is": "left"})
    for found in made:
        table.add_row(
            found["name"],
            f"{found['figures']}",
            f"{found['kept']}" if found["promised"] else "",
            f"{found['promised']}" if found["promised"] else "",
            _percent(found["median_residual"]),
            _percent(found["largest_residual"]),
            known[found["name"]],
        )
    screen = console()
    screen.print(table)
    promised, kept = (sum(found[key] for found in made) for key in ("promised", "kept"))
    screen.print(
        f"{kept} of {promised} residuals are within their tolerance; `ridgeline reproduce NAME` "
        "shows each figure, and why it is missed"
    )


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


def _print(made: Reproduction) -> None:
    screen = console()
    screen.print(made.title, markup=False)
    screen.print(made.source, soft_wrap=True, markup=False)
    screen.print(_table(made.rows), markup=False)
    kept = [row.is_kept for row in made.rows if row.is_kept is not None]
    if kept:
        screen.print(f"{sum(kept)} of {len(kept)} residuals are within their tolerance")
    for fit in made.fits:
        screen.print(
            f"fitted: {fit.constant} = {fit.value} ({fit.chosen_by})", soft_wrap=True, markup=False
        )
    for note in made.notes:
        screen.print(f"note: {note}", soft_wrap=True, markup=False)


def _table(made: tuple[ReproducedFigure, ...]) -> Table:
    """Rows by group; columns of what was fitted, and of remarks, only where there are any."""
    from ridgeline.report.tables import plain_table

    fitted = any(row.is_fitted for row in made)
    unfitted = {"no fits": "right", " residual": "right"} if fitted else {}
    remarks = {" ": "left"} if any(_remark(row) for row in made) else {}
    numbers = {"published": "right", "predicted": "right", "residual": "right"}
    table = plain_table({"": "left", **numbers, **unfitted, **remarks})
    for group, rows in groupby(made, key=lambda row: row.group):
        table.add_section()
        table.add_row(group)
        for row in rows:
            table.add_row(*_cells(row, fitted=fitted), *[_remark(row)] * bool(remarks))
    return table


def _cells(row: ReproducedFigure, *, fitted: bool) -> Iterator[str]:
    yield f"  {row.quantity}"
    yield "-".join(f"{end:.4g}" for end in dict.fromkeys(row.published))
    yield f"{row.predicted:.4g}"
    yield _residual(row.residual, row)
    if fitted:
        yield "" if not row.is_fitted or row.unfitted is None else f"{row.unfitted:.4g}"
        yield "" if not row.is_fitted else _residual(row.unfitted_residual, row)


def _residual(residual: float | None, row: ReproducedFigure) -> str:
    if residual is None:
        return ""
    return f"{residual * 100:+.1f} {'pt' if row.points else '%'}"


def _remark(row: ReproducedFigure) -> str:
    remarks = [row.note] if row.note else []
    if row.is_input:
        remarks.append("input")
    if row.is_kept is False:
        remarks.append("beyond tolerance")
    return "; ".join(remarks)
