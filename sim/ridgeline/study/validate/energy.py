"""Mean power of devices and nodes while they train (`ridgeline.report.power`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ridgeline.report.result import Result
from ridgeline.study.validate import runs
from ridgeline.study.validate.outcome import Outcome, Skipped
from ridgeline.study.validate.rows import MeasuredRow

COLUMNS = runs.COLUMNS
SHIPPED = "power.csv"
NODES = "node-power"
"""The kind of what is stated of a node: a wall in a room errs otherwise than a sensor on a chip."""
_NODE_W = 7000.0  # of the trivial predictor: a node of eight H100
_SHARE = 0.78  # of the power limit: the other


def predict(rows: Iterable[MeasuredRow]) -> Iterator[Outcome | Skipped]:
    """Predict the power of every row that is a training step."""
    return runs.predict_runs(rows, "energy", _trivial)


def of_node(row: MeasuredRow) -> bool:
    """Tell whether the power of a whole node was measured."""
    return row.text("quantity").startswith("node_")


def _trivial(row: MeasuredRow, result: Result, _: float) -> dict[str, float]:
    if of_node(row):
        return {"7 kW": _NODE_W} if result.details.cluster.nodes.count == 8 else {}
    limit_w = row.number("limit_w") if "limit_w" in row.values else None
    return {"78 % of the limit": _SHARE * limit_w} if limit_w else {}
