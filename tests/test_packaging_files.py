"""Lock, recipes and bill of materials say what pyproject.toml says; names are legal everywhere."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from ridgeline.version import __version__
from write_sbom import bill

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
LOCK = (ROOT / "requirements.lock").read_text("utf-8")
PINS = re.findall(r"^([\w.-]+)==([\w.+]+)", LOCK, re.MULTILINE)
(EXPRESSION,) = re.findall(r"sed -n '(s/.*/p)'", (ROOT / "Makefile").read_text("utf-8"))
"""Of sed: it takes the hashes from the pins."""
RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
"""Names that Windows keeps for devices, with any suffix."""


def bounds(lines: list[str]) -> dict[str, str]:
    """Return the lowest version by package, in the one spelling of the index."""
    found = (re.fullmatch(r"([\w.-]+)\s*[>=]=\s*([\w.]+)", line) for line in lines)
    return {re.sub(r"[-_.]+", "-", m[1]): m[2] for m in found if m}


def release(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def test_the_lock_pins_what_is_asked_for_within_the_bounds_and_by_hash() -> None:
    pinned = dict(PINS)
    documents = (ROOT / "requirements-docs.lock").read_text("utf-8")
    for name, version in re.findall(r"^([\w.-]+)==([\w.+]+)", documents, re.MULTILINE):
        assert pinned.get(name, version) == version
    extras = PROJECT["optional-dependencies"]
    asked = bounds([*PROJECT["dependencies"], *extras["study"], *extras["test"], *extras["lint"]])
    assert asked.keys() <= pinned.keys()
    assert all(release(pinned[name]) >= release(least) for name, least in asked.items())
    for lock in (LOCK, documents):
        entries = re.split(r"^(?=[\w.-]+==)", lock, flags=re.MULTILINE)[1:]
        assert len(entries) == lock.count("==") - lock.count(" == ")
        assert all("--hash=sha256:" in entry for entry in entries)


def test_the_versions_of_the_other_environment_are_the_locks() -> None:
    """The tracers' environment takes the lock's pins without their hashes: by this expression."""
    pattern, made = re.fullmatch(r"s/(.*)/(.*)/p", EXPRESSION.replace("$$", "$")).groups()  # type: ignore[union-attr]
    pattern = pattern.replace(r"\(", "(").replace(r"\)", ")")
    assert made == r"\1"
    lines = [m[1] for line in LOCK.splitlines() if (m := re.match(pattern, line))]
    assert [line.partition(" ;")[0].split("==") for line in lines] == [list(pin) for pin in PINS]


def test_the_conda_recipe_has_the_same_bounds() -> None:
    recipe = YAML(typ="safe").load((ROOT / "packaging/conda/recipe.yaml").read_text("utf-8"))
    run = bounds(
        [line.replace("matplotlib-base", "matplotlib") for line in recipe["requirements"]["run"]]
    )
    assert run.pop("python") == PROJECT["requires-python"].removeprefix(">=")
    assert run == bounds(PROJECT["dependencies"])
    assert recipe["package"]["version"] == __version__
    assert recipe["build"]["python"]["entry_points"] == [
        f"{name} = {where}" for name, where in PROJECT["scripts"].items()
    ]
    assert recipe["about"]["summary"] == PROJECT["description"]


def test_the_container_takes_the_lock_and_files_that_are_there() -> None:
    text = (ROOT / "packaging/Containerfile").read_text("utf-8")
    assert EXPRESSION.replace("$$", "$") in text
    assert (ROOT / "requirements.lock").is_file()
    (version,) = re.findall(r"FROM \S+/python:(3\.\d+)-slim", text)
    assert f"Programming Language :: Python :: {version}" in PROJECT["classifiers"]


def test_the_bill_of_materials_has_every_pin_with_its_hashes() -> None:
    made = bill(LOCK, __version__)
    found = {(each["name"], each["version"]) for each in made["components"]}
    assert found == set(PINS)
    assert all(len(each["externalReferences"][0]["hashes"]) > 0 for each in made["components"])
    assert made == bill(LOCK, __version__)
    assert made["serialNumber"] != bill(LOCK + "\n", __version__)["serialNumber"]


def test_citation_and_classifiers_say_this_version_and_these_pythons() -> None:
    citation = YAML(typ="safe").load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == __version__
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", str(citation["date-released"]))
    least = PROJECT["requires-python"].removeprefix(">=")
    assert f"Programming Language :: Python :: {least}" in PROJECT["classifiers"]


@pytest.mark.parametrize("folder", ["sim", "models", "hwconfigs", "notebooks", "docs", "tests"])
def test_names_of_files_are_legal_on_every_system(folder: str) -> None:
    """No letter that Windows forbids, no device, nothing that differs by capitals alone."""
    seen: dict[str, Path] = {}
    for path in sorted((ROOT / folder).rglob("*")):
        if "__pycache__" in path.parts:
            continue
        assert re.fullmatch(r"[\w .+=@-]*[\w+@-]", path.name, re.ASCII), path
        assert not RESERVED.fullmatch(path.name), path
        place = str(path.relative_to(ROOT)).lower()
        assert len(place) < 150, path
        assert place not in seen, (path, seen.get(place))
        seen[place] = path
