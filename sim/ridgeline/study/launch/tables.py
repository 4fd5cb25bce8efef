"""Tables of the options of frameworks, and what is said in nested files, for the readers."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from ridgeline.config import Document, read_yaml
from ridgeline.study.launch.job import LaunchDraft
from ridgeline.study.launch.sources import leaves

_FOLDER = Path(__file__).with_name("arguments")


@cache
def table(name: str) -> Mapping[str, Any]:
    """Return a table of ``arguments/`` by its name."""
    data = read_yaml(_FOLDER / f"{name}.yaml").data
    assert isinstance(data, dict)
    return data


def say_all(draft: LaunchDraft, document: Document, prefix: str = "") -> None:
    """Register every value of a file under its dotted path, with its line.

    Parameters
    ----------
    prefix
        What the paths begin with, for a file that another one names.

    Raises
    ------
    ConfigError
        If the file is no mapping.
    """
    if not isinstance(document.data, dict):
        raise document.error("expected a mapping of settings")
    for location, value in leaves(document.data):
        name = prefix + ".".join(str(part) for part in location)
        draft.say(name, value, document.where(location)[0])


def ignore_patterns(draft: LaunchDraft, became: Mapping[str, list[str]]) -> None:
    """Mark what is still unread and fits a pattern of a table: patterns under what they become."""
    for meaning, patterns in became.items():
        for name, said in draft.said.items():
            if not said.became and any(fnmatchcase(name, pattern) for pattern in patterns):
                said.became = meaning


def word(draft: LaunchDraft, name: str, became: str = "") -> str | None:
    """Return a setting as a word in lower case; None for nothing, "auto" and an empty value."""
    value = draft.value(name)
    if value is None or str(value).strip().lower() in {"", "none", "null", "auto", "~"}:
        draft.ignore(name, became="left to the program")
        return None
    draft.ignore(name, became=became.format(value))
    return str(value).strip().lower()


def count(draft: LaunchDraft, name: str, became: str) -> int | None:
    """Take a setting as a whole number above 0; None where it is left open ("auto", -1, nothing).

    Raises
    ------
    ConfigError
        If it is something else.
    """
    if word(draft, name) is None:
        return None
    number = draft.integer(name, became)
    if number is None or number < 0:
        draft.ignore(name, became="left to the program")
        return None
    if number == 0:
        raise draft.error("expected a number above 0, found 0", name)
    return number


def devices_given(draft: LaunchDraft) -> int | None:
    """Return the number of devices that the user gives for a file that does not say it."""
    given = draft.source.set_.get("devices")
    if given is None:
        return None
    if not given.isdigit() or not int(given):
        raise draft.source.error(f"--set devices={given}: expected a whole number above 0")
    return int(given)
