"""A launch file as text, and its values with the lines where they stand."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ridgeline.bounded_files import parse_json, read_text
from ridgeline.config import Document, parse_yaml
from ridgeline.errors import ConfigError

MARK = re.compile("\ue000[0-9]+\ue001")
"""The line that text which follows came from, in values of a shell script."""
PLACEHOLDER = re.compile("\ue002(?P<name>[^\ue002\ue003]*)\ue003")
"""A part of a value that the file does not give: a variable, or a word to be replaced."""
_PRIVATE = re.compile("[\ue000-\ue00f]")


def hole(name: str) -> str:
    """Return the text of a part that the file does not give."""
    return f"\ue002{_PRIVATE.sub('', MARK.sub('', name))}\ue003"


def plain(text: str) -> str:
    """Return text without the marks of lines."""
    return MARK.sub("", text)


@dataclass(frozen=True)
class LaunchSource:
    """One launch file.

    Attributes
    ----------
    file, text
        Its path, as it is named in messages, and its content.
    set_
        Values that the user gives for what the file leaves open, by name.
    """

    file: str
    text: str
    set_: Mapping[str, str] = field(default_factory=dict)

    @property
    def suffix(self) -> str:
        """Ending of the file's name: ``.sh``."""
        return Path(self.file).suffix.lower()

    @cached_property
    def yaml(self) -> Document:
        """The values of a YAML (or JSON) file, with their lines."""
        return parse_yaml(self.text, self.file)

    @cached_property
    def toml(self) -> dict[str, Any]:
        """The values of a TOML file."""
        try:
            return tomllib.loads(self.text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            found = re.search(r"line (\d+)", str(error))
            raise ConfigError(
                f"not TOML: {error}", file=self.file, line=int(found[1]) if found else None
            ) from error

    @cached_property
    def json(self) -> Any:
        """The values of a JSON file."""
        return parse_json(self.text, self.file)

    def line_of(self, name: str, section: str = "") -> int:
        """Return the first line that sets a key, behind a section's heading; 0 if none does."""
        inside = not section
        key = re.compile(rf"""^\s*["']?{re.escape(name)}["']?\s*[=:]""")
        for number, line in enumerate(self.text.splitlines(), 1):
            if section and (heading := re.match(r"\s*\[+([^\]]+)\]", line)):
                inside = heading[1].strip() == section
            elif inside and key.match(line):
                return number
        return 0

    def error(self, message: str, line: int = 0, name: str | None = None) -> ConfigError:
        """Return an error that points at a line of this file."""
        return ConfigError(message, file=self.file, line=line or None, field=name)


def open_source(path: str | Path, set_: Mapping[str, str] | None = None) -> LaunchSource:
    """Read a launch file of at most 4 MiB.

    Raises
    ------
    ConfigError
        If it cannot be read, or is not text.
    """
    text = _PRIVATE.sub(" ", read_text(path)).replace("\r\n", "\n")
    if not text.strip():
        raise ConfigError("the file is empty", file=str(path), line=1)
    return LaunchSource(str(path), text, dict(set_ or {}))


def leaves(
    data: Any, location: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield every value that is no mapping, with the keys that lead to it."""
    if isinstance(data, dict) and data:
        for key, value in data.items():
            yield from leaves(value, (*location, str(key)))
    else:
        yield location, data
