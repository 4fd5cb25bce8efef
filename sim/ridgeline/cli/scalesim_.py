"""``ridgeline scalesim``: SCALE-Sim's own files, read and answered in its own columns."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from ridgeline.cli.output import print_json


def scalesim_(
    config: str,
    topology: str,
    *,
    compat: str | None = None,
    output: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Count the cycles of the layers in a SCALE-Sim topology file.

    Prints the columns of COMPUTE_REPORT.csv. What docs/systolic.md calls wrong in SCALE-Sim is
    right here, unless --compat scalesim asks for its figures.

    Parameters
    ----------
    config
        SCALE-Sim's .cfg file.
    topology
        SCALE-Sim's topology .csv file, of convolutions or matrix products.
    compat
        scalesim: the figures that SCALE-Sim 3.0.0 gives.
    output
        File for the report instead of standard output.
    json
        Print the reports as JSON.
    """
    from dataclasses import asdict

    from ridgeline.kernels.systolic.scalesim_files import read_config, read_topology
    from ridgeline.kernels.systolic.scalesim_report import compute_report, layer_reports
    from ridgeline.report.files import write_text

    reports = layer_reports(read_config(config), read_topology(topology), compat)
    text = compute_report(reports)
    if output is not None:
        write_text(output, text)
    if json:
        print_json([asdict(report) for report in reports])
    elif output is None:
        sys.stdout.write(text)
