"""docs/tutorial.md can be followed: its files, commands, outputs and Python, in one folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from follow_page import follow

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
INSTALL = "python3 -m venv env\nenv/bin/pip install .\nsource env/bin/activate\n"


def test_the_tutorial_can_be_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text("utf-8")
    install = f"```sh\n{INSTALL}```\n"  # what a test of wheels does (tests/test_packaging.py)
    mistake = re.search(r"^```text\nridgeline: (.*?)\.\.\.\n```$", text, re.M)
    assert mistake is not None
    assert text.count(install) == 1
    follow(text.replace(install, "").replace(mistake[0], ""))
    assert {"my-chip.yaml", "my-net.yaml", "my-study.yaml", "rows.csv", "report.html"} <= {
        path.name for path in tmp_path.iterdir()
    }


def test_the_mistake_is_said_as_the_page_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ridgeline.cli import execute

    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text("utf-8")
    said = re.search(r"^```text\n(ridgeline: .*?) \.\.\.\n```$", text, re.M)
    chip = re.search(r"^`my-chip.yaml`\n\n```yaml\n(.*?)^```$", text, re.M | re.S)
    assert said is not None
    assert chip is not None
    sram = chip[1].index("sram: {")
    wrong = chip[1][:sram] + chip[1][sram:].replace("capacity", "capcity", 1)
    Path("my-chip.yaml").write_text(wrong, "utf-8")
    assert execute(["show", "my-chip.yaml"]) == 2
    assert said[1] in capsys.readouterr().err
