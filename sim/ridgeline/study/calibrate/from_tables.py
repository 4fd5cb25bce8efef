"""A calibrated device (and node) from tables of measured kernels and collectives."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.errors import RidgelineError
from ridgeline.hardware.device import Device
from ridgeline.hardware.load import load_device, load_node
from ridgeline.study.calibrate import document, table_fit, table_links
from ridgeline.study.calibrate.kernel_tables import KernelTable, TableCall, kernel_table, read_table
from ridgeline.study.calibrate.table_document import describe_device, describe_node
from ridgeline.study.calibrate.table_fit import Residuals, TableFit, fit_tables
from ridgeline.study.calibrate.table_links import LinkFit

Parts = dict[str, dict[str, Residuals]]
"""Residuals by part ("fitted", "held out") and name of suite and format."""


@dataclass(frozen=True)
class TableCalibration:
    """What tables made of a device and of a node; either may be None.

    Attributes
    ----------
    fields, node_fields
        Of their files.
    time, power
        Residuals before and after, by part.
    """

    tables: tuple[KernelTable, ...]
    fit: TableFit | None
    links: LinkFit | None
    fields: Mapping[str, Any] | None
    node_fields: Mapping[str, Any] | None
    time: tuple[Parts, Parts] | None
    power: tuple[Parts, Parts] | None

    def write(self, device: Path, node: Path | None) -> list[Path]:
        """Write the files that were made, each whole or not at all; return which."""
        written = []
        for path, fields in ((device, self.fields), (node, self.node_fields)):
            if path is not None and fields is not None:
                document.write(path, fields, "Printed by ridgeline calibrate --from")
                written.append(path)
        return written

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "device": self.fields,
            "node": self.node_fields,
            "tables": [
                {"file": table.file, "kind": table.kind, "device": table.key,
                 "rows": len(table.calls), "skipped": dict(table.skipped)}
                for table in self.tables
            ],
            "parameters": [
                {"name": one.parameter.name, "unit": one.parameter.unit, "base": one.base,
                 "value": one.value, "rows": len(one.rows), "error_before": one.before,
                 "error_after": one.after}
                for one in (self.fit.found if self.fit else ())
            ],
            "time": _compared(self.time),
            "power": _compared(self.power),
            "collectives": _compared((self.links.before, self.links.after) if self.links else None),
        }  # fmt: skip


def _compared(both: tuple[Mapping[str, Mapping[str, Residuals]], ...] | None) -> dict[str, Any]:
    if both is None:
        return {}
    before, after = both
    return {
        part: {
            name: {
                "n": one.n,
                "before": {"median": one.median, "mean": one.mean, "bias": one.bias},
                "after": {
                    "median": after[part][name].median,
                    "mean": after[part][name].mean,
                    "bias": after[part][name].bias,
                },
            }
            for name, one in names.items()
        }
        for part, names in before.items()
    }


def _silent(_: str) -> None:
    return None


def calibrate_from(
    files: Sequence[str | Path],
    base: str,
    name: str,
    *,
    node: str | None = None,
    node_name: str = "",
    device_file: str | None = None,
    rows_of: str | None = None,
    said: Callable[[str], None] = _silent,
) -> TableCalibration:
    """Fit a device to tables of its kernels, and a node to tables of its collectives.

    Parameters
    ----------
    base
        The device whose description the calibrated one starts from.
    name, node_name
        Of what is described.
    node
        The node that collectives were measured in.
    device_file
        How the node's file names the device.
    rows_of
        What the tables call the device, where they have rows of several.

    Raises
    ------
    ConfigError
        With file, line and column of what cannot be read.
    RidgelineError
        If there are too few rows.
    """
    device = load_device(base)
    kernels: list[KernelTable] = []
    collectives: list[table_links.LinkCall] = []
    skipped: dict[str, int] = {}
    for file in files:
        rows = read_table(file)
        if table_links.are_collectives(rows):
            if node is None:
                raise RidgelineError(
                    f"{file} has collectives: say by --node which node they were measured in"
                )
            found, left = table_links.read_collectives(rows, load_node(node))
            collectives += found
            skipped = {why: skipped.get(why, 0) + n for why, n in left.items()} | skipped
        else:
            kernels.append(kernel_table(rows, base, rows_of))
    fit = links = fields = node_fields = time = power = None
    if kernels:
        said(f"{sum(len(table.calls) for table in kernels)} kernels")
        fit = fit_tables(device, kernels)
        fields = describe_device(name, base, fit)
        written = _as_written(name, fields)
        time = _both(fit.calls, device, written, power=False)
        power = _both(fit.calls, device, written, power=True)
    if node is not None and (collectives or skipped):
        said(f"{len(collectives)} collectives")
        links = table_links.fit_links(node, collectives, skipped)
        node_fields = describe_node(node_name, links, device_file if fields else None)
    return TableCalibration(tuple(kernels), fit, links, fields, node_fields, time, power)


def _as_written(name: str, fields: Mapping[str, Any]) -> Device:
    """Return the device as its file will give it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.yaml"
        document.write(path, fields, "provisional")
        return load_device(str(path))


def _both(
    calls: Sequence[TableCall], base: Device, made: Device, *, power: bool
) -> tuple[Parts, Parts] | None:
    parts = {
        part: [call for call in calls if call.is_held_out == are]
        for part, are in (("fitted", False), ("held out", True))
    }
    before, after = (
        {part: table_fit.residuals(ours, device, power=power) for part, ours in parts.items()}
        for device in (base, made)
    )
    return (before, after) if any(before.values()) else None
