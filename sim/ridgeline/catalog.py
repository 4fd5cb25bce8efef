"""The shipped models and machines: found by name in the package's data, or in the checkout.

A name may be spelled as people say it (`spelling`), or be one of the ``aliases`` in its file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path

from ridgeline.errors import ConfigError, nearest, short
from ridgeline.spelling import Spellings

FOLDERS = {
    "models": "models",
    "datasets": "models/datasets",
    "devices": "hwconfigs/devices",
    "nodes": "hwconfigs/nodes",
    "clusters": "hwconfigs/clusters",
    "energy": "hwconfigs/energy",
    "components": "hwconfigs/components",
    "software": "hwconfigs/software",
}
_SUFFIX = ".yaml"
_MOST_NAMED, _MOST_CLOSE = 100, 20


@cache
def root() -> Path:
    """Return the folder of ``models/`` and ``hwconfigs/``: the wheel's data, else the checkout."""
    package = Path(__file__).resolve().parent
    shipped = package / "_data"
    return shipped if shipped.is_dir() else package.parents[1]


def names(kind: str) -> list[str]:
    """Return the names of all shipped things of a kind, sorted."""
    return list(_names(kind))


@cache
def _names(kind: str) -> list[str]:
    return sorted(path.stem for path in (root() / FOLDERS[kind]).glob(f"*{_SUFFIX}"))


def is_path(name: str) -> bool:
    """Tell whether the user means a file rather than a catalogue name."""
    return "/" in name or "\\" in name or name.endswith((_SUFFIX, ".yml")) or _exists(name)


def _exists(name: str) -> bool:
    try:
        return name != "" and Path(name).exists()
    except OSError:  # a word that is too long for a file
        return False


def name_of(name: object, what: str) -> str:
    """Return a name or a path as text.

    Raises
    ------
    ConfigError
        If it is neither.
    """
    if not isinstance(name, str | Path):
        raise ConfigError(f"{what}: expected a name or a path, found {short(name)}")
    return str(name)


def find(kind: str, name: str) -> Path:
    """Return the file of a catalogue name, however it is spelled, or the path that was given.

    Raises
    ------
    ConfigError
        If nothing, or more than one thing, is called so; the message has all close names.
    """
    if name not in names(kind) and is_path(name):
        return Path(name)
    return root() / FOLDERS[kind] / f"{resolve(name, kind)}{_SUFFIX}"


def resolve(name: str, *kinds: str) -> str:
    """Return the catalogue name that is meant by one as people say it: H100 is h100-sxm5-80gb.

    Parameters
    ----------
    kinds
        Where to look, the first one first; names of all of them if none is given.

    Raises
    ------
    ConfigError
        If nothing, or more than one thing, is called so; the message has all close names.
    """
    kinds = kinds or tuple(FOLDERS)
    if any(name in names(kind) for kind in kinds):
        return name
    found, close = _meant(name, kinds)
    if found is not None:
        _spelled.get()(name, found)
        return found
    raise ConfigError(f"{_none_of(kinds)} is called {name!r}{_close(name, kinds, close)}")


def spelled(name: str, *kinds: str) -> str | None:
    """Return the catalogue name that is meant, as `resolve` does and without a word; else None."""
    kinds = kinds or tuple(FOLDERS)
    return name if any(name in names(kind) for kind in kinds) else _meant(name, kinds)[0]


_spelled: ContextVar[Callable[[str, str], None]] = ContextVar(
    "spelled", default=lambda name, found: None
)


@contextmanager
def telling(tell: Callable[[str, str], None]) -> Iterator[None]:
    """Call a function with each name that is spelled otherwise, and what it was taken to mean."""
    token = _spelled.set(tell)
    try:
        yield
    finally:
        _spelled.reset(token)


def aliases(kind: str) -> dict[str, tuple[str, ...]]:
    """Return what else each thing is called, as its file says, by its name."""
    return dict(_aliases(kind))


@cache
def _aliases(kind: str) -> dict[str, tuple[str, ...]]:
    found = {}
    for name in names(kind):
        text = (root() / FOLDERS[kind] / f"{name}{_SUFFIX}").read_text("utf-8")
        block = _ALIASES.search(text)
        if block is not None:
            from ridgeline.config import parse_yaml

            found[name] = tuple(map(str, parse_yaml(block[0], name).data["aliases"]))
    return found


_ALIASES = re.compile(r"^aliases:.*\n(?:[ \]].*\n)*", re.MULTILINE)
"""The lines of that field alone: parsing hundreds of whole files would take seconds."""


@cache
def _spellings(kinds: tuple[str, ...]) -> Spellings:
    pairs = []
    for kind in reversed(kinds):  # of equal spellings the last counts, and the first kind is to
        others = _aliases(kind)
        pairs += [(alias, name) for name, of in others.items() for alias in of]
        pairs += [(name, name) for name in names(kind)]
    return Spellings(pairs)


def _meant(name: str, kinds: tuple[str, ...]) -> tuple[str | None, Sequence[str]]:
    """Return the one name that is meant, or None and all that may be."""
    known = _spellings(kinds)
    if (found := known.find(name)) is not None:
        return found, ()
    close = known.holding(name)
    return (close[0], ()) if len(close) == 1 else (None, close or known.beginning(name))


def _close(name: str, kinds: tuple[str, ...], close: Sequence[str]) -> str:
    """Say which names are close to one that is none, or what else is called so."""
    if close:
        more = f" and {len(close) - _MOST_CLOSE} more" if len(close) > _MOST_CLOSE else ""
        all_close = f" Close are {', '.join(close[:_MOST_CLOSE])}{more}"
        return nearest(name, close, cutoff=0.0) + (all_close if len(close) > 1 else "")
    listed = [each for kind in kinds for each in names(kind)]
    if len(kinds) == len(FOLDERS):
        return f"{nearest(name, listed)} (see ridgeline list)"
    if other := elsewhere(name, *kinds):
        return other
    place = known(kinds[0]) if len(kinds) == 1 else "ridgeline list names those that ship"
    return f"{nearest(name, listed)} ({place}; or give a path to a .yaml file)"


def _none_of(kinds: tuple[str, ...]) -> str:
    if len(kinds) == len(FOLDERS):
        return "nothing"
    *others, last = (_one(kind) for kind in kinds)
    return f"no {', '.join(others)} or {last}" if others else f"no {last}"


def known(kind: str) -> str:
    """Name all shipped things of a kind, or how to list them if they are many."""
    listed = names(kind)
    if len(listed) > _MOST_NAMED:
        return f"ridgeline list {kind} names the {len(listed)} {kind} that ship"
    return f"known: {', '.join(listed)}"


def elsewhere(name: str, *kinds: str) -> str:
    """Say that a name is one of another kind, or return an empty string."""
    for kind in FOLDERS:
        if kind not in kinds and (found := spelled(name, kind)) is not None:
            called = "" if found == name else f" ({found})"
            return f", which is {_one(kind, article=True)}{called}"
    return ""


def _one(kind: str, *, article: bool = False) -> str:
    one = {"energy": "energy table", "software": "software stack"}.get(kind, kind[:-1])
    return one if not article else f"{'an' if one[0] in 'aeiou' else 'a'} {one}"
