"""What single sources and programs need, as rules in ``names.yaml`` and ``sources.yaml``.

A rule holds for a row if all of its conditions do: parts of the row's words, or names that were
found in them. What else it has is what it says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any

from ridgeline.config import parse_yaml

_FILES = ("names.yaml", "sources.yaml")
Facts = Mapping[str, Any]


def _begins(fact: str) -> Callable[[Any, Facts], bool]:
    return lambda wanted, facts: facts.get(fact, "").lower().startswith(tuple(_listed(wanted)))


def _holds(fact: str, *, lower: bool = True) -> Callable[[Any, Facts], bool]:
    def check(wanted: Any, facts: Facts) -> bool:
        text = facts.get(fact, "")
        text = text.lower() if lower else text
        return any(word in text for word in _listed(wanted))

    return check


_CONDITIONS: Mapping[str, Callable[[Any, Facts], bool]] = {
    "framework": _begins("framework"),
    "model_begins": _begins("model"),
    "networks": _begins("network"),
    "but": lambda wanted, facts: not facts.get("network", "").startswith(tuple(wanted)),
    "compiled": lambda wanted, facts: (
        (facts.get("compiled") is None and not facts["network"].startswith(tuple(wanted)))
        or facts.get("compiled") is False
    ),
    "suite": _begins("suite"),
    "device": lambda wanted, facts: facts.get("device") == wanted,
    "variants": _holds("variant"),
    "in_source": _holds("source", lower=False),
    "accelerator": _holds("accelerator"),
    "in_other": _holds("other", lower=False),
    "software": lambda wanted, facts: "software" not in facts or facts["software"] in wanted,
    "where": lambda wanted, facts: wanted.items() <= facts.get("cells", {}).items(),
    "precisions": lambda wanted, facts: facts.get("precision") in wanted,
    "fine_tuned": lambda wanted, facts: facts.get("fine_tuned", False) >= wanted,
    "sequence": lambda wanted, facts: facts.get("sequence", wanted) == wanted,
}
"""Conditions of rules by their name: what a rule says, and what is known of a row."""


def _listed(wanted: Any) -> list[str]:
    return wanted if isinstance(wanted, list) else [wanted]


def section(name: str) -> Any:
    """Return a part of the files."""
    return _data()[name]


def rules(name: str, facts: Facts) -> Iterator[Mapping[str, Any]]:
    """Yield the rules of a part that hold for a row."""
    for rule in section(name):
        if all(_CONDITIONS[key](rule[key], facts) for key in _CONDITIONS.keys() & rule.keys()):
            yield rule


def rule(name: str, facts: Facts) -> Mapping[str, Any]:
    """Return the first rule of a part that holds for a row; an empty one if none does."""
    return next(rules(name, facts), {})


@cache
def _data() -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    for file in _FILES:
        text = resources.files(__package__).joinpath(file).read_text("utf-8")
        found |= parse_yaml(text, file).data
    return found
