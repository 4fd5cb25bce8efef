"""Files that points are made of: what a worker on another machine must have the same of."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Self

from ridgeline import catalog
from ridgeline.bounded_files import recording
from ridgeline.errors import RidgelineError
from ridgeline.plugins import loaded_plugins
from ridgeline.study.point import Point
from ridgeline.workload.files import load_network

_SHIPPED = "catalogue:"


class PointFiles(NamedTuple):
    """Hashes of files, and of plug-ins.

    Attributes
    ----------
    contents
        Path and SHA-256 of each file. The path of one that ships begins with ``catalogue:``, since
        it lies elsewhere on another machine.
    plugins
        Name and SHA-256 of each plug-in.
    """

    contents: tuple[tuple[str, str], ...] = ()
    plugins: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, files: Mapping[str, str]) -> Self:
        """Return what was read meanwhile (`bounded_files.recording`), with the plug-ins of now."""
        contents = {_portable(Path(file)): digest for file, digest in files.items()}
        return cls(tuple(sorted(contents.items())), tuple(sorted(loaded_plugins().items())))

    def digest(self) -> str:
        """Return a short hash of all contents: files that moved are the same files."""
        contents = sorted({digest for _, digest in (*self.contents, *self.plugins)})
        return hashlib.sha256("\n".join(contents).encode()).hexdigest()[:16]


NO_FILES = PointFiles()


def files_of(points: Iterable[Point]) -> PointFiles:
    """Return the files that points are made of.

    Raises
    ------
    ConfigError
        If one cannot be read.
    """
    with recording() as files:
        for point in points:
            load_network(point.model, point.replaced("model"))  # not one that was kept
            point.load("cluster")
            point.load("software")
    return PointFiles.of(files)


def check_same_files(files: PointFiles) -> None:
    """Check that this machine has these files and plug-ins, once for each process.

    Raises
    ------
    RidgelineError
        If one is missing or says something else; with this machine's name.
    """
    if found := _difference(files):
        raise RidgelineError(f"the worker on {socket.gethostname()} {found}")


@lru_cache(maxsize=8)
def _difference(files: PointFiles) -> str:
    """Say what is different here; empty if nothing is."""
    for name, wanted in files.contents:
        file = (
            catalog.root() / name.removeprefix(_SHIPPED)
            if name.startswith(_SHIPPED)
            else Path(name)
        )
        if not file.is_file():
            return f"has no file {file}: points are made of it (docs/many-machines.md)"
        with file.open("rb") as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() != wanted:
                return f"has another {file} than this machine: copy it there"
    here = loaded_plugins()
    for name, wanted in files.plugins:
        if here.get(name) != wanted:
            said = "another" if name in here else "no"
            return f"has {said} plug-in {name}: set RIDGELINE_PLUGINS where workers start"
    return ""


def _portable(file: Path) -> str:
    """Return a path that means the same on another machine."""
    whole, root = file.resolve(), catalog.root().resolve()
    folders = {Path(folder).parts[0] for folder in catalog.FOLDERS.values()}
    if any(whole.is_relative_to(root / folder) for folder in folders):
        return _SHIPPED + whole.relative_to(root).as_posix()
    return str(whole)
