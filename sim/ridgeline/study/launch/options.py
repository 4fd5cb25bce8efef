"""Options of a command line, and tables of what arguments of a framework become."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ridgeline.config import read_yaml
from ridgeline.study.launch.shell import line_of
from ridgeline.study.launch.sources import PLACEHOLDER, plain

_OPTION = re.compile(r"(--?[A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)


@dataclass(frozen=True)
class Option:
    """An option as it is written; no value: a switch."""

    name: str
    value: str | None
    line: int


def options(words: Sequence[str]) -> Iterator[Option]:
    """Yield the options among the words of a command; those with many values have them in one."""
    name, line, values = "", 0, list[str]()

    def finished() -> Iterator[Option]:
        if name:
            yield Option(name, " ".join(values) if values else None, line)

    for word in words:
        text = plain(word)
        if text in {"\\", ""}:
            continue
        found = None if PLACEHOLDER.match(text) else _OPTION.fullmatch(text)
        if found is None:
            values.append(text)
            continue
        yield from finished()
        name, line, values = found[1], line_of(word), []
        if found[2] is not None:
            yield Option(name, found[2], line)
            name = ""
    yield from finished()


def canonical(name: str) -> str:
    """Return the name of an option as frameworks keep its value: ``num_layers``."""
    return name.lstrip("-").replace("-", "_")


@cache
def table(name: str) -> Mapping[str, tuple[str, ...]]:
    """Return, by what they become, patterns of the arguments in a table of ``arguments/``."""
    path = Path(__file__).parent / "arguments" / f"{name}.yaml"
    data: Mapping[str, Sequence[str]] = read_yaml(path).data
    return {became: tuple(patterns) for became, patterns in data.items()}


def found_in(name: str, tables: Sequence[str]) -> str:
    """Return what an argument becomes by the first table that knows it; "" if none does."""
    for each in tables:
        for became, patterns in table(each).items():
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
                return became
    return ""
