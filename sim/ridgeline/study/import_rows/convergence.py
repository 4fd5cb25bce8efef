"""How much training a target takes, by tables of MLPerf's and others' runs."""

from __future__ import annotations

from ridgeline.study.import_rows.runs import renamed
from ridgeline.study.validate.rows import MeasuredRow

READS = ("kind", "task", "batch_size", "target", "metric", "mean", "unit", "source")
_UNITS = {
    "epochs": "epochs",
    "last logged epoch_num": "epochs",
    "sequences": "samples",
    "samples": "samples",
    "last logged samples_count": "samples",
    "tokens": "tokens",
}
_TO_TARGET = ("to_converge", "epochs_to_target", "epochs_or_samples_to_target")


def normal(row: MeasuredRow) -> dict[str, str]:
    """Return what was trained to a target, in which unit."""
    unit = _UNITS.get(row.text("unit"))
    if unit is None:
        return {"skip": f"the unit {row.text('unit') or '(none)'} is not one of training"}
    if not row.text("metric").startswith(_TO_TARGET):
        return {"skip": f"not an amount of training to a target: {row.text('metric')}"}
    if "outlier" in row.values.get("note", ""):
        return {"skip": "its source calls it an error"}
    batch, amount = row.whole("batch_size"), row.number("mean")
    if not batch or not amount or amount <= 0:
        return {"skip": "the batch is not given, or the target was not reached"}
    return {
        "benchmark": renamed(row.text("task"), row.text("rounds").split(";")[0]),
        "batch": str(batch),
        "counted": unit,
        "measured": repr(amount),
    }
