"""``ridgeline sweep``: every combination of the values in a study file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ridgeline.cli.output import console, print_json

FAILED_STATUS = 1
_SHOWN = ("step_time_s", "samples_per_s", "mfu", "energy_j.total", "fits", "bound")


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

    from ridgeline.report.summary import plain_table
    from ridgeline.study.sweep import load_study, run_sweep, write_rows, writer_for

    loaded = load_study(study)
    if output is not None:
        writer_for(Path(output))
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
        names = [*loaded.vary, *_SHOWN]
        table = plain_table({n: "left" if n in loaded.vary else "right" for n in names})
        for row in rows:
            if row["error"]:
                table.add_row(*(str(row[n]) for n in loaded.vary), f"failed: {row['error']}")
            else:
                table.add_row(*(_cell(row[n]) for n in names))
        console().print(table)
        if output is not None:
            console().print(f"wrote {len(rows)} rows to {output}", soft_wrap=True)
    if failed:
        print(f"ridgeline: {len(failed)} of {len(rows)} points failed", file=sys.stderr)
    return FAILED_STATUS if failed else 0


def _cell(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
