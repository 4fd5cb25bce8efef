"""``ridgeline report``: one HTML file with figures, tables and their data."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from ridgeline.cli.number_options import Count
from ridgeline.cli.output import console, print_json


def report_(
    file: str,
    *,
    out: Annotated[str, Parameter(alias="-o")] = "report.html",
    seeds: Count | None = None,
    model: str | None = None,
    cluster: str | None = None,
    software: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Write a report of a result, of a study or of a whole run: one HTML file, without a network.

    Its figures can be hovered over and zoomed into, its tables sorted and filtered, and every
    figure has its data and its command.

    Parameters
    ----------
    file
        JSON of ``ridgeline run --json`` (simulated again from its manifest); the rows of a sweep
        (.csv, .parquet or JSON); a YAML file of kind run (simulated), or JSON of ``ridgeline train
        --json``.
    out
        File of the report, .html.
    seeds
        Runs with other chances, for a file of kind run.
    model
        Model file of the result, if the model is not in the catalogue.
    cluster
        Machine file of the result, if the machine is not in the catalogue.
    software
        Stack file of the result, if the stack is not in the catalogue.
    json
        Print what was written as JSON.
    """
    from ridgeline.html_report import report

    text = report(file, out, seeds=seeds or 1, model=model, cluster=cluster, software=software)
    if json:
        print_json({"file": file, "wrote": out, "size_bytes": len(text.encode())})
    else:
        console().print(f"wrote {out} ({len(text.encode()) / 1e6:.2g} MB)", soft_wrap=True)
