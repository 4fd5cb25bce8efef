"""Training steps on one device: samples or tokens a second."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ridgeline.study.validate import steps
from ridgeline.study.validate.outcome import Outcome, Skipped, predict_each, skip
from ridgeline.study.validate.rows import Row
from ridgeline.study.validate.stated import stated_step

COLUMNS = steps.COLUMNS
SHIPPED = steps.SHIPPED


def predict(rows: Iterable[Row]) -> Iterator[Outcome | Skipped]:
    """Predict the throughput of every row of one device."""
    return predict_each(rows, _step)


def _step(row: Row) -> Outcome | Skipped | None:
    devices = row.whole("n_accel")
    if not devices:
        return skip(row, "the number of devices is not given")
    if devices != 1:
        return None
    measured = row.number("throughput")
    if measured is None or measured <= 0:
        return skip(row, "no measured throughput")
    wanted = steps.configuration(row)
    predicted, rule_of_thumb = steps.predicted_throughput(row, wanted)
    result = steps.simulated(wanted)
    return Outcome(
        file=row.file,
        line=row.line,
        id=row.id,
        group=f"{wanted.model} {wanted.device} {row.text('suite')}",
        sweep=f"{wanted.device} {wanted.precision} {row.text('suite')}",
        configuration=str(wanted),
        quantity=row.text("unit"),
        predicted=predicted,
        measured=measured,
        source=row.text("source"),
        trivial={"a third of the peak": rule_of_thumb},
        **stated_step(result, predicted * result.step_time_s),
    )
