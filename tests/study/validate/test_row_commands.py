"""Rows of kernels, collectives and runs: their commands repeat them, and raw rows become them."""

from __future__ import annotations

import importlib.util
import random
import shlex
from pathlib import Path
from types import ModuleType

import pytest

from ridgeline.cli import execute
from ridgeline.study.validate import SUITES, find_suite, shipped
from ridgeline.study.validate.outcome import Outcome
from ridgeline.study.validate.rows import MeasuredRow, read_rows

OF_RUNS = ("energy", "imagenet", "mlperf")
OF_STEPS = ("single-device", "multi-device", "llm", "memory")
ALONE = ("gemm", "conv", "rnn", "collectives", "pipeline", "convergence")
FEW_DEVICES = 64


def few(suite: str, count: int) -> list[Outcome]:
    """Return the outcomes of some rows of a suite, the same every time."""
    rows = [row for row in read_rows(shipped(suite)) if not row.text("skip") and is_small(row)]
    drawn = random.Random(suite).sample(rows, min(len(rows), 8 * count))
    made = (o for row in drawn for o in find_suite(suite).predict([row]) if isinstance(o, Outcome))
    return [outcome for outcome, _ in zip(made, range(count), strict=False)]


def is_small(row: MeasuredRow) -> bool:
    devices = row.whole("n_accel") if "n_accel" in row.values else None
    return not devices or devices <= FEW_DEVICES


@pytest.mark.parametrize("suite", [*ALONE, *OF_RUNS, *OF_STEPS])
def test_the_command_of_a_row_prints_its_prediction(
    suite: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = few(suite, 4 if suite in ALONE else 2)
    assert len(found) >= 2
    for outcome in found:
        program, *words = shlex.split(outcome.command)
        assert program == "ridgeline"
        assert execute(words) == 0, outcome.command
        assert capsys.readouterr().out == f"{outcome.predicted!r}\n", outcome.command


def importer() -> ModuleType:
    path = Path(__file__).parents[3] / "benchmarks" / "import" / "normalise.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "table",
    ["kernels", "share_alike/kernels", "collectives", "share_alike/collectives", "imagenet",
     "pipelines", "convergence", "steps", "memory"],
)  # fmt: skip
def test_shipped_rows_are_what_the_importer_makes_of_raw_ones(table: str, tmp_path: Path) -> None:
    script = importer()
    suite = script.SUITES[table]
    assert suite in SUITES
    script.write_csv(tmp_path / "made.csv", [row.values for row in script.normalised(table)])
    ships = shipped(suite).parent / f"{table}.csv"
    assert (tmp_path / "made.csv").read_bytes() == ships.read_bytes()


@pytest.mark.parametrize("table", ["power", "mlperf", "llm"])
def test_some_rows_of_runs_are_imported_as_they_ship(table: str) -> None:
    from ridgeline.study.import_rows import imported

    script = importer()
    suite, raw = script.SUITES[table], read_rows(script.HERE / "raw" / f"{table}.csv")
    ready = {row.line: row.values for row in read_rows(shipped(suite))}
    small = [row for row in raw if (row.whole("n_accel") or 99) <= 8]
    for row in imported(suite, random.Random(1).sample(small, 6)):
        known = ready[row.line]
        assert {name: text for name, text in row.values.items() if text}.items() <= known.items()


def test_one_row_alone_is_asked_for_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["validate", "pipeline", "--quantity", "error"], "--only"),
        (["validate", "--only", "pp-45"], "suite"),
        (["validate", "pipeline", "--only", "pp-0", "--quantity", "error"], "no row is called"),
        (["gemm", "8", "8", "8", "--device", "mi25", "--quantity", "time"], "'time_s'"),
    ):
        assert execute(words) == 2
        assert said in capsys.readouterr().err
