"""``ridgeline sweep``: every point of a study file."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Self

from cyclopts import Parameter

from ridgeline.cli import INTERRUPTED_STATUS
from ridgeline.cli.number_options import Whole
from ridgeline.cli.output import brief, console, headings, print_json, rounded
from ridgeline.cli.software import SoftwareOrAll

FAILED_STATUS = 1
_WORTH_A_PROCESS = 50  # points; a new process takes a second or two before its first
_SHOWN_ROWS = 40
_MANY_FIELDS = 5
Shown = dict[str, tuple[str, Callable[[Any], str]]]
_OF_STEPS: Shown = {
    "step_time_s": ("step ms", lambda value: rounded(value * 1e3)),
    "samples_per_s": ("samples/s", rounded),
    "mfu": ("MFU", lambda value: f"{value:.1%}"),
    "energy_j.total": ("J a step", rounded),
    "fits": ("fits", lambda value: "yes" if value else "no"),
    "bound": ("bound by", str),
}
_OF_COLLECTIVES: Shown = {
    "time_s": ("time us", lambda value: rounded(value * 1e6)),
    "busbw_bytes_per_s": (
        "bus GB/s", lambda value: "" if value is None else f"{value / 1e9:,.3g}"
    ),
    "algorithm": ("done by", str),
    "busiest_link": ("busiest link", lambda value: value or ""),
}  # fmt: skip


def sweep_(
    study: str,
    *,
    output: str | None = None,
    processes: Whole | None = None,
    resume: Annotated[bool, Parameter(negative="")] = False,
    restart: Annotated[bool, Parameter(negative="")] = False,
    cluster_address: str | None = None,
    software: SoftwareOrAll = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Simulate every point of a study file.

    Finished points are kept beside the output until all are there: a sweep that was interrupted or
    killed goes on where it was. A point that cannot be simulated is a row with its error; the exit
    status is then 1.

    Parameters
    ----------
    study
        A YAML file of kind study.
    output
        File for the rows: .csv or .parquet.
    processes
        Processes on this machine; by default one for each core if there are enough points.
    resume
        Continue an interrupted sweep. This is also the default.
    restart
        Discard the finished points of an interrupted sweep.
    cluster_address
        Address of a Dask scheduler, whose workers simulate the points.
    software
        A stack in place of the study's own; all: each that can run the steps.
    json
        Print the rows as JSON.
    """
    from ridgeline.cli.kept_points import add_points
    from ridgeline.errors import ConfigError
    from ridgeline.study.store import opened_store
    from ridgeline.study.sweep import SweptRows, check_output, prepare, write_rows

    if resume and restart:
        raise ConfigError("--resume and --restart exclude each other")
    if processes is not None and processes < 1:
        raise ConfigError(f"must be at least 1, found {processes}", field="--processes")
    check_output(output)
    sweep = prepare(study, software or "")
    if processes is None:
        processes = max(1, min(os.cpu_count() or 1, sweep.size // _WORTH_A_PROCESS))
    with opened_store(output, restart=restart) as store:
        run = partial(sweep.run, store, processes, cluster_address)
        if not add_points(store, sweep.study.name, sweep.size, run, kept=output is not None):
            return INTERRUPTED_STATUS
        rows = SweptRows(sweep, store)
        if output is not None:
            write_rows(rows, output)
        if json:
            print_json(list(rows))
        overview = _Overview.of(rows, sweep.study.fields)
        store.remove()
    if not json:
        _print_rows(overview, sweep.study.fields, output)
    return _print_failed(overview, sweep.study.fields)


@dataclass
class _Overview:
    """What is shown of rows that may be a million, kept while they pass."""

    count: int = 0
    first: list[dict[str, Any]] = field(default_factory=list)
    failed: int = 0
    first_failed: list[dict[str, Any]] = field(default_factory=list)
    varied: set[str] = field(default_factory=set)
    of_steps: bool = True

    @classmethod
    def of(cls, rows: Iterable[dict[str, Any]], fields: list[str]) -> Self:
        made = cls()
        for row in rows:
            made.count += 1
            if row["error"]:
                made.failed += 1
                if made.failed <= _SHOWN_ROWS:
                    made.first_failed.append(row)
            elif "step_time_s" not in row:
                made.of_steps = False
            if made.count <= _SHOWN_ROWS:
                made.first.append(row)
            for name in fields:
                if name not in made.varied and str(row[name]) != str(made.first[0][name]):
                    made.varied.add(name)
        return made


def _print_rows(seen: _Overview, fields: list[str], output: str | None) -> None:
    from ridgeline.report.tables import plain_table

    results = dict(_OF_STEPS if seen.of_steps else _OF_COLLECTIVES)
    # What all rows have in common tells none apart; and columns of single letters nobody reads.
    fields = [name for name in fields if name in seen.varied] or fields
    if len(fields) > _MANY_FIELDS:
        results.pop("bound", None)
    table = plain_table(
        {
            **dict.fromkeys(headings(fields), "left"),
            **{heading: "right" for heading, _ in results.values()},
        }
    )
    table.collapse_padding = True
    for row in seen.first:
        varied = [brief(row[name]) for name in fields]
        if row["error"]:
            table.add_row(*varied, "failed", style="red")
        else:
            table.add_row(*varied, *(show(row[name]) for name, (_, show) in results.items()))
    console().print(table)
    if seen.count > _SHOWN_ROWS:
        console().print(f"and {seen.count - _SHOWN_ROWS} more rows")
    if output is not None:
        console().print(f"wrote {seen.count} rows to {output}", soft_wrap=True)


def _print_failed(seen: _Overview, fields: list[str]) -> int:
    from ridgeline.study.study_file import shown

    for row in seen.first_failed:
        print(f"ridgeline: {shown(row, fields)}: {row['error']}", file=sys.stderr)
    if seen.failed > _SHOWN_ROWS:
        print(f"ridgeline: and {seen.failed - _SHOWN_ROWS} more failed", file=sys.stderr)
    return FAILED_STATUS if seen.failed else 0
