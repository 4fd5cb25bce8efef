"""CSV files with a header, read row by row: none is cut or lengthened to fit."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from ridgeline.config import read_text
from ridgeline.errors import ConfigError

MAX_FIELD_CHARACTERS = 2**20
_SEPARATORS = frozenset(";\t|")  # of other programs


def read_csv(path: str | Path, limit: int) -> list[tuple[int, dict[str, str]]]:
    """Return the fields of every row by column, and the line that each row ends in.

    A file whose name ends in ``.gz`` is unpacked; `limit` is then of what comes out.

    Raises
    ------
    ConfigError
        If the file cannot be read, has more than `limit` bytes, its first line does not name
        columns, each once, or a row has more or fewer fields than that.
    """
    file = str(path)
    text = (unpacked(path, limit) if file.endswith(".gz") else read_text(path, limit)).removeprefix(
        "\ufeff"
    )
    return parse_csv(text, file)


def parse_csv(text: str, file: str, separator: str = ",") -> list[tuple[int, dict[str, str]]]:
    """Return the fields of every row of CSV text by column, and the line that each row ends in.

    Raises
    ------
    ConfigError
        As `read_csv`; `file` names the text in messages.
    """
    csv.field_size_limit(MAX_FIELD_CHARACTERS)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    rows: list[tuple[int, dict[str, str]]] = []
    try:
        header = next(reader, [])
        if separator == "," and len(header) == 1 and (apart := _SEPARATORS.intersection(header[0])):
            raise ConfigError(
                f"columns are separated by {min(apart)!r}; allowed: a comma", file=file, line=1
            )
        if len(set(header)) < len(header) or not any(header):
            raise ConfigError("the first line must name the columns, each once", file=file, line=1)
        for fields in reader:
            if not fields:
                continue
            if len(fields) != len(header):
                raise ConfigError(
                    f"{len(fields)} fields, but the header names {len(header)} columns",
                    file=file,
                    line=reader.line_num,
                )
            rows.append((reader.line_num, dict(zip(header, fields, strict=True))))
    except csv.Error as error:
        raise ConfigError(f"not a CSV file: {error}", file=file, line=reader.line_num) from error
    return rows


def unpacked(path: str | Path, limit: int) -> str:
    """Return the text of a gzip file, of at most `limit` bytes.

    Raises
    ------
    ConfigError
        If it cannot be read, is no such file, or holds more than that, or no UTF-8 text.
    """
    file = str(path)
    try:
        with gzip.open(path, "rb") as stream:
            raw = stream.read(limit + 1)
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot be read as gzip: {why}", file=file) from error
    if len(raw) > limit:
        raise ConfigError(f"larger than {limit} bytes when unpacked", file=file)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"not UTF-8 text (byte {error.start})", file=file) from error


def write_csv(path: str | Path, rows: Iterable[Mapping[str, str]]) -> None:
    """Write rows under all columns that any of them has; what a row has none of is empty."""
    table = list(rows)
    columns = list(dict.fromkeys(name for row in table for name in row))
    with Path(path).open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)
