"""Pages on generation and reinforcement learning: commands run, residuals are the suite's."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from ridgeline.cli import execute
from ridgeline.study.validate import find_suite, shipped
from ridgeline.study.validate.outcome import Outcome
from ridgeline.study.validate.rows import read_rows

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "generation.md").read_text("utf-8")
LEARNING = (DOCS / "reinforcement-learning.md").read_text("utf-8")
COMMANDS = [
    line.removeprefix("$ ")
    for line in (PAGE + LEARNING).splitlines()
    if line.startswith("$ ridgeline ")
]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_run(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(DOCS / "examples" / "rl", tmp_path / "docs" / "examples" / "rl")
    monkeypatch.chdir(tmp_path)
    assert execute(shlex.split(command)[1:]) == 0


def test_published_throughput_is_predicted_within_twenty_percent() -> None:
    rows = read_rows(shipped("generation"))
    some = [row for row in rows if row.text("model") == "llama3-8b"]
    some = [row for row in some if row.text("lengths") == "2048/128"]
    outcomes = list(find_suite("generation").predict(some))
    assert len(outcomes) == 3
    for outcome in outcomes:
        assert isinstance(outcome, Outcome)
        assert abs(outcome.predicted / outcome.measured - 1) < 0.2
        assert outcome.trivial["roofline"] > outcome.measured
    assert f"repeats {len(rows)} published numbers" in PAGE


def test_a_row_with_a_mistake_is_skipped_with_its_reason() -> None:
    (row, *_) = read_rows(shipped("generation"))
    for field, value, why in (
        ("options", "chnk=5", "did you mean 'chunk'"),
        ("quantity", "output_token_per_s", "a result has no"),
        ("lengths", "5", "PROMPT/OUTPUT"),
    ):
        (made,) = find_suite("generation").predict(
            [type(row)(row.file, row.line, {**row.values, field: value, "requests": "4"})]
        )
        assert why in made.reason
