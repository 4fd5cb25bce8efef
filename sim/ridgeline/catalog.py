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
}
_SUFFIX = ".yaml"


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
    return "/" in name or "\\" in name or name.endswith((_SUFFIX, ".yml")) or Path(name).exists()


def find(kind: str, name: str) -> Path:
    """Return the file of a catalogue name, or the path that was given.

    Raises
    ------
    ConfigError
        If there is no such name; the message lists the nearest and all others.
    """
    listed = names(kind)
    if name in listed:
        return root() / FOLDERS[kind] / f"{name}{_SUFFIX}"
    if is_path(name):
        return Path(name)
    known = ", ".join(listed)
    raise ConfigError(
        f"no {kind[:-1] if kind != 'energy' else 'energy table'} is called {name!r}"
        f"{nearest(name, listed)} (known: {known}; or give a path to a .yaml file)"
    )
