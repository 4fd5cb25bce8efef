"""Training steps on several devices: how much of linear scaling is left.

A row of several devices states the efficiency: throughput over (devices x throughput of one), where
there is a row of one device; else throughput itself, which counts apart from efficiencies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ridgeline.report.result import Result
from ridgeline.study.relative import EFFICIENCY
from ridgeline.study.validate import runs
from ridgeline.study.validate.normalised_rows import NormalRow
from ridgeline.study.validate.outcome import Outcome, Skipped
from ridgeline.study.validate.predicted_interval import stated, stated_step
from ridgeline.study.validate.rows import MeasuredRow

COLUMNS, SHIPPED = runs.COLUMNS, "steps.csv"


def predict(rows: Iterable[MeasuredRow]) -> Iterator[Outcome | Skipped]:
    """Predict the efficiency of every row of several devices, or its throughput."""
    return runs.predict_steps(rows, _trivial, _further, keep=runs.many)


def _trivial(row: MeasuredRow, result: Result, predicted: float) -> dict[str, float]:
    if row.text("quantity") == EFFICIENCY:
        return {"linear scaling": 1.0}
    return dict(runs.rate_at_a_third(row, result, predicted))


def _further(step: NormalRow, result: Result, predicted: float) -> dict[str, Any]:
    if step.quantity == EFFICIENCY:
        return {"points": True, **stated("multi-device", predicted)}
    return {"aside": True, **stated_step(result, predicted * result.step_time_s)}
