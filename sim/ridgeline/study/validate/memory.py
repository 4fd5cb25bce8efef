"""Memory of training steps of transformers: the fullest device at its fullest moment.

A row may state a part of it, or that a step did not fit (``fits``): then whether we see that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ridgeline.report.result import Result
from ridgeline.study.validate import runs
from ridgeline.study.validate.normalised_rows import NormalRow
from ridgeline.study.validate.outcome import Outcome, Skipped
from ridgeline.study.validate.predicted_interval import stated
from ridgeline.study.validate.rows import MeasuredRow

COLUMNS, SHIPPED = runs.COLUMNS, "memory.csv"
_BYTES = 16  # of a parameter: the trivial predictor
_FITS, _TOTAL = "fits", "memory_bytes.total"


def predict(rows: Iterable[MeasuredRow]) -> Iterator[Outcome | Skipped]:
    """Predict the memory of every row that states one."""
    return runs.predict_steps(rows, _trivial, _further, simulated=NormalRow.simulate)


def _trivial(row: MeasuredRow, result: Result, _: float) -> dict[str, float]:
    quantity, _star, parameters = row.text("quantity").partition("*")
    if quantity == _FITS or row.text("unit") == "":
        return {}
    plan = result.details.plan
    shared = plan.data if parameters else plan.tensor * plan.pipeline
    count = float(parameters) if parameters else result.details.graph.parameters
    return {"16 bytes a parameter": _BYTES * count / shared}


def _further(step: NormalRow, result: Result, predicted: float) -> dict[str, Any]:
    full = step.quantity == _FITS
    return {
        "points": full,
        "verdict": result.fits != full if step.quantity in {_FITS, _TOTAL} else None,
        **stated("verdict" if full else "memory", predicted, device=result.details.cluster.device),
    }
