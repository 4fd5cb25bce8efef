"""The page of parts: its commands run, and its table is what they give."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from ridgeline.cli import execute
from thoroughly import further

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "parts.md").read_text("utf-8")
COMMANDS = [
    line.removeprefix("$ ") for line in PAGE.splitlines() if line.startswith("$ ridgeline ")
]


@pytest.mark.parametrize("command", [*further(*COMMANDS[:-1]), COMMANDS[-1]])
def test_commands_give_what_the_page_says(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    words = shlex.split(command)[1:]
    assert execute(words) == 0
    said = capsys.readouterr().out
    first = said.splitlines()[0]
    step = re.search(r": (\d\.\d+ s) a step", first)
    assert step is not None
    assert f"| `{words[-1]}` |" in PAGE
    assert step[1] in next(line for line in PAGE.splitlines() if f"| `{words[-1]}` |" in line)
    if command == COMMANDS[0]:
        assert first in PAGE
