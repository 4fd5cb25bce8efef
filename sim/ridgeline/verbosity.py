"""How much is said beside an answer: on the command line ``--quiet``, nothing, or ``--verbose``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import IntEnum


class Verbosity(IntEnum):
    """QUIET: no notes and no progress. VERBOSE: whole summaries, and the files that were read."""

    QUIET = 0
    USUAL = 1
    VERBOSE = 2


_level: ContextVar[Verbosity] = ContextVar("verbosity", default=Verbosity.USUAL)


def verbosity() -> Verbosity:
    """Return how much is to be said."""
    return _level.get()


def is_quiet() -> bool:
    """Tell whether nothing is to be said beside the answer."""
    return verbosity() == Verbosity.QUIET


def is_verbose() -> bool:
    """Tell whether the whole answer is asked for."""
    return verbosity() == Verbosity.VERBOSE


@contextmanager
def saying(level: Verbosity) -> Iterator[None]:
    """Say that much meanwhile."""
    token = _level.set(level)
    try:
        yield
    finally:
        _level.reset(token)
