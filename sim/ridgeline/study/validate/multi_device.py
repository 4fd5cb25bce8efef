"""Training steps on several devices: how much of linear scaling is left.

A row of several devices is compared with the row of one device of the same source, network,
precision and batch a device: the efficiency is throughput over (devices x throughput of one). Where
a source has several tables of the same, that of the row's own table is taken. What devices do is
predicted of both rows. What hosts prepare for them is a rate by itself, above which no more can be
trained with, so that it is divided by what was measured of one device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ridgeline.study.validate import steps
from ridgeline.study.validate.outcome import Outcome, Skipped, predict_each, skip
from ridgeline.study.validate.rows import Row
from ridgeline.study.validate.stated import stated

COLUMNS = steps.COLUMNS
SHIPPED = steps.SHIPPED
_SAME = (
    "suite", "framework", "model", "variant", "accelerator", "system", "batch_per_accel",
    "grad_accum", "seq_len", "precision", "xla", "data", "unit",
)  # fmt: skip
_ONE = frozenset({"1", "1.0"})
_ANOMALY = "SOURCE ANOMALY"  # what collectors of tables write beside figures that cannot be


def predict(rows: Iterable[Row]) -> Iterator[Outcome | Skipped]:
    """Predict the efficiency of every row of several devices."""
    table = list(rows)
    ones = [row for row in table if row.text("n_accel") in _ONE]
    alone = {_key(row): row for row in ones}
    of_table = {(*_key(row), row.text("source")): row for row in ones}

    def one(row: Row) -> Outcome | Skipped | None:
        several = (row.whole("n_accel") or 0) > 1
        key = _key(row)
        beside = of_table.get((*key, row.text("source")), alone.get(key))
        return _efficiency(row, beside) if several else None

    return predict_each(table, one)


def _key(row: Row) -> tuple[str, ...]:
    return tuple(row.text(name) for name in _SAME)


def _efficiency(row: Row, alone: Row | None) -> Outcome | Skipped:
    if alone is None:
        return skip(row, "no measurement of one device beside it")
    if _ANOMALY in alone.values.get("note", "") or _ANOMALY in row.values.get("note", ""):
        return skip(row, "its table says that the source contradicts itself here")
    measured, one = row.number("throughput"), alone.number("throughput")
    if not measured or not one:
        return skip(row, "no measured throughput")
    wanted = steps.configuration(row)
    predicted, _ = steps.predicted_throughput(row, wanted)
    predicted_one, _ = steps.predicted_throughput(alone, steps.configuration(alone))
    efficiency = min(
        predicted / (wanted.devices * predicted_one),
        steps.prepared_per_s(wanted) / (wanted.devices * one),
    )
    return Outcome(
        file=row.file,
        line=row.line,
        id=row.id,
        group=f"{wanted.model} {wanted.device} {row.text('suite')} {row.text('framework')}",
        sweep=f"{wanted.model} {wanted.device} {wanted.precision} {row.text('framework')}",
        configuration=str(wanted),
        quantity="scaling efficiency",
        predicted=efficiency,
        measured=measured / (wanted.devices * one),
        source=row.text("source"),
        trivial={"linear scaling": 1.0},
        points=True,
        **stated("multi-device", efficiency),
    )
