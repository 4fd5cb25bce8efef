"""What tells two things of one kind apart: ``ridgeline show A B``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ridgeline import catalog
from ridgeline.cli.output import console, print_json
from ridgeline.config import read_yaml
from ridgeline.errors import ConfigError

_OF_THE_FILE = frozenset({"name", "description", "title", "base", "citation"})
"""Fields that say what a file is, not what the thing is."""


def show_differences(kind: str, name: str, other: str, *, json: bool) -> None:
    """Print every field in which two things of a kind differ."""
    first, second = _fields(kind, name), _fields(kind, other)
    paths = dict.fromkeys([*first, *second])
    found = {
        path: (first.get(path), second.get(path))
        for path in paths
        if path not in _OF_THE_FILE and first.get(path) != second.get(path)
    }
    if json:
        print_json({path: {name: a, other: b} for path, (a, b) in found.items()})
        return
    from ridgeline.report.tables import plain_table

    screen = console()
    if not found:
        screen.print(f"{name} and {other} do not differ")
        return
    table = plain_table({"differs": "left", name: "left", other: "left"})
    for path, pair in found.items():
        table.add_row(path, *("" if value is None else value for value in pair))
    screen.print(table, markup=False)
    same = sum(1 for path in paths if path not in _OF_THE_FILE) - len(found)
    screen.print(f"{len(found)} fields differ, {same} are the same")


def _fields(kind: str, name: str) -> Mapping[str, str]:
    """Return the fields of a thing for people, by dotted path."""
    if kind == "software":
        return _of_stack(name)
    from ridgeline.cli.field_rows import field_rows

    return {path: value for path, value, *_ in field_rows(_data(kind, name), "")}


def _of_stack(name: str) -> dict[str, str]:
    from ridgeline.software.described import setting_rows
    from ridgeline.software.load import load_software

    stack = load_software(name)
    can = stack.supports.model_dump()
    return {
        "family": stack.family,
        "year": str(stack.year or ""),
        **{f"supports.{field}": ", ".join(names) or "all" for field, names in can.items()},
        **{row.path: row.text for row in setting_rows(stack)},
    }


def _data(kind: str, name: str) -> Any:
    """Return the plain values of a machine with those that it inherits, or of a network."""
    from ridgeline.hardware.load import description
    from ridgeline.workload.files import is_trace, load_network

    if kind == "datasets":
        return read_yaml(catalog.find(kind, name)).data
    if kind != "models":
        return description(kind, name).data
    if is_trace(name):
        raise ConfigError(f"{name} is a trace, whose ops are its own: show it alone")
    return dict(load_network(name).description)
