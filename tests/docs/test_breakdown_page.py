"""The page on the parts of an op's time: its commands run and print what it shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from ridgeline.cli import execute

TEXT = (Path(__file__).parents[2] / "docs" / "breakdown.md").read_text("utf-8")
BLOCKS = re.findall(r"```console\n(.*?)```", TEXT, flags=re.DOTALL)


def words_of(line: str) -> str:
    return " ".join(line.split())


def test_commands_run_and_print_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for block in BLOCKS:
        printed: set[str] = set()
        for line in block.splitlines():
            if not line.startswith("$ "):
                assert words_of(line) in printed, f"the page shows what is not printed: {line}"
                continue
            command, _, file = line.removeprefix("$ ").partition(" > ")
            assert execute(shlex.split(command)[1:]) == 0
            text = capsys.readouterr().out
            printed = {words_of(one) for one in text.splitlines()}
            if file:
                (tmp_path / file).write_text(text)


def test_every_part_is_explained() -> None:
    for part in ("launch", "fill", "copy", "arithmetic", "exchange", "barrier", "drain"):
        assert re.search(rf"^\| {part} \|", TEXT, flags=re.MULTILINE)
    assert re.search(r"^\| stall \(level\) \|", TEXT, flags=re.MULTILINE)
