"""Training steps on one device: samples or tokens a second."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ridgeline.report.result import Result
from ridgeline.study.validate import runs
from ridgeline.study.validate.normalised_rows import NormalRow
from ridgeline.study.validate.outcome import Outcome, Skipped
from ridgeline.study.validate.predicted_interval import PredictedInterval, stated_step
from ridgeline.study.validate.rows import MeasuredRow

COLUMNS, SHIPPED = runs.COLUMNS, "steps.csv"


def predict(rows: Iterable[MeasuredRow]) -> Iterator[Outcome | Skipped]:
    """Predict the throughput of every row of one device."""
    return runs.predict_steps(
        rows, runs.rate_at_a_third, _stated, keep=lambda row: not runs.many(row)
    )


def _stated(_: NormalRow, result: Result, predicted: float) -> PredictedInterval:
    return stated_step(result, predicted * result.step_time_s)
