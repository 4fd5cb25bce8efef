"""CSV files with a header, read row by row: none is cut or lengthened to fit."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ridgeline.bounded_files import csv_rows, read_text
from ridgeline.errors import ConfigError

_SEPARATORS = frozenset(";\t|")  # of other programs


def read_csv(path: str | Path, limit: int) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the fields of every row by column, and the line that each row ends in.

    A file whose name ends in ``.gz`` is unpacked; `limit` is then of what comes out.

    Raises
    ------
    ConfigError
        If the file cannot be read, has more than `limit` bytes, its first line does not name
        columns, each once, or a row has more or fewer fields than that.
    """
    return parse_csv(read_text(path, limit), str(path))


def parse_csv(text: str, file: str, separator: str = ",") -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the fields of every row of CSV text by column, and the line that each row ends in.

    Raises
    ------
    ConfigError
        As `read_csv`; `file` names the text in messages.
    """
    table = csv_rows(text, file, separator)
    _, header = next(table, (1, []))
    if separator == "," and len(header) == 1 and (apart := _SEPARATORS.intersection(header[0])):
        raise ConfigError(
            f"columns are separated by {min(apart)!r}; allowed: a comma", file=file, line=1
        )
    if len(set(header)) < len(header) or not any(map(str.strip, header)):
        raise ConfigError("the first line must name the columns, each once", file=file, line=1)
    for line, fields in table:
        if not fields:
            continue
        if len(fields) != len(header):
            raise ConfigError(
                f"{len(fields)} fields, but the header names {len(header)} columns",
                file=file,
                line=line,
            )
        yield line, dict(zip(header, fields, strict=True))


def write_csv(path: str | Path, rows: Iterable[Mapping[str, str]]) -> None:
    """Write rows under all columns that any of them has; what a row has none of is empty."""
    table = list(rows)
    columns = list(dict.fromkeys(name for row in table for name in row))
    with Path(path).open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)
