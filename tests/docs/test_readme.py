"""The README cannot rot: its commands run and its examples are the files beside it."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from ridgeline.cli import execute
from ridgeline.study.point import Point
from ridgeline.study.published_rows import residuals
from thoroughly import further

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
COMMANDS = [
    line.split("#")[0].removeprefix("$ ").strip()
    for line in README.splitlines()
    if line.startswith("$ ridgeline ")
]
(DEMO,) = re.findall(r"ridgeline (run .*--out out)", (ROOT / "Makefile").read_text("utf-8"))
ELSEWHERE = [  # what measures this machine runs once, as an example of its verb
    command
    for command in COMMANDS
    if command.startswith(("ridgeline calibrate", "ridgeline doctor"))
]


def test_there_are_commands() -> None:
    assert len(COMMANDS) >= 10


@pytest.mark.parametrize(
    "command", [*(c for c in COMMANDS if c not in ELSEWHERE), *further(*ELSEWHERE)]
)
def test_a_command_of_the_readme_runs(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "docs" / "examples", tmp_path / "docs" / "examples")
    monkeypatch.chdir(tmp_path)
    if "out/" in command:  # what `make demo` writes
        assert execute(shlex.split(DEMO)) == 0
    assert execute(shlex.split(command)[1:]) == 0


@pytest.mark.parametrize("name", ["hbm.yaml", "my-accelerator.yaml"])
def test_an_example_in_the_readme_is_the_file(name: str) -> None:
    lines = (ROOT / "docs" / "examples" / name).read_text().splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#"))
    assert text.strip() in README


def test_the_table_of_residuals_is_what_is_predicted() -> None:
    number = r"([\d,]+)"
    rows = re.findall(
        rf"\| (\d) GPUs?, (FP32|mixed precision), batch (\d+)[^|]*\| {number}[^|]*"
        rf"\| {number} \| (.)(\d+) %",
        README,
    )
    assert len(rows) == 4
    for gpus, precision, batch, measured, predicted, sign, percent in rows:
        point = Point(
            "resnet50",
            "dgx1-v100",
            {
                "data": int(gpus),
                "global_batch": int(gpus) * int(batch),
                "precision": "fp32" if precision == "FP32" else "fp16-mixed",
            },
        )
        result = point.simulate()
        known = [
            residual
            for residual in residuals(result)
            if residual.measurement.samples_per_s == float(measured.replace(",", ""))
        ]
        assert len(known) == 1
        assert round(known[0].predicted_samples_per_s) == int(predicted.replace(",", ""))
        error = round(100 * known[0].error)
        assert error == int(percent) * (-1 if sign == "−" else 1)
        assert abs(known[0].error) <= 0.25
