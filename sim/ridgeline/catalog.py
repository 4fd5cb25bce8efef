"""The shipped models and machines: found by name in the package's data, or in the checkout."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ridgeline.errors import ConfigError, nearest

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
_MOST_NAMED = 100


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


def find(kind: str, name: str) -> Path:
    """Return the file of a catalogue name, or the path that was given.

    Raises
    ------
    ConfigError
        If there is no such name; the message has the nearest, and all others if they are few.
    """
    listed = names(kind)
    if name in listed:
        return root() / FOLDERS[kind] / f"{name}{_SUFFIX}"
    if is_path(name):
        return Path(name)
    raise ConfigError(
        f"no {_one(kind)} is called {name!r}{elsewhere(name, kind) or nearest(name, listed)} "
        f"({known(kind)}; or give a path to a .yaml file)"
    )


def known(kind: str) -> str:
    """Name all shipped things of a kind, or how to list them if they are many."""
    listed = names(kind)
    if len(listed) > _MOST_NAMED:
        return f"ridgeline list {kind} names the {len(listed)} {kind} that ship"
    return f"known: {', '.join(listed)}"


def elsewhere(name: str, *kinds: str) -> str:
    """Say that a name is one of another kind, or return an empty string."""
    found = [kind for kind in FOLDERS if kind not in kinds and name in names(kind)]
    return f", which is {_one(found[0], article=True)}" if found else ""


def _one(kind: str, *, article: bool = False) -> str:
    one = {"energy": "energy table", "software": "software stack"}.get(kind, kind[:-1])
    return one if not article else f"{'an' if one[0] in 'aeiou' else 'a'} {one}"
