"""Options that every verb takes, wherever they stand: ``--plugin``, ``--quiet``, ``--verbose``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from ridgeline.errors import ConfigError
from ridgeline.verbosity import Verbosity, is_verbose

_LEVELS = {
    "-q": Verbosity.QUIET, "--quiet": Verbosity.QUIET,
    "-v": Verbosity.VERBOSE, "--verbose": Verbosity.VERBOSE,
}  # fmt: skip


class Everywhere(NamedTuple):
    """What the options say, and the other words of the command."""

    plugins: list[str]
    verbosity: Verbosity
    words: list[str]


def everywhere(arguments: Sequence[str]) -> Everywhere:
    """Take the options that every verb has out of a command.

    Raises
    ------
    ConfigError
        If ``--plugin`` has no file, or ``--quiet`` and ``--verbose`` are both given.
    """
    plugins: list[str] = []
    levels: set[Verbosity] = set()
    words: list[str] = []
    rest = iter(arguments)
    for word in rest:
        if word == "--plugin":
            file = next(rest, None)
            if file is None:
                raise ConfigError("--plugin needs a Python file", field="plugin")
            plugins.append(file)
        elif word.startswith("--plugin="):
            plugins.append(word.removeprefix("--plugin="))
        elif word in _LEVELS:
            levels.add(_LEVELS[word])
        else:
            words.append(word)
    if len(levels) > 1:
        raise ConfigError("--quiet and --verbose exclude each other")
    return Everywhere(plugins, levels.pop() if levels else Verbosity.USUAL, words)


@contextmanager
def with_files_read() -> Iterator[None]:
    """With ``--verbose``, say on standard error which files the answer was made of."""
    if not is_verbose():
        yield
        return
    from ridgeline.bounded_files import recording

    with recording() as files:
        yield
    for file in sorted(files):
        print(f"ridgeline: read {file}", file=sys.stderr)
