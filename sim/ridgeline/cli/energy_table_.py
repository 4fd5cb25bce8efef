"""``ridgeline energy-table``: prices of events, with width, scope and source."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from ridgeline.cli.output import console, print_json


def energy_table_(name: str, *, json: Annotated[bool, Parameter(negative="")] = False) -> None:
    """Print an energy table: what each event costs, in which scope, and who says so.

    Parameters
    ----------
    name
        Name or file of an energy table.
    json
        Print it as JSON.
    """
    from ridgeline.hardware import load_energy_table
    from ridgeline.report.summary import plain_table

    table = load_energy_table(name)
    if json:
        print_json(
            {"name": table.name, "process_node_m": table.process_node, "entries": table.rows()}
        )
        return
    rows = plain_table(
        {"event": "left", "energy": "right", "width": "right", "scope": "left", "basis": "left",
         "source": "left"}
    )  # fmt: skip
    for row in table.rows():
        width = "" if row["width_bits"] is None else f"{row['width_bits']} bit"
        rows.add_row(row["entry"], row["value"], width, row["scope"], row["basis"], row["source"])
    screen = console()
    screen.print(f"{table.description} ({table.process_node * 1e9:g} nm)", markup=False)
    screen.print(rows)
    for short, citation in table.sources.items():
        screen.print(f"[{short}] {citation}", soft_wrap=True, markup=False)
