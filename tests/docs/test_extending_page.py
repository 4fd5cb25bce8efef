"""docs/extending.md: each recipe works as it stands, followed in a process of its own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.follow_page import sections
from ridgeline import register

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "extending.md"
TEXT = PAGE.read_text("utf-8")


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    script = Path(__file__).with_name("follow_page.py")
    folder = str(tmp_path_factory.mktemp("page"))
    command = [sys.executable, str(script), str(PAGE), folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=_environment())
    assert done.returncode == 0, done.stderr
    found: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
    return found


def _environment() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": str(ROOT / "sim")}


@pytest.mark.parametrize("title", sections(TEXT))
def test_a_recipe_works_as_it_stands(title: str, outcome: dict[str, str | None]) -> None:
    assert outcome[title] is None, outcome[title]


def test_the_page_has_a_recipe_or_a_folder_for_every_decorator() -> None:
    for name in dir(register):
        assert f"register.{name}" in TEXT or f"| `{name}`" in TEXT or f"`{name}` |" in TEXT, name
    folders = re.findall(r"\| `(sim/[^`]+)`", TEXT)
    assert len(folders) > 10
    for folder in folders:
        assert (ROOT / folder).exists(), folder
