"""Reads a file, packed or not, and JSON: bounded, and with the line of a mistake."""

from __future__ import annotations

import gzip
import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ridgeline.config import record_content
from ridgeline.errors import ConfigError


def read_bytes(path: str | Path, limit: int) -> bytes:
    """Read a file, unpacked if its name ends in .gz, of at most `limit` bytes."""
    file = str(path)
    packed = file.lower().endswith(".gz")
    try:
        about = os.stat(file)
        if not stat.S_ISREG(about.st_mode):
            raise ConfigError("this is not a regular file", file=file)
        if not packed and about.st_size > limit:
            raise ConfigError(f"larger than {limit} bytes", file=file)
        with gzip.open(file) if packed else open(file, "rb", buffering=0) as stream:
            raw: bytes = stream.read(limit + 1) if packed else stream.read()
    except ConfigError:
        raise
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot be read: {reason}", file=file) from error
    except Exception as error:  # zlib.error has no better base
        raise ConfigError(f"cannot be unpacked: {error}", file=file) from error
    if len(raw) > limit:
        raise ConfigError(f"larger than {limit} bytes", file=file)
    record_content(file, raw)
    return raw


def read_json(raw: bytes, file: str) -> Any:
    """Read JSON, or raise ConfigError with the line."""
    try:
        return json.loads(raw.decode("utf-8"), object_pairs_hook=_no_twins)
    except UnicodeDecodeError as error:
        raise ConfigError(f"not UTF-8 text (byte {error.start})", file=file) from error
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"not JSON: {error.msg}", file=file, line=error.lineno, column=error.colno
        ) from error
    except RecursionError as error:
        raise ConfigError("not JSON that can be read: nested too deep", file=file) from error
    except ValueError as error:
        raise ConfigError(f"not JSON that can be read: {error}", file=file) from error


def _no_twins(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twin = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twin!r} stands twice in one object")
    return found
