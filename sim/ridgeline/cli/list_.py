"""``ridgeline list``: the catalogue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ridgeline import catalog
from ridgeline.cli.output import console, print_json
from ridgeline.errors import ConfigError, nearest
from ridgeline.units import show

if TYPE_CHECKING:
    from ridgeline.study.catalog_search import CatalogEntry

_COUNTS = (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3))


def list_(
    kind: str | None = None,
    *,
    search: str = "",
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """List the shipped models and machines, with parameters, memory and year.

    Parameters
    ----------
    kind
        models, datasets, devices, nodes, clusters, energy, components or software; by default all.
    search
        Words of names, titles and families, and comparisons of parameters, memory, year, devices or
        power: "moe > 100B", "nvidia memory >= 80 GB year > 2020".
    json
        Print the names as JSON.
    """
    if kind is not None and kind not in catalog.FOLDERS:
        known = ", ".join(catalog.FOLDERS)
        raise ConfigError(f"there is no list of {kind!r}{nearest(kind, catalog.FOLDERS)} ({known})")
    kinds = [kind] if kind else list(catalog.FOLDERS)
    if json and not search:
        print_json({k: catalog.names(k) for k in kinds})
        return
    from ridgeline.study.catalog_search import search_catalog

    found = search_catalog(search, *kinds)
    if json:
        print_json({k: [e.name for e in found if e.kind == k] for k in kinds})
        return
    _print(found)
    if search:
        console().print(f"{len(found)} found")


def _print(found: list[CatalogEntry]) -> None:
    from ridgeline.report.tables import plain_table

    rows = [
        {
            "kind": entry.kind,
            "name": entry.name,
            "parameters": "" if entry.parameters is None else _count(entry.parameters),
            "devices": "" if entry.devices in {None, 1} else f"{entry.devices:,}",
            "memory": "" if entry.memory_bytes is None else show(entry.memory_bytes, "B", 3),
            "year": str(entry.year or ""),
            "what it is": entry.title,
        }
        for entry in found
    ]
    shown = [name for name in rows[0] if any(row[name] for row in rows)] if rows else []
    right = {"parameters", "devices", "memory", "year"}
    table = plain_table({name: "right" if name in right else "left" for name in shown})
    for row in rows:
        table.add_row(*(row[name] for name in shown))
    if rows:
        console().print(table, markup=False)


def _count(value: int) -> str:
    """Write a number of parameters as people say it: 175B."""
    letter, size = next(((s, n) for s, n in _COUNTS if value >= n), ("", 1.0))
    return f"{value / size:.3g}{letter}" if letter else str(value)
