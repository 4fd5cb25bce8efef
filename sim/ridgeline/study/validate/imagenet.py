"""Whole runs on ImageNet: time to train, images a second, or how a run scales."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ridgeline.report.result import Result
from ridgeline.study.relative import EFFICIENCY
from ridgeline.study.validate import runs
from ridgeline.study.validate.outcome import Outcome, Skipped
from ridgeline.study.validate.rows import MeasuredRow

COLUMNS, SHIPPED = runs.COLUMNS, "imagenet.csv"


def predict(rows: Iterable[MeasuredRow]) -> Iterator[Outcome | Skipped]:
    """Predict the run of every row."""
    return runs.predict_runs(rows, "imagenet", _trivial)


def _trivial(row: MeasuredRow, result: Result, predicted: float) -> dict[str, float]:
    if row.text("quantity") == EFFICIENCY:
        return {"a third of the peak": 1.0}
    return runs.at_a_third(row, result, predicted)
