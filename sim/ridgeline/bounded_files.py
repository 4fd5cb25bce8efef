"""Files that users name, read within bounds: every reader of a format begins here.

A file has to be a regular one (a pipe would wait for ever, a device never ends), is read up to a
limit, unpacked up to the same limit if its name ends in ``.gz``, and is UTF-8 where text is due.
Numbers of hundreds of digits, JSON that is nested deeply and JSON whose values would fill the
memory are refused before anything is made of them. Every mistake is a ConfigError with the file,
and with the line where there are lines.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import hashlib
import io
import json
import os
import re
import stat
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NoReturn

from ridgeline.errors import ConfigError, short

MAX_BYTES = 4 * 2**20
"""Of a file that people write."""
MAX_RESULT_BYTES = 2**27
"""Of a result, table or figure that is read again."""
MAX_DIGITS = 300
"""Of a number: what has fewer is a finite float."""
MAX_JSON_DEPTH = 200
MAX_JSON_BYTES = 2**29
"""Of the values of one JSON text in memory, about."""
MAX_COLUMNS, MAX_CELLS = 2**14, 2**23
"""Of a table."""
MAX_RATIO, _SMALL_BYTES = 200, 2**26
"""A gzip file of text is a tenth to a fiftieth of it; of one that unpacks to more than
`_SMALL_BYTES`, no more than `MAX_RATIO` times its size is read."""

_CHUNK = 2**20
_OBJECT_BYTES, _ARRAY_BYTES, _VALUE_BYTES = 200, 60, 40
"""Of Python: an object with a key, an array, and a value of either."""
_LONG_NUMBER = re.compile(rf"(?<!\d)\d{{{MAX_DIGITS}}}", re.ASCII)
_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")
_JSON_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_OTHER_TEXT = (
    (codecs.BOM_UTF32_LE, "UTF-32"), (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"), (codecs.BOM_UTF16_BE, "UTF-16"),
)  # fmt: skip

_Stream = io.BufferedReader | gzip.GzipFile

_recorded: ContextVar[dict[str, str] | None] = ContextVar("recorded", default=None)


@contextmanager
def recording() -> Iterator[dict[str, str]]:
    """Collect the hash of the content of every file that is read meanwhile, by its path."""
    files: dict[str, str] = {}
    outer = _recorded.get()
    token = _recorded.set(files)
    try:
        yield files
    finally:
        _recorded.reset(token)
        if outer is not None:
            outer.update(files)


def record_file(path: str | Path) -> None:
    """Add a file to what `recording` collects, whose reader does not hold all of it at once.

    A file that cannot be read is left to its reader, which says why.
    """
    if (files := _recorded.get()) is not None:
        with suppress(ConfigError):
            files[str(path)] = content_hash(path)


def opened(path: str | Path) -> io.BufferedReader:
    """Open a regular file to read its bytes, or raise ConfigError."""
    file = str(path)
    try:
        mode = os.stat(file).st_mode
        if stat.S_ISDIR(mode):
            raise ConfigError("this is a directory, not a file", file=file)
        if not stat.S_ISREG(mode):
            raise ConfigError("this is not a regular file", file=file)
        return open(file, "rb")
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or error}", file=file) from error
    except UnicodeEncodeError:  # a path that the encoding in use lacks: the command line says so
        raise
    except ValueError as error:  # a path with NUL in it
        raise ConfigError(f"cannot be read: {error}", file=file) from error


def is_packed(path: str | Path) -> bool:
    """Tell whether a file is unpacked when it is read: its name ends in ``.gz``."""
    return str(path).lower().endswith(".gz")


def read_bytes(path: str | Path, limit: int) -> bytes:
    """Read a file, unpacked if its name ends in ``.gz``, of at most `limit` bytes.

    Raises
    ------
    ConfigError
        If it is no regular file, cannot be read or unpacked, or is larger.
    """
    file = str(path)
    with opened(path) as stream:
        if os.fstat(stream.fileno()).st_size > limit:
            raise ConfigError(f"larger than {limit} bytes", file=file)
        raw = _bounded(stream, limit, file)
    if (files := _recorded.get()) is not None:
        files[file] = hashlib.sha256(raw).hexdigest()
    if is_packed(file):
        raw = _bounded(gzip.GzipFile(fileobj=io.BytesIO(raw)), limit, file)
    return raw


def content_hash(path: str | Path) -> str:
    """Return the SHA-256 of a file as it lies there, or raise ConfigError."""
    try:
        with opened(path) as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=str(path)) from error


def read_head(path: str | Path, size: int) -> bytes:
    """Read the first bytes of a file, unpacked if its name ends in ``.gz``; raise ConfigError."""
    with opened(path) as stream:
        source: _Stream = gzip.GzipFile(fileobj=stream) if is_packed(path) else stream
        try:
            return source.read(size)
        except (OSError, EOFError, zlib.error) as error:
            _fail_reading(error, str(path))


def _bounded(stream: _Stream, limit: int, file: str) -> bytes:
    """Read a stream to its end piece by piece: no more is allocated than there is."""
    pieces: list[bytes] = []
    left = limit + 1
    try:
        while left and (piece := stream.read(min(_CHUNK, left))):
            pieces.append(piece)
            left -= len(piece)
    except (OSError, EOFError, zlib.error) as error:
        _fail_reading(error, file)
    if not left:
        unpacked = " when unpacked" if isinstance(stream, gzip.GzipFile) else ""
        raise ConfigError(f"larger than {limit} bytes{unpacked}", file=file)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _fail_reading(error: Exception, file: str) -> NoReturn:
    reason = getattr(error, "strerror", None) or error
    how = "unpacked" if isinstance(error, EOFError | zlib.error | gzip.BadGzipFile) else "read"
    raise ConfigError(f"cannot be {how}: {reason}", file=file) from error


class TextStream:
    """The text of a file that is too long to be read at once, piece by piece.

    A packed file is unpacked on the way, and no more of it than `MAX_RATIO` allows.
    """

    def __init__(self, path: str | Path) -> None:
        self.file = str(path)
        self._raw = opened(path)
        size = os.fstat(self._raw.fileno()).st_size
        self._left: float = float("inf")
        self._source: _Stream = self._raw
        if is_packed(self.file):
            self._left = max(_SMALL_BYTES, MAX_RATIO * size)
            self._source = gzip.GzipFile(fileobj=self._raw)
        self._decode = codecs.getincrementaldecoder("utf-8-sig")().decode

    def read(self, size: int) -> str:
        """Return the next piece, of about `size` bytes; empty at the end of the file."""
        try:
            raw = self._source.read(size)
            self._left -= len(raw)
            if self._left < 0:
                raise ConfigError(
                    f"unpacks to more than {MAX_RATIO} times its size", file=self.file
                )
            return self._decode(raw, final=not raw) or (self.read(size) if raw else "")
        except (OSError, EOFError, zlib.error) as error:
            _fail_reading(error, self.file)

    def close(self) -> None:
        """Close the file."""
        self._raw.close()


def read_text(path: str | Path, limit: int = MAX_BYTES) -> str:
    """Read a UTF-8 text file of at most `limit` bytes, or raise ConfigError."""
    return decoded(read_bytes(path, limit), str(path))


def decoded(raw: bytes, file: str) -> str:
    """Return UTF-8 as text, without the mark that some editors write before it.

    Raises
    ------
    ConfigError
        If it is none, or has a number of more than `MAX_DIGITS` digits.
    """
    raw = raw.removeprefix(codecs.BOM_UTF8)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        line, column = before.count(b"\n") + 1, len(before) - before.rfind(b"\n")
        other = next((name for mark, name in _OTHER_TEXT if raw.startswith(mark)), None)
        why = f"this is {other}; save it as UTF-8" if other else f"byte {error.start}"
        raise ConfigError(f"not UTF-8 text ({why})", file=file, line=line, column=column) from error
    _refuse_digits(text, file)
    return text


def _refuse_digits(text: str, file: str) -> None:
    if long := _LONG_NUMBER.search(text):
        before = text[: long.start()]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        raise ConfigError(
            f"a number of more than {MAX_DIGITS} digits", file=file, line=line, column=column
        )


def csv_rows(
    text: str, file: str, separator: str = ",", *, strict: bool = True
) -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of every row of CSV text, and the line that the row ends in.

    Raises
    ------
    ConfigError
        If it is no CSV, or has more than `MAX_COLUMNS` columns or `MAX_CELLS` cells.
    """
    csv.field_size_limit(_CHUNK)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=strict)
    left = MAX_CELLS
    try:
        for cells in reader:
            left -= len(cells)
            if len(cells) > MAX_COLUMNS:
                raise ConfigError(
                    f"more than {MAX_COLUMNS} columns", file=file, line=reader.line_num
                )
            if left < 0:
                raise ConfigError(f"more than {MAX_CELLS} cells", file=file, line=reader.line_num)
            yield reader.line_num, cells
    except csv.Error as error:
        raise ConfigError(f"not a CSV file: {error}", file=file, line=reader.line_num) from error


