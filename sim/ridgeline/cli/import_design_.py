"""``ridgeline import-design``: files of Timeloop, AccelForge and ZigZag as ridgeline's own."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from ridgeline.cli.output import console, print_json


def import_design_(
    *files: str,
    out: str | None = None,
    energy_table: str = "horowitz-45nm",
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Read hardware, workload and mapping of Timeloop, AccelForge or ZigZag.

    They become a device with its energy table, layers, and a mapping file for every layer. What
    cannot be said here, is said in another way, or had to be assumed, is printed with its line.

    Parameters
    ----------
    files
        Files of one design, in any order.
    out
        Folder to write ridgeline's files to.
    energy_table
        Energy table for energies that the files do not state.
    json
        Print the answer as JSON.
    """
    from ridgeline.study.import_design import import_design

    design = import_design(files, energy_table=energy_table)
    written = [] if out is None else design.write(out)
    commands = [] if out is None else design.commands(out)
    if json:
        print_json({**design.to_dict(), "written": written, "commands": commands})
        return
    screen = console()
    if design.device is not None:
        screen.print(str(design.device), soft_wrap=True, markup=False, emoji=False)
    for layer in design.layers:
        mapped = ", with a mapping" if layer.name in design.mappings else ""
        shown = " ".join(layer.arguments())
        screen.print(f"{layer.name}: {shown}{mapped}", soft_wrap=True, markup=False, emoji=False)
    for remark in design.remarks:
        screen.print(str(remark), soft_wrap=True, markup=False, emoji=False)
    for path in written:
        screen.print(f"written: {path}", soft_wrap=True, markup=False, emoji=False)
    for command in commands:
        screen.print(f"$ {command}", soft_wrap=True, markup=False, emoji=False)
