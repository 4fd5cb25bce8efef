"""``ridgeline doctor`` refuses packages that are older than the project's metadata allows."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from ridgeline.cli import doctor_

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
NEEDED = PROJECT["project"]["dependencies"]


@pytest.mark.parametrize(
    ("version", "ok"), [("4.1", True), ("4.10.2", True), ("4.0.9", False), ("3.99", False)]
)
def test_an_old_package_is_found(version: str, ok: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "requires", lambda name: ["cyclopts>=4.1", "polars; x == 'y'"])
    monkeypatch.setattr(metadata, "version", lambda name: version)
    found = doctor_._package("cyclopts", None)
    assert found["ok"] is ok
    assert str(found["finding"]).startswith(version)
    assert ok or "4.1 or newer is needed" in str(found["finding"])


def test_every_dependency_is_looked_at_and_has_a_lower_bound() -> None:
    bounds = {re.match(r"[\w.-]+", line)[0]: ">=" in line for line in NEEDED}  # type: ignore[index]
    assert all(bounds.values())
    assert set(doctor_._PACKAGES) == bounds.keys() - {"ruamel.yaml.clib"}