def read_json(path: str | Path, limit: int = MAX_BYTES) -> Any:
    """Read a JSON file of at most `limit` bytes, unpacked if its name ends in ``.gz``.

    Raises
    ------
    ConfigError
        As `read_bytes` and `parse_json`.
    """
    return parse_json(read_bytes(path, limit), str(path))


def parse_json(text: str | bytes, file: str) -> Any:
    """Read JSON text; `file` names it in messages.

    Raises
    ------
    ConfigError
        If it is no JSON, has a key twice in one object, is nested deeper than `MAX_JSON_DEPTH`, or
        would take more than `MAX_JSON_BYTES`; with the line.
    """
    if isinstance(text, bytes):
        text = decoded(text, file)
    else:
        _refuse_digits(text, file)
    _refuse_size(text, file)
    refuse_depth(text, file)
    try:
        found = json.loads(text, object_pairs_hook=_no_twins)
        if _HALF_PAIR.search(text):
            json.dumps(found, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"not JSON: {error.msg}", file=file, line=error.lineno, column=error.colno
        ) from error
    except UnicodeEncodeError as error:
        half = _HALF_PAIR.search(text)
        line = text.count("\n", 0, half.start() if half else 0) + 1
        raise ConfigError("text with half of a surrogate pair", file=file, line=line) from error
    except _TwinError as error:
        said = f"the key {short(error.key)} stands twice in one object"
        raise ConfigError(said, file=file, line=_line_of_twin(text, error.key)) from error
    return found


