"""What rows of several devices are compared with, and what is predicted where there is nothing."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from ridgeline.study.import_rows import steps
from ridgeline.study.import_rows.baseline_rows import Alone, in_source_words
from ridgeline.study.validate import multi_device, shipped, validate
from ridgeline.study.validate.outcome import Outcome
from ridgeline.study.validate.rows import MeasuredRow, read_rows

COLUMNS = (*steps.READS, "system", "nodes", "grad_accum", "seq_len", "xla", "data")


def row(line: int, **fields: str) -> MeasuredRow:
    values = {
        **dict.fromkeys(COLUMNS, ""), "suite": "any", "framework": "PyTorch", "model": "lenet5",
        "accelerator": "V100", "n_accel": "1", "batch_per_accel": "256", "precision": "fp32",
        "throughput": "1000", "unit": "images/s", "source": "here",
    }  # fmt: skip
    return MeasuredRow("table.csv", line, {**values, **fields})


EIGHT = {"n_accel": "8", "batch_per_accel": "32", "grad_accum": "2"}
ALIKE = [
    {"batch_per_accel": "32", "grad_accum": "2"},
    {"batch_per_accel": "32", "grad_accum": "2", "source": "elsewhere"},
    {"batch_per_accel": "32", "grad_accum": "16"},
    {"batch_per_accel": "32", "grad_accum": "4"},
    {"batch_per_accel": "512"},
]
UNLIKE = [
    {"batch_per_accel": "64"},
    {"batch_per_accel": "32", "grad_accum": "2", "precision": "amp"},
    {"batch_per_accel": "32", "grad_accum": "2", "model": "alexnet"},
    {"batch_per_accel": "32", "grad_accum": "2", "accelerator": "P100"},
    {"batch_per_accel": "32", "grad_accum": "2", "data": "synthetic"},
]


@pytest.mark.parametrize("closest", range(len(ALIKE) + 1))
def test_the_closest_row_of_one_device_stands_beside_a_row(closest: int) -> None:
    table = [row(n, **fields) for n, fields in enumerate([*ALIKE[closest:], *UNLIKE])]
    found = Alone(reversed(table)).beside(row(99, **EIGHT))
    assert (found and found.line) == (0 if closest < len(ALIKE) else None)


def test_machines_and_networks_may_be_called_otherwise() -> None:
    alone = row(2, accelerator="V100-SXM2-16GB", model="LeNet-5", framework="torch")
    assert Alone([alone]).beside(row(3, n_accel="8")) is alone


def only_several(tmp_path: Path, **changed: str) -> tuple[Path, dict[str, str]]:
    """Write a table of one row of eight devices, whose row of one device ships."""
    rows = [one for one in read_rows(shipped("multi-device")) if one.text("n_accel") == "8"]
    words = [{name: in_source_words(one).text(name) for name in ("id", *COLUMNS)} for one in rows]
    chosen = next(one for one in words if one["model"] == "RN50v1.5" and one["precision"] == "tf32")
    path = tmp_path / "rows.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(chosen))
        writer.writeheader()
        writer.writerow({**chosen, **changed})
    return path, chosen


def test_rows_of_one_device_that_ship_stand_beside_a_table_without(tmp_path: Path) -> None:
    path, chosen = only_several(tmp_path)
    (made,) = validate("multi-device", path).outcomes
    rows = [one for one in read_rows(shipped("multi-device")) if one.id == chosen["id"]]
    (same,) = multi_device.predict(rows)
    assert isinstance(same, Outcome)
    assert (made.predicted, made.measured) == (same.predicted, same.measured)
    assert made.command == same.command


def test_throughput_is_predicted_where_one_device_was_not_measured(tmp_path: Path) -> None:
    path, chosen = only_several(tmp_path, suite="a table of mine")
    result = validate("multi-device", path)
    (made,) = result.outcomes
    assert (made.quantity, made.aside, made.points) == ("images/s", True, False)
    assert made.measured == float(chosen["throughput"])
    assert made.error == pytest.approx(made.predicted / made.measured - 1)
    assert made.p05 is not None
    assert made.p95 is not None
    assert made.p05 < made.predicted < made.p95
    assert result.summary.n == 1


def test_throughputs_count_apart_from_efficiencies(tmp_path: Path) -> None:
    lines = [
        ",".join(COLUMNS),
        *(
            ",".join(
                row(0, n_accel=n, batch_per_accel=batch, throughput=rate).text(c) for c in COLUMNS
            )
            for n, batch, rate in (("1", "64", "900"), ("8", "64", "7000"), ("8", "32", "1"))
        ),
    ]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(lines), encoding="utf-8")
    made = validate("multi-device", path)
    assert made.summary.n == 1
    assert {name: one.n for name, one in made.by_quantity.items()} == {
        "images/s": 1, "scaling efficiency": 1,
    }  # fmt: skip
    assert made.summary == made.by_quantity["scaling efficiency"]
