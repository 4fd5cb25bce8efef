"""How much training a target takes at some batch: what is data, and what is predicted.

No simulation says how a network learns. The measurements that ship are the data: of one task,
target and unit the amounts at other batches than the row's own, and those of other kinds of
measurement at any batch (reference points of MLPerf for its submissions). Predicted is the amount
at the row's batch, by the law of a critical batch size,

    amount(B) = amount_0 (1 + B / B_critical)

(McCandlish et al., "An empirical model of large-batch training", arXiv:1812.06162, equation 5.2,
at the learning rates that were best for each batch). Time to train follows from it and the step
time (suite ``imagenet``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

import numpy as np

from ridgeline.errors import RidgelineError
from ridgeline.study.validate.outcome import Outcome, Skipped, predict_each
from ridgeline.study.validate.predicted_interval import stated
from ridgeline.study.validate.rows import MeasuredRow, read_rows

COLUMNS = ("kind", "benchmark", "batch", "target", "counted", "measured", "source")
SHIPPED = "convergence.csv"
_REFERENCE = "MLPerf RCP"
_ANOTHER_UNIT = 8.0  # times off the median of a task, a logged number counts something else


@dataclass(frozen=True, slots=True)
class ConvergencePoint:
    """A measured amount of training to a target."""

    kind: str
    batch: int
    amount: float


def predict(rows: Iterable[MeasuredRow]) -> Iterator[Outcome | Skipped]:
    """Predict the amount of training of every row that says how much reached a target."""
    return predict_each(rows, _one)


def critical_batch(points: Sequence[ConvergencePoint]) -> tuple[float, float]:
    """Fit the law to points, by least squares of relative errors.

    Returns
    -------
    amount_0, slope
        amount(B) = amount_0 + slope B, both at least 0; B_critical is amount_0 over slope. Points
        of one batch give a constant.

    Raises
    ------
    RidgelineError
        If there is no point.
    """
    if not points:
        raise RidgelineError("no measurement of the task at another batch")
    batch = np.array([p.batch for p in points], np.float64)
    amount = np.array([p.amount for p in points])
    weight = 1.0 / amount
    mean = float(weight.sum() / (weight**2).sum())  # of least relative squares
    if np.ptp(batch) == 0:
        return mean, 0.0
    design = np.stack([weight, batch * weight], axis=1)
    offset, slope = np.linalg.lstsq(design, np.ones(len(points)), rcond=None)[0]
    if slope <= 0:
        return mean, 0.0
    if offset <= 0:  # as many steps at any batch
        scaled = batch * weight
        return 0.0, float(scaled.sum() / (scaled**2).sum())
    return float(offset), float(slope)


def reference_amount(benchmark: str, batch: int, unit: str) -> float | None:
    """Return how much MLPerf's reference runs needed at a batch, by the law above, or None."""
    points = [
        point
        for (name, _, counted), known in known_points().items()
        for point in known
        if (name, counted, point.kind) == (benchmark, unit, _REFERENCE)
    ]
    if not points:
        return None
    amount_0, slope = critical_batch(points)
    return amount_0 + slope * batch


def is_another_unit(amount: float, typical: float) -> bool:
    """Tell whether a logged number must count something else than what is typical of its task."""
    return not 1 / _ANOTHER_UNIT < amount / typical < _ANOTHER_UNIT


def _one(row: MeasuredRow) -> Outcome:
    row.check()
    key, point = _key(row), _point(row)
    points = known_points().get(key, ())
    if points and not _near(point, points):
        raise RidgelineError("its number is not of the unit of other rows of the task")
    known = [p for p in points if p.kind != point.kind or p.batch != point.batch]
    amount_0, slope = critical_batch(known)
    predicted = amount_0 + slope * point.batch
    benchmark, target, unit = key
    batches = len({p.batch for p in known})
    return Outcome(
        file=row.file,
        line=row.line,
        id=row.id,
        group=f"{benchmark} {row.text('kind')}",
        sweep=f"{benchmark} {target} {row.text('kind')}",
        configuration=f"{benchmark} to {target}, batch {point.batch}, from {batches} other batches",
        quantity=unit,
        predicted=predicted,
        measured=point.amount,
        source=row.text("source"),
        trivial={"as at other batches": float(np.mean([p.amount for p in known]))},
        command=row.command("convergence"),
        **stated("convergence", predicted),
    )


def _point(row: MeasuredRow) -> ConvergencePoint:
    batch, amount = row.whole("batch"), row.number("measured")
    if not batch or not amount:
        raise RidgelineError("the batch or the amount is not given")
    return ConvergencePoint(row.text("kind"), batch, amount)


def _key(row: MeasuredRow) -> tuple[str, str, str]:
    return row.text("benchmark"), row.text("target"), row.text("counted")


@cache
def known_points() -> Mapping[tuple[str, str, str], tuple[ConvergencePoint, ...]]:
    """Return all points that ship, by task, target and unit."""
    path = Path(str(resources.files("ridgeline.study.validate").joinpath("data", SHIPPED)))
    found: dict[tuple[str, str, str], list[ConvergencePoint]] = {}
    for row in read_rows(path):
        if not row.text("skip"):
            found.setdefault(_key(row), []).append(_point(row))
    return {key: tuple(p for p in points if _near(p, points)) for key, points in found.items()}


def _near(point: ConvergencePoint, points: Sequence[ConvergencePoint]) -> bool:
    """Tell whether an amount can be in the same unit as others of the task."""
    typical = float(np.median([p.amount for p in points]))
    return not is_another_unit(point.amount, typical)
