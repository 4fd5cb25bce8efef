"""Writes files whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ridgeline.errors import ConfigError


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Give a temporary path beside `path` to write to, and rename it to `path` at the end.

    Raises
    ------
    ConfigError
        If the folder does not exist or cannot be written to.
    """
    path = Path(path)
    temporary = _temporary(path)
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # mkstemp makes private files
        temporary.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror}", file=str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)


def _temporary(path: Path) -> Path:
    """Make an empty file beside `path`."""
    if path.is_dir():
        raise ConfigError("this is a directory; give the name of a file to write", file=str(path))
    try:
        handle, name = tempfile.mkstemp(
            dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix
        )
        os.close(handle)
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror}", file=str(path)) from error
    return Path(name)


def check_writable(path: str | Path) -> None:
    """Raise ConfigError now, rather than after long work, if a file cannot be written."""
    _temporary(Path(path)).unlink()


def write_text(path: str | Path, text: str) -> None:
    """Write a text file in UTF-8, whole or not at all.

    The name of a file that Python took from another encoding goes out as it came in.
    """
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="surrogateescape")


def make_folder(path: str | Path) -> Path:
    """Create a folder if it is not there, or raise ConfigError."""
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot be created: {error.strerror}", file=str(path)) from error
    return path
