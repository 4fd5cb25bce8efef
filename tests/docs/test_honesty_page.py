"""docs/honesty.md: its commands print what it says, and its table has every rule."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from ridgeline.cli import execute
from ridgeline.report.honesty.rules import RULES, order_of

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "honesty.md").read_text("utf-8")


@pytest.mark.thorough
def test_commands_print_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs").symlink_to(DOCS)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```\n(\$ .*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 3
    for block in blocks:
        for command, said in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
            status = execute(shlex.split(command)[1:])
            printed = capsys.readouterr().out
            assert status == (1 if "H1 refuse" in said else 0), printed
            for line in filter(None, said.splitlines()):
                assert line in printed


def test_the_table_has_every_rule_as_it_is() -> None:
    rows = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in PAGE.splitlines()
        if line.startswith("| **")
    ]
    assert rows == [
        [f"**{code}** {rule.title}", rule.severity, rule.trigger, rule.say]
        for code, rule in sorted(RULES.items(), key=lambda item: order_of(item[0]))
    ]
