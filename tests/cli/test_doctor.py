"""``ridgeline doctor`` refuses packages that are older than the project's metadata allows."""

from __future__ import annotations

import json
import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from ridgeline import catalog
from ridgeline.cli import doctor_, execute

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
NEEDED = PROJECT["project"]["dependencies"]


@pytest.mark.parametrize(
    ("version", "ok"),
    [
        ("4.1", True), ("4.1.0", True), ("4.10.2", True), ("5.0rc1", True), ("4.1+cpu", True),
        ("4.0.9", False), ("3.99", False), ("4", False), ("4.1rc1", False), ("4.1.0.dev3", False),
    ],
)  # fmt: skip
def test_an_old_package_is_found(version: str, ok: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: version)
    found = doctor_._package(doctor_.Requirement("cyclopts", "4.1", ()))
    assert found["ok"] is ok
    assert found["finding"].startswith(version)
    assert ok or "4.1 or newer is needed" in found["finding"]


def test_what_is_not_there_is_wrong_unless_it_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    assert not doctor_._package(doctor_.Requirement("numpy", "1.26", ()))["ok"]
    extra = doctor_._package(doctor_.Requirement("polars", "1.0", ("study",)))
    assert extra["ok"]
    assert "'ridgeline[study]'" in extra["finding"]


def test_every_dependency_is_looked_at_and_has_a_lower_bound() -> None:
    bounds = {re.match(r"[\w.-]+", line)[0]: ">=" in line for line in NEEDED}  # type: ignore[index]
    assert all(bounds.values())
    looked_at = doctor_._requirements()
    assert {each.package for each in looked_at if not each.extras} == bounds.keys()
    assert {e for each in looked_at for e in each.extras} == (
        PROJECT["project"]["optional-dependencies"].keys() - {"test", "lint"}
    )


def test_installed_metadata_say_what_the_checkout_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = doctor_._requirements()
    lines = [*NEEDED]
    for extra, those in PROJECT["project"]["optional-dependencies"].items():
        lines += [f"{line}; extra == '{extra}'" for line in those]
    monkeypatch.setattr(metadata, "requires", lambda name: lines)
    monkeypatch.setattr(catalog, "root", lambda: tmp_path)  # a wheel: no pyproject.toml
    assert doctor_._requirements() == here


def test_the_status_and_the_command_that_mends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    true = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "0.1" if name == "rich" else true(name))
    monkeypatch.setattr(catalog, "names", lambda kind: [])  # read by tests of their own
    assert execute(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert re.search(r"rich\s+FAILS\s+0\.1; ", shown)
    assert "to mend it: python -m pip install --upgrade 'rich>=" in shown
    assert execute(["doctor", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["ok"]
    assert [each["check"] for each in found["findings"] if not each["ok"]] == ["rich"]
    measured = {each["check"]: each for each in found["findings"]}
    assert measured["import"]["seconds"] > 0
    assert measured["speed"]["tasks_per_s"] > 1e3
    monkeypatch.undo()
    monkeypatch.setattr(catalog, "names", lambda kind: [])
    assert execute(["doctor"]) == 0
    assert "to mend it" not in capsys.readouterr().out
