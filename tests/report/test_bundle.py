"""The folder of a result is written whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ridgeline.errors import ConfigError
from ridgeline.report.bundle import write_bundle
from ridgeline.report.perfetto import trace
from ridgeline.report.result import Result

NAMES = ["roofline.png", "timeline.png", "energy.png", "trace.json", "ledger.csv", "result.json"]


def test_the_folder_is_made_and_holds_everything(result: Result, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    assert write_bundle(result, folder) == [folder / name for name in NAMES]
    assert sorted(path.name for path in folder.iterdir()) == sorted(NAMES)
    assert json.loads((folder / "result.json").read_text()) == result.to_dict()
    assert json.loads((folder / "trace.json").read_text()) == trace(result)
    for name in NAMES[:3]:
        assert (folder / name).read_bytes().startswith(b"\x89PNG")


def test_writing_again_replaces_by_equal_bytes_and_keeps_other_files(
    result: Result, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    write_bundle(result, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(before) == {*NAMES, "notes.txt"}
    write_bundle(result, str(tmp_path))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("there", [True, False])
def test_nothing_changes_if_the_last_file_fails(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    if there:
        for name in NAMES:
            (tmp_path / name).write_text("old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Result, "to_json", fail)
    with pytest.raises(ConfigError, match="No space left"):
        write_bundle(result, tmp_path)
    left = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert left == (dict.fromkeys(NAMES, "old") if there else {})


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_written_if_a_name_is_taken_by_a_folder(
    result: Result, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(ConfigError, match="this is a directory"):
        write_bundle(result, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_folder_that_cannot_be_made_is_an_error(result: Result, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be created"):
        write_bundle(result, tmp_path / "file")
