"""``ridgeline list``: the catalogue."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from ridgeline import catalog
from ridgeline.cli.output import console, print_json
from ridgeline.config import read_yaml
from ridgeline.errors import ConfigError, nearest
from ridgeline.report.tables import plain_table


def list_(
    kind: str | None = None, *, json: Annotated[bool, Parameter(negative="")] = False
) -> None:
    """List the shipped models and machines.

    Parameters
    ----------
    kind
        models, datasets, devices, nodes, clusters, energy, components or software; by default all.
    json
        Print the names as JSON.
    """
    if kind is not None and kind not in catalog.FOLDERS:
        known = ", ".join(catalog.FOLDERS)
        raise ConfigError(f"there is no list of {kind!r}{nearest(kind, catalog.FOLDERS)} ({known})")
    kinds = [kind] if kind else list(catalog.FOLDERS)
    if json:
        print_json({k: catalog.names(k) for k in kinds})
        return
    rows = plain_table({"kind": "left", "name": "left", "what it is": "left"})
    for each in kinds:
        for name in catalog.names(each):
            data = read_yaml(catalog.find(each, name)).data
            rows.add_row(each, name, str(data.get("title") or data.get("description") or ""))
    console().print(rows)
