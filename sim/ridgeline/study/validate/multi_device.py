"""Training steps on several devices: how much of linear scaling is left.

A row of several devices is compared with a row of one device (`beside.Alone`): the efficiency is
throughput over (devices x throughput of one). What devices do is predicted of both rows. What hosts
prepare for them is a rate by itself, above which no more can be trained with, so that it is divided
by what was measured of one device. Where there is no row of one device, throughput itself is
predicted, which counts apart from efficiencies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ridgeline.study.validate import steps
from ridgeline.study.validate.beside import Alone
from ridgeline.study.validate.outcome import Outcome, Skipped, predict_each, skip
from ridgeline.study.validate.rows import Row
from ridgeline.study.validate.stated import stated, stated_step

COLUMNS = steps.COLUMNS
SHIPPED = steps.SHIPPED
_ANOMALY = "SOURCE ANOMALY"  # what collectors of tables write beside figures that cannot be


def predict(rows: Iterable[Row]) -> Iterator[Outcome | Skipped]:
    """Predict the efficiency of every row of several devices, or its throughput."""
    table = list(rows)
    alone = Alone(table)

    def one(row: Row) -> Outcome | Skipped | None:
        if (row.whole("n_accel") or 0) <= 1:
            return None
        beside = alone.beside(row)
        if any(_ANOMALY in each.values.get("note", "") for each in (row, beside or row)):
            return skip(row, "its table says that the source contradicts itself here")
        measured = row.number("throughput")
        if measured is None or measured <= 0:
            return skip(row, "no measured throughput")
        if beside is None or not beside.number("throughput"):
            return _throughput(row, measured)
        return _efficiency(row, beside, measured)

    return predict_each(table, one)


def _efficiency(row: Row, alone: Row, measured: float) -> Outcome:
    wanted, single = steps.configuration(row), steps.configuration(alone)
    predicted, _ = steps.predicted_throughput(row, wanted)
    predicted_one, _ = steps.predicted_throughput(alone, single)
    one = alone.number("throughput") or 0.0
    efficiency = min(
        predicted / (wanted.devices * predicted_one),
        steps.prepared_per_s(wanted) / (wanted.devices * one),
    )
    return _outcome(
        row,
        wanted,
        _relative_to(row, alone, single),
        quantity="scaling efficiency",
        predicted=efficiency,
        measured=measured / (wanted.devices * one),
        trivial={"linear scaling": 1.0},
        points=True,
        **stated("multi-device", efficiency),
    )


def _throughput(row: Row, measured: float) -> Outcome:
    wanted = steps.configuration(row)
    trained, rule_of_thumb = steps.predicted_throughput(row, wanted)
    predicted = min(trained, steps.prepared_per_s(wanted))
    result = steps.simulated(steps.shortened(wanted))
    return _outcome(
        row,
        wanted,
        quantity=row.text("unit"),
        predicted=predicted,
        measured=measured,
        trivial={"a third of the peak": rule_of_thumb},
        aside=True,
        **stated_step(result, predicted * result.step_time_s),
    )


def _relative_to(row: Row, alone: Row, single: steps.Configuration) -> str:
    """Say what an efficiency is relative to, where it is not the same batch in the same table."""
    own = alone.file == row.file
    same = all(alone.text(name) == row.text(name) for name in ("batch_per_accel", "grad_accum"))
    if own and same:
        return ""
    place = "" if own else f" ({alone.id}, which ships)"
    return f", relative to {single.batch} on one{place}"


def _outcome(row: Row, wanted: steps.Configuration, beside: str = "", **predicted: Any) -> Outcome:
    return Outcome(
        file=row.file,
        line=row.line,
        id=row.id,
        group=f"{wanted.model} {wanted.device} {row.text('suite')} {row.text('framework')}",
        sweep=f"{wanted.model} {wanted.device} {wanted.precision} {row.text('framework')}",
        configuration=f"{wanted}{beside}",
        source=row.text("source"),
        **predicted,
    )
