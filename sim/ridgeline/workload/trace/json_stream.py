"""Objects of a JSON file one by one, so that a file of gigabytes takes the memory of one object."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from ridgeline.bounded_files import MAX_DIGITS, TextStream, refuse_depth
from ridgeline.errors import ConfigError, short

CHUNK = 1 << 20
MAX_OBJECT = 1 << 24
MAX_HEAD = 1 << 25
_SPACE = re.compile(r"[ \t\r\n]*")


class JsonStream:
    """A text that is read piece by piece and decoded value by value."""

    def __init__(self, path: str | Path) -> None:
        self.stream = TextStream(path)
        self.file = self.stream.file
        self.text, self.at, self.passed, self.lines = "", 0, 0, 1
        self.ended = False
        self._decode = json.JSONDecoder().raw_decode

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()

    def more(self, size: int = CHUNK) -> bool:
        """Read another piece; False at the end."""
        if self.ended:
            return False
        try:
            piece = self.stream.read(size)
        except UnicodeDecodeError as error:
            raise self.fail("not UTF-8 text") from error
        self.ended = not piece
        self.lines += self.text.count("\n", 0, self.at)
        self.text, self.at = self.text[self.at :] + piece, 0
        return bool(piece)

    def fail(self, message: str) -> ConfigError:
        """Return an error at the present line."""
        return ConfigError(message, file=self.file, line=self.line)

    @property
    def line(self) -> int:
        """Where the next value stands."""
        return self.lines + self.text.count("\n", 0, self.at)

    def peek(self) -> str:
        """Return the next character that is not white space, or '' at the end."""
        while True:
            if space := _SPACE.match(self.text, self.at):
                self.at = space.end()
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
                    refuse_depth(self.text[self.at : end], self.file, self.line)
                    self.at = end
                    return found
            except RecursionError as error:
                raise self.fail("nested too deep") from error
            except json.JSONDecodeError as error:
                if self.ended:
                    raise self.fail(f"not JSON: {error.msg} (or the file ends too early)") from None
            except ValueError as error:
                raise self.fail(f"a number of more than {MAX_DIGITS} digits") from error
            pending = len(self.text) - self.at
            if pending > limit:
                raise self.fail(f"not JSON, or a value of more than {limit} characters")
            if not self.more(max(CHUNK, pending)):  # decoded again: pieces grow as it does
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
                raise self.fail(f"not JSON: expected a key, found {short(key)}")
            self.expect(":")
            yield key
            if self.expect(",}") == "}":
                return
