"""Tables of a documented form with odd cells: every row is predicted or skipped with its reason."""

from __future__ import annotations

import csv
import json
import math
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import RidgelineError
from ridgeline.study.validate import Outcome, find_suite, shipped, validate
from ridgeline.study.validate.rows import read_rows

ODD = ["", "N/A", "1,024", "256 GB", "-1", "0", "nan", "0.5", "images/sec", "1e30", "1e-320", "²"]
CHEAP = ["gemm", "conv", "rnn", "collectives", "convergence", "pipeline"]


def lines(suite: str) -> tuple[list[str], list[list[str]]]:
    with shipped(suite).open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    if suite in {"gemm", "conv", "rnn"}:
        kinds = {"rnn": ("lstm", "gru")}.get(suite, (suite,))
        rows = [row for row in rows if row[header.index("kind")] in kinds]
    return header, rows[:: max(1, len(rows) // 40)]


TABLES = {suite: lines(suite) for suite in CHEAP}


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_odd_cells_skip_their_row_and_no_other(data: st.DataObject) -> None:
    suite = data.draw(st.sampled_from(CHEAP))
    header, rows = TABLES[suite]
    good = data.draw(st.sampled_from(rows))
    odd = list(data.draw(st.sampled_from(rows)))
    for place in data.draw(st.lists(st.integers(0, len(header) - 1), min_size=1, max_size=3)):
        odd[place] = data.draw(st.sampled_from(ODD))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([header, good])
        alone = told(suite, path)
        with path.open("a", encoding="utf-8", newline="") as file:
            csv.writer(file).writerow(odd)
        both = told(suite, path)
    if (
        suite not in {"gemm", "conv", "rnn"}
        or odd[header.index("kind")] == good[header.index("kind")]
    ):
        assert {row["line"] for row in both} == {2, 3}
    assert [row for row in both if row["line"] == 2] == alone


def told(suite: str, path: Path) -> list[dict[str, object]]:
    """Return the rows of an answer, which must be plain JSON with finite errors."""
    answer = validate(suite, path).to_dict(rows=True)
    json.dumps(answer, allow_nan=False)
    for row in answer["rows"]:
        assert row.get("skipped") or math.isfinite(row["error"])
        row.pop("file")
    rows: list[dict[str, object]] = answer["rows"]
    return rows


@pytest.mark.parametrize("suite", ["single-device", "multi-device"])
def test_a_row_of_steps_that_cannot_be_read_is_listed(suite: str, tmp_path: Path) -> None:
    with shipped(suite).open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    place = {name: header.index(name) for name in ("n_accel", "throughput", "batch_per_accel")}
    one, two = [list(row) for row in rows if row[place["n_accel"]] == "1"][:2]
    one[place["throughput"]], two[place["n_accel"]] = "fast", "many"
    last = list(two)
    last[place["n_accel"]] = "2"
    last[place["batch_per_accel"]] = "32 GB"
    path = tmp_path / "rows.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, one, two, last])
    try:
        reasons = validate(suite, path).reasons
    except RidgelineError as error:  # where every row of the suite is unreadable
        reasons = {str(error): 1}
    assert any("expected a number" in reason for reason in reasons)


def test_tables_of_vtrain_are_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(
        "device,gpus,bytes,time_ns,busbw_GBps\n"
        "A100,8,1073741824,8000000,234.9\nA100,8,1024,many,1\n",
        encoding="utf-8",
    )
    made = validate("collectives", path)
    assert [o.line for o in made.outcomes] == [2]
    assert made.outcomes[0].measured == pytest.approx(234.9e9, rel=1e-3)
    assert [(s.line, s.unreadable) for s in made.skipped] == [(3, "time_ns")]


def test_steps_that_accumulate_long_are_simulated_in_part() -> None:
    rows = read_rows(shipped("single-device"))
    long = [row for row in rows if row.text("source_model") == "ELECTRA"]
    (row, *_) = (
        one for one in long if one.text("most_micro_batches") and "data" not in one.text("plan")
    )
    (made,) = find_suite("single-device").predict([row])
    assert isinstance(made, Outcome)
    assert made.p05 is not None
    assert made.p95 is not None
    assert made.p05 < made.predicted < made.p95
    assert "--most-micro-batches 8" in made.command
