"""Tables of measurements: CSV files whose rows know their file and line."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ridgeline.errors import ConfigError

MAX_BYTES = 64 * 2**20
MAX_FIELD_CHARACTERS = 2**20


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement as it stands in its file; an empty field is None."""

    file: str
    line: int
    values: Mapping[str, str]

    @property
    def id(self) -> str:
        """The row's own name, or its line."""
        return self.values.get("id") or f"line {self.line}"

    def text(self, name: str) -> str:
        """Return a field without the spaces around it."""
        return (self.values.get(name) or "").strip()

    def number(self, name: str) -> float | None:
        """Return a field as a number, None if it is empty.

        Raises
        ------
        ConfigError
            If it is something else.
        """
        text = self.text(name)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise ConfigError(
                f"expected a number, found {text!r}", file=self.file, line=self.line, field=name
            )
        return value

    def whole(self, name: str) -> int | None:
        """Return a field as a whole number, None if it is empty or has a fraction."""
        value = self.number(name)
        return int(value) if value is not None and value.is_integer() else None


def read_rows(path: Path) -> list[Row]:
    """Read a CSV file with a header.

    Raises
    ------
    ConfigError
        If it cannot be read, is too large, or a row has more or fewer fields than the header.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"larger than {MAX_BYTES >> 20} MiB", file=str(path))
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"cannot be read: {reason}", file=str(path)) from error
    csv.field_size_limit(MAX_FIELD_CHARACTERS)
    reader = csv.reader(text.splitlines(keepends=True), strict=True)
    rows: list[Row] = []
    try:
        header = next(reader, [])
        if len(set(header)) < len(header) or not any(header):
            raise ConfigError(
                "the first line must name the columns, each once", file=str(path), line=1
            )
        for fields in reader:
            if not fields:
                continue
            if len(fields) != len(header):
                raise ConfigError(
                    f"{len(fields)} fields, but the header names {len(header)} columns",
                    file=str(path),
                    line=reader.line_num,
                )
            rows.append(Row(str(path), reader.line_num, dict(zip(header, fields, strict=True))))
    except csv.Error as error:
        raise ConfigError(
            f"not a CSV file: {error}", file=str(path), line=reader.line_num
        ) from error
    return rows
