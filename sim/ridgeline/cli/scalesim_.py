"""``ridgeline scalesim``: SCALE-Sim's own files, read and answered in its own columns."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ridgeline.cli.output import print_json
from ridgeline.errors import RidgelineError
from ridgeline.verbosity import is_quiet

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ridgeline.kernels.systolic.scalesim_report import LayerReport

_HEADING = """Made of SCALE-Sim's configuration by ridgeline scalesim --device.
# What it does not state says so in its basis: clock, energy, idle power, the size of the DRAM.
# energy_table: asic-16nm in place of not-stated puts prices at 16 nm on it."""


def scalesim_(
    config: str,
    topology: str | None = None,
    *,
    compat: str | None = None,
    output: str | None = None,
    out: str | None = None,
    device: str | None = None,
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
        SCALE-Sim's topology .csv file: convolutions or matrix products.
    compat
        scalesim: report the figures of SCALE-Sim 3.0.0, stalls and DRAM words included.
    output
        File for the report, in place of standard output.
    out
        With --compat scalesim: folder for all reports that SCALE-Sim writes.
    device
        File to write the configuration to as a device in YAML; the topology may then be left out.
    json
        Print the reports as JSON.
    """
    from dataclasses import asdict

    from ridgeline.kernels.systolic.scalesim_files import read_config, read_topology
    from ridgeline.kernels.systolic.scalesim_report import (
        compute_report,
        layer_reports,
        report_files,
    )
    from ridgeline.report.files import make_folder, write_text

    if out is not None and compat != "scalesim":
        raise RidgelineError("--out writes SCALE-Sim's reports; it needs --compat scalesim")
    if topology is None and device is None:
        raise RidgelineError("give a topology file, or --device FILE to write the device alone")
    if device is not None:
        _write_device(config, device)
    if topology is None:
        return
    described = read_config(config)
    reports = layer_reports(described, read_topology(topology), compat)
    text = compute_report(reports)
    if output is not None:
        write_text(output, text)
    if out is not None:
        folder = make_folder(out)
        for name, content in report_files(described, reports).items():
            write_text(folder / name, content)
    if json:
        print_json([asdict(report) for report in reports])
    elif output is None and out is None:
        sys.stdout.write(text)
    for note in () if is_quiet() else (*described.notes, *_counted(reports)):
        print(f"note: {note}", file=sys.stderr)


def _counted(reports: Iterable[LayerReport]) -> list[str]:
    """Return the notes of layers, each once, with the layers that it is of."""
    first: dict[str, str] = {}
    found: Counter[str] = Counter()
    for report in reports:
        for note in report.notes:
            first.setdefault(note, report.layer)
            found[note] += 1
    return [
        f"{first[note]}{f' and {count - 1} more' if count > 1 else ''}: {note}"
        for note, count in found.items()
    ]


def _write_device(config: str, file: str) -> None:
    from ridgeline.hardware.load import load_device
    from ridgeline.hardware.scalesim import device_document
    from ridgeline.report.files import write_text
    from ridgeline.study.calibrate.document import as_yaml

    load_device(config)  # every field is checked before it is written
    write_text(file, as_yaml(device_document(config).data, _HEADING))
