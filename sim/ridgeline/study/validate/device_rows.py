"""Rows of single kernels as (device, prediction, measurement): what fits across devices need.

rows = device_rows("gemm", "gemm_llm.csv")
for device, known, left_out in leave_one_out(rows, lambda row: row.device): ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ridgeline.study.validate import validate
from ridgeline.study.validate.outcome import Outcome


class DeviceRow(NamedTuple):
    """One prediction and its measurement, in SI units.

    Attributes
    ----------
    id, file
        Which row it is, so that a fit can name the rows that it used.
    source
        Repository and path that the row was measured for.
    roofline
        What the roofline says; not a number where the suite has none.
    """

    suite: str
    file: str
    id: str
    device: str
    format: str
    kind: str
    group: str
    source: str
    predicted: float
    measured: float
    roofline: float


def device_rows(suite: str, data: str | Path | None = None, processes: int = 1) -> list[DeviceRow]:
    """Predict the rows of a suite of single kernels; those that are skipped are left out.

    Parameters
    ----------
    data
        A table of measured kernels; by default the sample that ships.

    Raises
    ------
    RidgelineError
        As `validate`.
    """
    made = validate(suite, data, processes)
    return [_of(suite, outcome) for outcome in made.outcomes if outcome.device]


def _of(suite: str, outcome: Outcome) -> DeviceRow:
    return DeviceRow(
        suite,
        outcome.file,
        outcome.id,
        outcome.device,
        outcome.format,
        outcome.kind,
        outcome.group,
        outcome.source,
        outcome.predicted,
        outcome.measured,
        outcome.trivial.get("roofline", float("nan")),
    )


def leave_one_out(
    rows: Sequence[DeviceRow], name_of: Callable[[DeviceRow], str]
) -> Iterator[tuple[str, list[DeviceRow], list[DeviceRow]]]:
    """For each device (or source, or kind): its name, the rows of all others, and its own rows."""
    for name in sorted({name_of(row) for row in rows}):
        known = [row for row in rows if name_of(row) != name]
        yield name, known, [row for row in rows if name_of(row) == name]
