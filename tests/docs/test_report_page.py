"""docs/report.md: its commands run one after the other, and so does its Python."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from ridgeline.cli import execute

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "report.md").read_text("utf-8")


def test_the_page_can_be_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").symlink_to(DOCS)
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^\$ (ridgeline .*)$", TEXT, flags=re.MULTILINE)
    assert len(commands) == 4
    for command in commands:
        assert execute(shlex.split(command)[1:]) == 0, command
    assert {path.name for path in tmp_path.glob("*.html")} == {
        "result.html",
        "study.html",
        "run.html",
    }
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL):
        exec(block, names)
    assert str(names["document"]).startswith("<!DOCTYPE html>")
