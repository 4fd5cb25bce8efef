"""The readers of launch files, one module of ``readers`` each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from ridgeline.registry import Registry, takes
from ridgeline.study.launch.job import LaunchJob
from ridgeline.study.launch.sources import LaunchSource

Read = Callable[[LaunchSource], LaunchJob]


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


READERS: Registry[str, Reader] = Registry(
    "reader of launch files", "ridgeline.study.launch.readers", Reader
)
"""All readers by the name of their framework."""


def reader(
    name: str,
    recognises: Callable[[str, str], float],
    choices: Callable[[LaunchSource], tuple[str, ...]] = lambda _: (),
) -> Callable[[Read], Read]:
    """Return a decorator that registers a function as the reader of a framework.

    Raises
    ------
    RidgelineError
        If the name is taken, or a function takes other parameters; by the decorator.
    """

    def put(read: Read) -> Read:
        takes(read, f"reader of launch files {name!r}", "source")
        takes(recognises, f"reader of launch files {name!r}: recognises", "text", "ending")
        READERS.register(name)(Reader(name, recognises, read, choices))
        return read

    return put


@cache
def known_readers() -> Mapping[str, Reader]:
    """Return all readers by the name of their framework, sorted."""
    return {name: READERS[name] for name in sorted(READERS)}