def _refuse_size(text: str, file: str) -> None:
    """Raise ConfigError if the values of a JSON text would fill the memory."""
    opened_ = _OBJECT_BYTES * text.count("{") + _ARRAY_BYTES * text.count("[")
    if opened_ + _VALUE_BYTES * text.count(",") > MAX_JSON_BYTES:
        raise ConfigError("more values than can be read at once", file=file)


def refuse_depth(text: str, file: str, line: int = 1) -> None:
    """Raise ConfigError at the first value of a JSON text, from `line` on, nested too deep."""
    if text.count("[") + text.count("{") <= MAX_JSON_DEPTH or _depth(text) <= MAX_JSON_DEPTH:
        return
    # Brackets in strings count above; most texts have few, and are not looked at twice.
    bare = _JSON_STRING.sub(lambda found: " " * len(found[0]), text)
    if _depth(bare) > MAX_JSON_DEPTH:
        line += text.count("\n", 0, _deepest(bare))
        raise ConfigError(f"nested deeper than {MAX_JSON_DEPTH} levels", file=file, line=line)


def _levels(text: str) -> Iterator[tuple[int, Any]]:
    """Yield pieces of a text by their place, each with the depth behind every character."""
    import numpy as np

    depth = 0
    for start in range(0, len(text), _CHUNK):
        # Characters beyond ASCII become one byte each.
        piece = np.frombuffer(text[start : start + _CHUNK].encode("ascii", "replace"), np.uint8)
        folded = piece | 32  # "[" becomes "{", and "]" becomes "}"
        levels = depth + np.cumsum((folded == 123).astype(np.int32) - (folded == 125))
        depth = int(levels[-1])
        yield start, levels


def _depth(text: str) -> int:
    return max((int(levels.max()) for _, levels in _levels(text)), default=0)


def _deepest(text: str) -> int:
    return next(
        start + int((levels > MAX_JSON_DEPTH).argmax())
        for start, levels in _levels(text)
        if levels.max() > MAX_JSON_DEPTH
    )


class _TwinError(ValueError):
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def _no_twins(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys: set[str] = set()
        for key, _ in pairs:
            if key in keys:
                raise _TwinError(key)
            keys.add(key)
    return found


def _line_of_twin(text: str, key: str) -> int | None:
    """Return the line of a key that stands at two places of a text, as it is usually written."""
    places = [one.start() for one in re.finditer(re.escape(json.dumps(key)) + r"\s*:", text)]
    return text.count("\n", 0, places[1]) + 1 if len(places) == 2 else None
