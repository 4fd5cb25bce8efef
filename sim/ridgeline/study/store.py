"""The working file of a sweep: one JSON line a finished point, appended so that a kill loses none.

A line is written whole by one system call; what a kill leaves of the last one is cut off when the
file is opened again. Rows lie on disk, and only their places in memory.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from filelock import FileLock, Timeout

from ridgeline.errors import ConfigError

Row = dict[str, Any]


def working_file(output: str | Path) -> Path:
    """Return where the finished points of a sweep to `output` lie until all are."""
    path = Path(output)
    return path.with_name(f"{path.name}.partial.jsonl")


@contextmanager
def opened_store(output: str | Path | None, *, restart: bool = False) -> Iterator[RowStore]:
    """Give the working file beside an output; without one, a file that is forgotten."""
    with tempfile.TemporaryDirectory() as folder:
        place = working_file(output if output is not None else Path(folder) / "rows")
        with RowStore(place, restart=restart) as store:
            yield store


class RowStore:
    """Rows by key, in a file that survives its writer.

    Parameters
    ----------
    path
        The working file; it is created if it is not there.
    restart
        Forget what is in it.

    Raises
    ------
    ConfigError
        If it cannot be written, or another sweep writes to it.
    """

    def __init__(self, path: Path, *, restart: bool = False) -> None:
        self.path = path
        self._places: dict[str, tuple[int, int]] = {}
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        except OSError as error:
            raise ConfigError(f"cannot be written: {error.strerror}", file=str(path)) from error
        self._file = os.fdopen(handle, "r+b", buffering=0)
        self._lock = FileLock(f"{path}.lock")
        try:
            self._lock.acquire(blocking=False)
        except Timeout as error:
            self._file.close()
            raise ConfigError("another sweep is writing to it", file=str(path)) from error
        if restart:
            self._file.truncate(0)
        self._end = self._read()
        self._file.truncate(self._end)

    def _read(self) -> int:
        """Find the rows that are there; return the end of the last whole line."""
        end = 0
        with open(self.path, "rb") as stream:
            for line in stream:
                if not line.endswith(b"\n"):
                    break
                try:
                    key = json.loads(line)["key"]
                except (ValueError, KeyError, TypeError):
                    pass  # damaged: this point is simulated again
                else:
                    self._places[key] = (end, len(line))
                end += len(line)
        return end

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def __len__(self) -> int:
        return len(self._places)

    def append(self, key: str, row: Row) -> None:
        """Add the row of a point."""
        line = (json.dumps({"key": key, "row": row}) + "\n").encode()
        try:
            self._file.seek(self._end)
            written = self._file.write(line)
        except OSError as error:
            raise ConfigError(
                f"cannot be written: {error.strerror}", file=str(self.path)
            ) from error
        if written != len(line):
            raise ConfigError("cannot be written: the disk is full", file=str(self.path))
        self._places[key] = (self._end, len(line))
        self._end += len(line)

    def __getitem__(self, key: str) -> Row:
        start, size = self._places[key]
        self._file.seek(start)
        row: Row = json.loads(self._file.read(size))["row"]
        return row

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._file.close()
        with suppress(OSError):  # Windows deletes no file that is open
            os.unlink(self._lock.lock_file)
        self._lock.release()

    def remove(self) -> None:
        """Delete the file: its rows are where they were to go."""
        self.path.unlink(missing_ok=True)
