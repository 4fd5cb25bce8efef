"""Whole runs and their power: steps whose rows name a quantity of them, perhaps times a number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from ridgeline.parallel.plan.text import make_plan, plan_fields
from ridgeline.report.result import Result
from ridgeline.study.validate import normalised_rows
from ridgeline.study.validate.normalised_rows import NormalRow
from ridgeline.study.validate.outcome import Outcome, Skipped, predict_each
from ridgeline.study.validate.predicted_interval import stated
from ridgeline.study.validate.rows import MeasuredRow

COLUMNS = normalised_rows.COLUMNS
_LABELS = {
    "scaling_efficiency": "scaling efficiency",
    "device_power_w": "power_w",
    "node_wall_w": "power_w",
    "node_supplied_w": "power_w",
}
_RATES = frozenset({"samples_per_s", "tokens_per_s"})
"""Quantities whose unit says what was counted."""
_THIRD = 1 / 3  # of the peak: what a rule of thumb expects of training

Trivial = Callable[[MeasuredRow, Result, float], Mapping[str, float]]
"""What trivial predictors say of a row, its step and what is predicted."""
Further = Callable[[NormalRow, Result, float], Mapping[str, Any]]
"""Further fields of an outcome, of a row, its step and what is predicted."""
Simulated = Callable[[NormalRow], Result]
"""How a row is simulated: together with those of the same step, or by itself."""
Keep = Callable[[MeasuredRow], bool]
"""Whether a row belongs to a suite."""


def predict_runs(
    rows: Iterable[MeasuredRow], suite: str, trivial: Trivial
) -> Iterator[Outcome | Skipped]:
    """Predict the quantity of every row."""

    def stated_of(step: NormalRow, result: Result, predicted: float) -> dict[str, Any]:
        kind = "node-power" if step.quantity.startswith("node_") else suite
        return {**stated(kind, predicted, device=result.details.cluster.device)}

    return predict_steps(rows, trivial, stated_of)


def predict_steps(
    rows: Iterable[MeasuredRow],
    trivial: Trivial,
    further: Further,
    *,
    keep: Keep = lambda _: True,
    simulated: Simulated = NormalRow.shared,
) -> Iterator[Outcome | Skipped]:
    """Predict the quantity of every row that a suite keeps."""
    one = partial(_one, trivial=trivial, further=further, simulated=simulated)
    return predict_each(rows, lambda row: one(row) if keep(row) else None)


def at_a_third(_: MeasuredRow, result: Result, predicted: float) -> dict[str, float]:
    """Return what a third of the peak makes of a time, or of images a second."""
    slower = result.mfu / _THIRD
    rate = predicted == result.samples_per_s
    return {"a third of the peak": predicted / slower if rate else predicted * slower}


def rate_at_a_third(_: MeasuredRow, result: Result, predicted: float) -> dict[str, float]:
    """Return what a third of the peak makes of a throughput."""
    return {"a third of the peak": predicted * _THIRD / result.mfu}


def many(row: MeasuredRow) -> bool:
    """Tell whether a row is of several devices."""
    if count := row.whole("n_accel") if "n_accel" in row.values else None:
        return count > 1
    return bool(row.text("plan")) and make_plan(plan_fields(row.text("plan"))).devices > 1


def _label(row: MeasuredRow, name: str, factor: str) -> str:
    """Return what errors are told apart by: the quantity, or the unit of a rate."""
    if name in _RATES:
        return row.text("unit") or name
    return "time_s" if factor and name == "step_time_s" else _LABELS.get(name, name)


def _one(row: MeasuredRow, *, trivial: Trivial, further: Further, simulated: Simulated) -> Outcome:
    row.check()
    step = NormalRow.of(row)
    measured = step.measured
    result = simulated(step)
    predicted = step.value(result)
    name, _, factor = step.quantity.partition("*")
    return Outcome(
        file=row.file,
        line=row.line,
        id=row.id,
        group=row.text("group") or f"{step.model} {step.machine} {step.software}",
        sweep=row.text("sweep") or f"{step.model} {step.machine}",
        configuration=f"{step.model}, {step.plan}, {step.machine}, {step.software}",
        quantity=_label(row, name, factor),
        predicted=predicted,
        measured=measured,
        source=row.text("source"),
        trivial=trivial(row, result, predicted),
        command=step.command(),
        **further(step, result, predicted),
    )
