"""Things by name, each in a file that registers itself when a name is first looked up."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from ridgeline.errors import ConfigError, nearest

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Registry(Mapping[K, T], Generic[K, T]):
    """A mapping that is filled by the modules of a package.

    Parameters
    ----------
    what
        What the things are, for messages: "no `what` is called ...".
    package
        Dotted name of the package whose modules call `register`.
    """

    def __init__(self, what: str, package: str) -> None:
        self._what, self._package = what, package
        self._things: dict[K, T] = {}
        self._complete = False

    def register(self, name: K) -> Callable[[T], T]:
        """Return a decorator that puts a thing here under `name`."""

        def put(thing: T) -> T:
            if name in self._things:
                raise ValueError(f"two things are registered as {self._what} {_text(name)!r}")
            self._things[name] = thing
            return thing

        return put

    def __getitem__(self, name: K) -> T:
        """Return the thing of that name, or raise ConfigError with the nearest and all names."""
        things = self._load()
        if name not in things:
            known = [_text(k) for k in _alike(name, things)]
            raise ConfigError(
                f"no {self._what} is called {_text(name)!r}{nearest(_text(name), known)} "
                f"(known: {', '.join(known)})"
            )
        return things[name]

    def __contains__(self, name: object) -> bool:
        return name in self._load()

    def __iter__(self) -> Iterator[K]:
        return iter(self._load())

    def __len__(self) -> int:
        return len(self._load())

    def _load(self) -> dict[K, T]:
        if not self._complete:
            package = importlib.import_module(self._package)
            for module in sorted(m.name for m in pkgutil.iter_modules(package.__path__)):
                importlib.import_module(f"{self._package}.{module}")
            self._complete = True
        return self._things


def _alike(name: object, names: Iterable[K]) -> list[K]:
    """Return those of some names that begin with the same word; all, if there are none."""
    known = list(names)
    if not isinstance(name, tuple):
        return known
    return [k for k in known if isinstance(k, tuple) and k[0] == name[0]] or known


def _text(name: object) -> str:
    return " ".join(map(str, name)) if isinstance(name, tuple) else str(name)
