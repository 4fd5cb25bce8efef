"""Which row of one device stands beside a row of several."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from importlib import resources
from pathlib import Path

from ridgeline.study.validate.frameworks import spelled_out
from ridgeline.study.validate.names import device_in, find_name, model_of
from ridgeline.study.validate.rows import Row, read_rows
from ridgeline.study.validate.steps import SHIPPED

_SAME = ("suite", "system", "seq_len", "xla", "data", "unit")
_ONE = frozenset({"1", "1.0"})


class Alone:
    """The rows of one device of a table, and behind them those that ship.

    A row of several devices is compared with one of the same table, network, framework, machine
    and format, and of these with the first that has the same batches; the same samples of a device
    at a time, if it can as many of all devices together; or these alone. Each is simulated as it
    is. Rows of its own source come first, those that ship last.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        self._own = _keyed(rows)

    def beside(self, row: Row) -> Row | None:
        """Return the row to compare with, None if there is none."""
        several = row.whole("n_accel") or 1
        for known in (self._own, _shipped()):
            if key := next((key for key in _keys(row, several) if key in known), None):
                return known[key]
        return None


def _keyed(rows: Iterable[Row]) -> dict[tuple[object, ...], Row]:
    """Find rows of one device by all that they may be compared by."""
    ones = [row for row in rows if row.text("n_accel") in _ONE]
    return {key: row for row in ones for key in _keys(row, 1)}


def _keys(row: Row, devices: int) -> Iterator[tuple[object, ...]]:
    """By what a row is compared, the closest first."""
    of = (_names(row), *(row.text(name) for name in _SAME))
    batch, together = row.text("batch_per_accel"), _together(row, devices)
    alike: list[tuple[str, ...]] = [("batches", batch, row.text("grad_accum"))]
    if together:
        alike += [("both", batch, together), ("at a time", batch), ("together", together)]
    for same in alike:
        yield (*same, *of, row.text("source"))
        yield (*same, *of)


def _together(row: Row, devices: int) -> str:
    """Return the samples of a step over all devices, "" if they are not given as numbers."""
    cells = (row.text("batch_per_accel"), row.text("grad_accum") or "1")
    if not all(cell.replace(".", "", 1).isdecimal() for cell in cells):
        return ""
    return f"{devices * float(cells[0]) * float(cells[1]):g}"


def _names(row: Row) -> tuple[str | None, ...]:
    """Return the catalogue's names of network, framework, machine and format, where it has them."""
    model, variant = row.text("model"), row.text("variant")
    return (
        model_of(model, variant, row.text("source")) or model,
        variant,
        spelled_out(row.text("framework")).lower(),
        device_in(row.text("accelerator")) or row.text("accelerator"),
        find_name("precisions", row.text("precision")) or row.text("precision"),
    )


@cache
def _shipped() -> dict[tuple[object, ...], Row]:
    data = resources.files("ridgeline.study.validate").joinpath("data", SHIPPED)
    return _keyed(read_rows(Path(str(data))))
