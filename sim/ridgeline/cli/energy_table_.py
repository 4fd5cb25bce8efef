"""``ridgeline energy-table``: prices of events, with width, scope and source."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from ridgeline.cli.output import console, print_json


def energy_table_(
    name: str,
    *,
    relative_to: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Print an energy table: what each event costs, in which scope, and who says so.

    Parameters
    ----------
    name
        Name or file of an energy table.
    relative_to
        Name of an entry: print the cost of every other access as a multiple of it.
    json
        Print it as JSON.
    """
    from ridgeline.hardware import load_energy_table
    from ridgeline.report.tables import plain_table

    table = load_energy_table(name)
    rows = table.rows()
    for row in rows:
        row["access"], row["access_unit"] = table.access(row["entry"])
    if relative_to is not None:
        for row in rows:
            stated = row["width_bits"] is not None or row["entry"].startswith("flop.")
            row["ratio"] = table.ratio(row["entry"], relative_to) if stated else None
    if json:
        print_json({"name": table.name, "process_node_m": table.process_node, "entries": rows})
        return
    columns = {"event": "left", "energy": "right", "width": "right", "an access": "right"}
    if relative_to is not None:
        columns["ratio"] = "right"
    one_of = {name: {row[name] for row in rows} - {""} for name in ("process_node_nm", "voltage")}
    columns |= {"scope": "left", "source": "left"}
    shown = plain_table(columns)
    for column in (0, 1, 3):
        shown.columns[column].no_wrap = True
    for row in rows:
        ratio = [] if relative_to is None else [_times(row["ratio"])]
        shown.add_row(
            row["entry"],
            row["value"],
            "" if row["width_bits"] is None else f"{row['width_bits']} bit",
            _access(row),
            *ratio,
            row["scope"],
            _origin(row, one_of),
        )
    screen = console()
    nodes = one_of["process_node_nm"]
    same = [f"{n:g} nm" for n in nodes if n is not None and len(nodes) == 1]
    over = "" if relative_to is None else f"; ratio: over an access of {relative_to}"
    screen.print(f"{table.description}{_in_brackets(same)}{over}", markup=False)
    screen.print(shown)
    for short, citation in table.sources.items():
        screen.print(f"[{short}] {citation}", soft_wrap=True, markup=False)


def _access(row: dict[str, Any]) -> str:
    """Energy of one access of the stated width; of a relative price in multiply-accumulates."""
    from ridgeline.units import show

    if row["width_bits"] is None or row["value"].endswith("/mm"):
        return ""
    amount = row["access"]
    return show(amount, "J", 4) if row["access_unit"] == "J" else f"{amount / 2:g} MAC"


def _origin(row: dict[str, Any], one_of: dict[str, set[Any]]) -> str:
    """Say who states the price and how it came about; node and voltage where a table mixes them."""
    said = [row["basis"]]
    if row["process_node_nm"] is not None and len(one_of["process_node_nm"]) > 1:
        said.append(f"{row['process_node_nm']:g} nm")
    if row["voltage"]:
        said.append(row["voltage"])
    return f"{row['source']} ({', '.join(said)})"


def _times(ratio: float | None) -> str:
    if ratio is None:
        return ""
    return f"{ratio:,.0f}x" if ratio >= 1000 else f"{ratio:.4g}x"


def _in_brackets(words: list[str]) -> str:
    return f" ({', '.join(words)})" if words else ""
