"""Mean power of nodes while they train, from the wall or behind their supplies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ridgeline.study.validate import energy
from ridgeline.study.validate.outcome import Outcome, Skipped
from ridgeline.study.validate.rows import MeasuredRow

COLUMNS, SHIPPED = energy.COLUMNS, energy.SHIPPED


def predict(rows: Iterable[MeasuredRow]) -> Iterator[Outcome | Skipped]:
    """Predict the power of every row of a node; those of devices belong to `energy`."""
    return energy.predict(row for row in rows if energy.of_node(row) or row.text("skip"))
