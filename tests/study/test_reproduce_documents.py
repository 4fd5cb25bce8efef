"""Systems that the project's documents show: what each promises is kept, misses are as stated."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ridgeline.cli import execute
from ridgeline.study import reproduce as module
from ridgeline.study.reproduce import reproduce


@pytest.mark.parametrize(
    ("name", "promised", "missed"),
    [
        ("dark-memory", 15, set()),
        ("recursive-checkpointing", 8, set()),
        ("asynchronous-sgd", 18, set()),
        ("dgx-1", 7, set()),
        ("large-batches", 11, {"batch 32,768", "batch 4,096"}),
        (
            "deep-gradient-compression",
            4,
            {"1 Gb/s, compressed", "10 Gb/s, whole gradients"},
        ),
    ],
)
def test_promises_are_kept_but_for_those_that_are_said_to_be_missed(
    name: str, promised: int, missed: set[str]
) -> None:
    rows = [row for row in reproduce(name).rows if row.is_kept is not None]
    assert len(rows) == promised
    assert {row.quantity for row in rows if not row.is_kept} == missed


def test_what_is_sent_compressed_and_whole_differ_as_published() -> None:
    fast = {row.quantity: row.predicted for row in reproduce("deep-gradient-compression").rows}
    ratio = fast["1 Gb/s, compressed"] / fast["10 Gb/s, whole gradients"]
    assert ratio == pytest.approx(40 / 30, rel=0.15)


def test_slips_are_larger_than_what_is_right() -> None:
    found = {row.quantity: row for row in reproduce("slips").rows}
    wrong = found["256 GPUs: ResNet-50, 90 epochs, s"].residual
    right = found["1,024 GPUs: ResNet-50, 90 epochs, s"].residual
    assert wrong > 1
    assert abs(right) < 0.2
    assert found["an addition, pJ"].predicted == pytest.approx(0.18)
    assert all(row.tolerance is None for row in found.values())


def test_all_is_a_line_of_each(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = {name: module.REPRODUCTIONS[name] for name in ("dark-memory", "slips", "dgx-1")}
    monkeypatch.setattr(module, "REPRODUCTIONS", few)
    assert execute(["reproduce", "all"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in few)
    assert "22 of 22 residuals are within their tolerance" in text
    assert execute(["reproduce", "all", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == list(few)
    assert execute(["reproduce", "all", "--software", "pytorch"]) == 2


def test_a_summary_leaves_out_what_was_put_in() -> None:
    made = reproduce("dgx-1")
    put_in = replace(made, rows=tuple(replace(row, is_input=True) for row in made.rows))
    assert put_in.summary()["median_residual"] is None
    assert put_in.summary()["figures"] == len(made.rows)
