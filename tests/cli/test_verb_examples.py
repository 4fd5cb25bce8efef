"""The example in the help of every verb runs, and everything that ships can be shown."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest

from ridgeline import catalog
from ridgeline.cli import execute
from ridgeline.cli.app import VERBS
from thoroughly import further

ROOT = Path(__file__).parents[2]


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = execute(arguments)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize("verb", VERBS)
def test_the_example_of_every_verb_runs(
    capsys: pytest.CaptureFixture[str], verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "docs" / "examples", tmp_path / "docs" / "examples")
    monkeypatch.chdir(tmp_path)
    _, *arguments = shlex.split(VERBS[verb].example)
    if verb not in {"calibrate", "doctor"}:  # which measure for as long again
        assert call(capsys, *arguments)[0] == 0
    assert json.loads(call(capsys, *arguments, "--json")[1])


SHOWN = {"models": 12, "devices": 6, "nodes": 3, "clusters": 3}
"""One in so many by default; other tests build all networks and machines."""


@pytest.mark.parametrize(
    ("kind", "step"),
    [*((kind, SHOWN.get(kind, 1)) for kind in catalog.FOLDERS), *further(*((k, 1) for k in SHOWN))],
)
def test_everything_that_ships_can_be_shown(
    capsys: pytest.CaptureFixture[str], kind: str, step: int
) -> None:
    for name in catalog.names(kind)[::step]:
        status, out, err = call(capsys, "show", name)
        assert status == 0, err
        assert out
        assert json.loads(call(capsys, "show", name, "--json")[1])
