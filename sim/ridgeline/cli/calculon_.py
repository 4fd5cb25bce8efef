"""``ridgeline calculon``: Calculon's own files, read and simulated."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from ridgeline.cli.output import console, print_json, print_step
from ridgeline.cli.software import Software, one_stack


def calculon_(
    application: str,
    execution: str,
    system: str,
    *,
    like: str = "selene-a100",
    software: Software = None,
    output: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Simulate one training step that Calculon's three files describe.

    Prints what of the files has no counterpart here, field by field, and then the step.

    Parameters
    ----------
    application
        Calculon's application .json file (the model).
    execution
        Calculon's execution .json file (the plan).
    system
        Calculon's system .json file (the machine).
    like
        Machine of the catalogue whose energies and idle power are used: Calculon's files state
        none.
    output
        Folder to write the model and the machine to as YAML, for other verbs.
    json
        Print the result as JSON.
    """
    from ridgeline.study.calculon import read_calculon

    read = read_calculon(application, execution, system, like)
    if output is not None:
        read.write(output)
    stack = one_stack(software)
    result = read.simulate(stack)
    if json:
        print_json({**result.to_dict(), "remarks": list(read.remarks)})
        return
    screen = console()
    print_step(result, screen)
    for remark in read.remarks:
        screen.print(f"note: {remark}", soft_wrap=True, markup=False)
    if output is not None:
        screen.print(f"the same: {read.command(output, stack)}", soft_wrap=True, markup=False)
