"""Registries: things by name, each registered by a decorator in a file that is found by import.

All extension points have one grammar, ``@KIND("name", ...)`` above a function or a class, and one
table behind it, a `Registry`. Its folder is imported when a name is first looked up; users' own
files (`ridgeline.plugins`) register in the same table.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from types import FrameType
from typing import Any, Generic, TypeVar

from ridgeline import plugins
from ridgeline.errors import ConfigError, RidgelineError, nearest
from ridgeline.open_names import OpenNames

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Registry(Mapping[K, T], Generic[K, T]):
    """A mapping that is filled by the modules of a package, and by plug-ins.

    Parameters
    ----------
    what
        What the things are, for messages: "no `what` is called ...".
    package
        Dotted name of the package whose modules call `register`, or of the one module.
    of_type
        What a thing must be an instance of; any, by default.
    parameters
        Of functions, what they take by position; not checked, by default.
    opens
        Names that files may say, to which those of plug-ins are added.
    """

    def __init__(
        self,
        what: str,
        package: str,
        of_type: type | None = None,
        parameters: tuple[str, ...] = (),
        opens: OpenNames | None = None,
    ) -> None:
        self._opens = opens
        self._what, self._package, self._of_type = what, package, of_type
        self._parameters = parameters
        self._things: dict[K, T] = {}
        self._places: dict[K, tuple[str, int]] = {}
        self._complete = False

    def register(self, name: K) -> Callable[[T], T]:
        """Return a decorator that puts a thing here under `name`.

        Raises
        ------
        RidgelineError
            If the name is taken, or the thing is not of the registry's type; by the decorator.
        """

        def put(thing: T) -> T:
            if not self._complete and not _caller().f_globals["__name__"].startswith(_PACKAGE):
                self._load()  # what ships comes first, so that a plug-in is told of a taken name
            if name in self._things:
                raise RidgelineError(
                    f"{self._what} {_text(name)!r} is registered twice: in "
                    f"{_said(self._places[name])} and in {_said(_place())}"
                )
            if self._of_type is not None and not isinstance(thing, self._of_type):
                raise RidgelineError(
                    f"{self._what} {_text(name)!r}: a {self._of_type.__name__} is needed, found "
                    f"{thing!r}; in {_said(_place())}"
                )
            if self._parameters:
                takes(thing, f"{self._what} {_text(name)!r}", *self._parameters)
            self._things[name], self._places[name] = thing, _place()
            if self._opens is not None:
                self._opens.add(_text(name))
            return thing

        return put

    def __getitem__(self, name: K) -> T:
        """Return the thing of that name, or raise ConfigError with the nearest and all names."""
        found = self.find(name)
        if found is None:
            known = [_text(k) for k in _alike(name, self._load())]
            raise ConfigError(
                f"no {self._what} is called {_text(name)!r}{nearest(_text(name), known)} "
                f"(known: {', '.join(known)})"
            )
        return found

    def find(self, name: K) -> T | None:
        """Return the thing of that name, or None."""
        found = self._things.get(name)
        if found is None and not self._complete:
            self._import_file(name)  # the file of that name, rather than all
            found = self._things.get(name)
        return found if found is not None else self._load().get(name)

    def __contains__(self, name: object) -> bool:
        return name in self._things or name in self._load()

    def __iter__(self) -> Iterator[K]:
        return iter(self._load())

    def __len__(self) -> int:
        return len(self._load())

    def _import_file(self, name: K) -> None:
        """Import the module that is called like a thing, if there is one."""
        module = f"{self._package}.{_text(name).replace('-', '_')}"
        package = importlib.import_module(self._package)
        is_file = hasattr(package, "__path__") and module.rpartition(".")[2].isidentifier()
        if is_file and importlib.util.find_spec(module):
            importlib.import_module(module)

    def _load(self) -> dict[K, T]:
        if not self._complete:
            paths = getattr(importlib.import_module(self._package), "__path__", [])  # of a folder
            for module in sorted(m.name for m in pkgutil.iter_modules(paths)):
                importlib.import_module(f"{self._package}.{module}")
            # By file and line, whichever file was imported first.
            self._things = dict(
                sorted(self._things.items(), key=lambda item: self._places[item[0]])
            )
            self._complete = True
            plugins.load_named()
        return self._things


def takes(thing: Any, what: str, *parameters: str) -> None:
    """Complain of a function that cannot be called with these parameters, by position.

    Raises
    ------
    RidgelineError
        If it is no function, or takes others; `what` begins the message.
    """
    expected = f"{what} must be a function of ({', '.join(parameters)})"
    if not callable(thing):
        raise RidgelineError(f"{expected}, found {thing!r}; in {_said(_place())}")
    try:
        found = inspect.signature(thing)
    except ValueError:  # of a built-in that tells nothing
        return
    try:
        found.bind(*parameters)
    except TypeError as error:
        raise RidgelineError(f"{expected}, found one of {found}; in {_said(_place())}") from error


def _caller() -> FrameType:
    """Return the frame in which something is registered: that of the caller of `put`."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_globals.get("__name__") != __name__ and frame.f_code.co_name not in _DECORATORS:
            return frame
        frame = frame.f_back
    raise RuntimeError("no frame")  # pragma: no cover - there is always one


def _place() -> tuple[str, int]:
    """Return the file and line where something is registered."""
    frame = _caller()
    return frame.f_code.co_filename, frame.f_lineno


def _said(place: tuple[str, int]) -> str:
    return f"{place[0]}:{place[1]}"


_PACKAGE = f"{__name__.partition('.')[0]}."
_DECORATORS = frozenset({"put", "optimizer"})
"""Names of the functions of decorators, by which the place is found where one is used."""


def _alike(name: object, names: Iterable[K]) -> list[K]:
    """Return those of some names that begin with the same word; all, if there are none."""
    known = list(names)
    if not isinstance(name, tuple):
        return known
    return [k for k in known if isinstance(k, tuple) and k[0] == name[0]] or known


def _text(name: object) -> str:
    return " ".join(map(str, name)) if isinstance(name, tuple) else str(name)
