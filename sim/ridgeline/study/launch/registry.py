"""The readers of launch files, one module of ``readers`` each."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module

from ridgeline.study.launch.job import LaunchJob
from ridgeline.study.launch.sources import LaunchSource

Read = Callable[[LaunchSource], LaunchJob]
_READERS: dict[str, Reader] = {}


@dataclass(frozen=True)
class Reader:
    """How launch files of one framework are known and read.

    Attributes
    ----------
    name
        Of the framework.
    recognises
        From the text and the ending of a file's name: how sure it is that the file is one of this
        framework, from 0 to 1.
    read
        Returns the job, or raises ConfigError.
    choices
        What chooses one of several jobs in a file: "recipe=NAME", "launch=2"; empty for one job.
    """

    name: str
    recognises: Callable[[str, str], float]
    read: Read
    choices: Callable[[LaunchSource], tuple[str, ...]] = lambda _: ()


def reader(
    name: str,
    recognises: Callable[[str, str], float],
    choices: Callable[[LaunchSource], tuple[str, ...]] = lambda _: (),
) -> Callable[[Read], Read]:
    """Register a function as the reader of a framework."""

    def register(read: Read) -> Read:
        _READERS[name] = Reader(name, recognises, read, choices)
        return read

    return register


@cache
def known_readers() -> Mapping[str, Reader]:
    """Return all readers by the name of their framework."""
    folder = import_module("ridgeline.study.launch.readers")
    for module in pkgutil.iter_modules(folder.__path__):
        import_module(f"{folder.__name__}.{module.name}")
    return dict(sorted(_READERS.items()))
