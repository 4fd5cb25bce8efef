"""``ridgeline sweep``: every combination of the values in a study file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from ridgeline.cli.output import console, print_json

FAILED_STATUS = 1
_SHOWN: dict[str, tuple[str, Callable[[Any], str]]] = {
    "step_time_s": ("step ms", lambda value: f"{value * 1e3:,.2f}"),
    "samples_per_s": ("samples/s", lambda value: f"{value:,.0f}"),
    "mfu": ("MFU", lambda value: f"{value:.1%}"),
    "energy_j.total": ("J a step", lambda value: f"{value:,.1f}"),
    "fits": ("fits", lambda value: "yes" if value else "no"),
    "bound": ("bound by", str),
}


def sweep_(
    study: str,
    *,
    output: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Simulate every combination of the values in a study file.

    A point that cannot be simulated is a row with its error; the exit status is then 1.

    Parameters
    ----------
    study
        A YAML file of kind study.
    output
        File for the rows: .csv or .parquet.
    json
        Print the rows as JSON.
    """
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    from ridgeline.report.files import check_writable
    from ridgeline.report.summary import plain_table
    from ridgeline.study.sweep import load_study, run_sweep, write_rows, writer_for

    loaded = load_study(study)
    if output is not None:
        writer_for(Path(output))
        check_writable(output)
    from rich.console import Console

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task(loaded.name, total=loaded.size)
        rows = run_sweep(loaded, lambda: bar.advance(task))
    if output is not None:
        write_rows(rows, output)
    failed = [row for row in rows if row["error"]]
    if json:
        print_json(rows)
    else:
        table = plain_table(
            {
                **{_heading(name): "left" for name in loaded.vary},
                **{heading: "right" for heading, _ in _SHOWN.values()},
            }
        )
        for row in rows:
            varied = [str(row[name]) for name in loaded.vary]
            if row["error"]:
                table.add_row(*varied, "failed", style="red")
            else:
                table.add_row(*varied, *(show(row[name]) for name, (_, show) in _SHOWN.items()))
        console().print(table)
        if output is not None:
            console().print(f"wrote {len(rows)} rows to {output}", soft_wrap=True)
    for row in failed:
        point = ", ".join(f"{name}={row[name]}" for name in loaded.vary)
        print(f"ridgeline: {point}: {row['error']}", file=sys.stderr)
    return FAILED_STATUS if failed else 0


def _heading(path: str) -> str:
    """Return the last two parts of a dotted path: enough to tell columns apart, and narrow."""
    return ".".join(path.split(".")[-2:])
