"""Training steps of large language models under hybrid plans: the time of a step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ridgeline.report.result import Result
from ridgeline.study.validate import runs
from ridgeline.study.validate.normalised_rows import NormalRow
from ridgeline.study.validate.outcome import Outcome, Skipped
from ridgeline.study.validate.predicted_interval import PredictedInterval, stated_step
from ridgeline.study.validate.rows import MeasuredRow

COLUMNS, SHIPPED = runs.COLUMNS, "llm.csv"
_SHARE = 0.41  # of the peak: the trivial predictor


def predict(rows: Iterable[MeasuredRow]) -> Iterator[Outcome | Skipped]:
    """Predict the step time of every row."""
    return runs.predict_steps(rows, _trivial, _stated, simulated=NormalRow.simulate)


def _trivial(_: MeasuredRow, result: Result, predicted: float) -> dict[str, float]:
    return {"41 % of the peak": predicted * result.mfu / _SHARE}


def _stated(_: NormalRow, result: Result, __: float) -> PredictedInterval:
    return stated_step(result)
