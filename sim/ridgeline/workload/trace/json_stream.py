"""Objects of a JSON file one by one, so that a file of gigabytes takes the memory of one object."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any

from ridgeline.errors import ConfigError

CHUNK = 1 << 20
MAX_OBJECT = 1 << 24
MAX_HEAD = 1 << 26
_SPACE = " \t\r\n"


class JsonStream:
    """A text that is read piece by piece and decoded value by value."""

    def __init__(self, stream: IO[str], file: str) -> None:
        self.stream, self.file = stream, file
        self.text, self.at, self.passed, self.lines = "", 0, 0, 1
        self.ended = False
        self._decode = json.JSONDecoder().raw_decode

    def more(self) -> bool:
        """Read another piece; False at the end."""
        if self.ended:
            return False
        try:
            piece = self.stream.read(CHUNK)
        except UnicodeDecodeError as error:
            raise self.fail("not UTF-8 text") from error
        except (OSError, EOFError, zlib.error) as error:
            raise self.fail(f"cannot be read: {error}") from error
        self.ended = not piece
        self.lines += self.text.count("\n", 0, self.at)
        self.text, self.at = self.text[self.at :] + piece, 0
        return bool(piece)

    def fail(self, message: str) -> ConfigError:
        """Return an error at the present line."""
        line = self.lines + self.text.count("\n", 0, self.at)
        return ConfigError(message, file=self.file, line=line)

    def peek(self) -> str:
        """Return the next character that is not white space, or '' at the end."""
        while True:
            while self.at < len(self.text) and self.text[self.at] in _SPACE:
                self.at += 1
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.more():
                return ""

    def expect(self, allowed: str) -> str:
        """Pass one of some characters and return it."""
        found = self.peek()
        if not found:
            raise self.fail("the file ends too early")
        if found not in allowed:
            raise self.fail(f"not JSON: expected {' or '.join(allowed)}, found {found!r}")
        self.at += 1
        return found

    def value(self, limit: int = MAX_OBJECT) -> Any:
        """Decode one value."""
        self.peek()
        while True:
            try:
                found, end = self._decode(self.text, self.at)
                if end < len(self.text) or self.ended:  # a number may go on in the next piece
                    self.at = end
                    return found
            except RecursionError as error:
                raise self.fail("nested too deep") from error
            except json.JSONDecodeError as error:
                if self.ended:
                    raise self.fail(f"not JSON: {error.msg} (or the file ends too early)") from None
            except ValueError as error:
                raise self.fail(f"not JSON that can be read: {error}") from error
            if len(self.text) - self.at > limit:
                raise self.fail(f"not JSON, or a value of more than {limit} characters")
            if not self.more():
                self.ended = True

    def items(self) -> Iterator[Any]:
        """Decode the values of an array, one by one."""
        self.expect("[")
        if self.peek() == "]":
            self.at += 1
            return
        while True:
            yield self.value()
            if self.expect(",]") == "]":
                return

    def object(self) -> Iterator[str]:
        """Decode the keys of an object; the caller takes each value with `value` or `items`."""
        self.expect("{")
        if self.peek() == "}":
            self.at += 1
            return
        while True:
            key = self.value()
            if not isinstance(key, str):
                raise self.fail(f"not JSON: expected a key, found {key!r:.60}")
            self.expect(":")
            yield key
            if self.expect(",}") == "}":
                return


def open_json(path: str | Path) -> tuple[JsonStream, IO[Any]]:
    """Open a JSON file, unpacked if its name ends in .gz; the caller closes the second."""
    file = str(path)
    try:
        if Path(path).exists() and not Path(path).is_file():
            raise ConfigError("this is not a regular file", file=file)
        packed = file.lower().endswith(".gz")
        raw: Any = gzip.open(path) if packed else Path(path).open("rb")  # noqa: SIM115
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or error}", file=file) from error
    return JsonStream(TextIOWrapper(raw, encoding="utf-8"), file), raw
