"""Baseline rows: scaling efficiency of several devices over rows of one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import resources
from pathlib import Path

from ridgeline.errors import RidgelineError
from ridgeline.study.import_rows import steps
from ridgeline.study.import_rows.names import device_in, find_name
from ridgeline.study.import_rows.normalised import setting, stack_of
from ridgeline.study.relative import EFFICIENCY
from ridgeline.study.validate.rows import MeasuredRow, read_rows
from ridgeline.study.written_fields import assignments, written

_SAME = ("suite", "system", "seq_len", "xla", "data", "unit")
_ONE = frozenset({"1", "1.0"})
_SHIPPED = "steps.csv"
_ANOMALY = "SOURCE ANOMALY"  # what collectors of tables write beside figures that cannot be
_INPUT = "input."  # of what feeds the several; one device waits for none
_COLUMNS = {"model": "model_fields", "software": "overrides"}


class Alone:
    """The rows of one device of a table, and behind them those that ship.

    A row of several devices is compared with one of the same table, network, framework, machine
    and format, and of these with the first that has the same batches; the same samples of a device
    at a time, if it can as many of all devices together; or these alone. Each is simulated as it
    is. Rows of its own source come first, those that ship last.
    """

    def __init__(self, rows: Iterable[MeasuredRow]) -> None:
        self._own = _keyed(rows)

    def beside(self, row: MeasuredRow) -> MeasuredRow | None:
        """Return the row to compare with, None if there is none."""
        several = row.whole("n_accel") or 1
        for known in (self._own, _shipped()):
            if key := next((key for key in _keys(row, several) if key in known), None):
                return known[key]
        return None

    def normal(self, row: MeasuredRow) -> dict[str, str]:
        """Return the step of a row; of several devices, its efficiency if there is a row of one.

        Raises
        ------
        RidgelineError
            If something is unknown or missing.
        """
        devices = row.whole("n_accel")
        if not devices:
            raise RidgelineError("the number of devices is not given")
        if devices == 1:
            return steps.normal(row)
        beside = self.beside(row)
        if any(_ANOMALY in each.values.get("note", "") for each in (row, beside or row)):
            raise RidgelineError("its table says that the source contradicts itself here")
        made, one = steps.normal(row), beside and beside.number("throughput")
        if beside is None or not one:
            return made
        alone = steps.normal(beside)
        return {
            **made,
            "quantity": EFFICIENCY,
            "measured": repr(float(made["measured"]) / (devices * one)),
            "unit": "",
            "one": _one(made, alone),
            "most_micro_batches": made["most_micro_batches"] or alone["most_micro_batches"],
            "relative_to": beside.id if beside.file == row.file else f"{beside.id}, which ships",
        }


def _one(made: Mapping[str, str], alone: Mapping[str, str]) -> str:
    """Write what is other on one device than on several, as ``--relative-to-one`` has it."""
    parts = [alone["plan"]]
    stack = stack_of(made["software"])
    for root, column in _COLUMNS.items():
        here, there = (dict(assignments(row[column])) for row in (made, alone))
        gone = sorted(here.keys() - there.keys()) if root == "software" else ()
        back = {path: setting(stack, path) for path in gone if not path.startswith(_INPUT)}
        other = {path: value for path, value in there.items() if here.get(path) != value}
        parts += [f"{root}.{part}" for part in written({**back, **other}).split(";") if part]
    measured = [f"measured={alone['measured']}"] if made["dataset"] else []
    return ";".join([*parts, f"machine={alone['machine']}", *measured])


def _keyed(rows: Iterable[MeasuredRow]) -> dict[tuple[object, ...], MeasuredRow]:
    """Find rows of one device by all that they may be compared by."""
    ones = [row for row in rows if row.text("n_accel") in _ONE]
    return {key: row for row in ones for key in _keys(row, 1)}


def _keys(row: MeasuredRow, devices: int) -> Iterator[tuple[object, ...]]:
    """By what a row is compared, the closest first."""
    of = (_names(row), *(row.text(name) for name in _SAME))
    batch, together = row.text("batch_per_accel"), _together(row, devices)
    alike: list[tuple[str, ...]] = [("batches", batch, row.text("grad_accum"))]
    if together:
        alike += [("both", batch, together), ("at a time", batch), ("together", together)]
    for same in alike:
        yield (*same, *of, row.text("source"))
        yield (*same, *of)


def _together(row: MeasuredRow, devices: int) -> str:
    """Return the samples of a step over all devices, "" if they are not given as numbers."""
    cells = (row.text("batch_per_accel"), row.text("grad_accum") or "1")
    if not all(cell.replace(".", "", 1).isdecimal() for cell in cells):
        return ""
    return f"{devices * float(cells[0]) * float(cells[1]):g}"


def _names(row: MeasuredRow) -> tuple[str | None, ...]:
    """Return the catalogue's names of network, framework, machine and format, where it has them."""
    model, variant = row.text("model"), row.text("variant")
    return (
        steps.network_of(model, variant, row.text("source")) or model,
        variant,
        steps.spelled_out(row.text("framework")).lower(),
        device_in(row.text("accelerator")) or row.text("accelerator"),
        find_name("precisions", row.text("precision")) or row.text("precision"),
    )


@cache
def _shipped() -> dict[tuple[object, ...], MeasuredRow]:
    data = resources.files("ridgeline.study.validate").joinpath("data", _SHIPPED)
    return _keyed(in_source_words(row) for row in read_rows(Path(str(data))))


def in_source_words(row: MeasuredRow) -> MeasuredRow:
    """Return a normalised row as its source has it."""
    said = {name: text for name, text in row.values.items() if text}
    named = {n.removeprefix("source_"): said[n] for n in said if n.startswith("source_")}
    return MeasuredRow(row.file, row.line, {**row.values, **named})
