"""Parquet files as tables of polars, within bounds: a kilobyte of one can state a billion rows."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ridgeline.bounded_files import MAX_CELLS, MAX_COLUMNS, opened
from ridgeline.errors import ConfigError

if TYPE_CHECKING:
    import polars

MAX_FRAME_CELLS = 2**26
"""Of a table that stays one of polars, eight bytes a cell: a million points with 64 columns."""
MAX_PARQUET_BYTES = 2**29
MAX_TEXT_BYTES = 2**28
"""Of all text in a table: the file may say a long one once for many rows."""


def read_parquet(path: str | Path, cells: int = MAX_CELLS) -> polars.DataFrame:
    """Read a Parquet file of at most `cells` cells: as many as rows by name have room for.

    Raises
    ------
    ConfigError
        If it cannot be read, is damaged, states more cells or text than that, or polars is missing.
    """
    try:
        import polars
    except ImportError as error:
        raise ConfigError(
            "Parquet needs polars: pip install 'ridgeline[study]', or write CSV", file=str(path)
        ) from error
    try:
        # A stream, since polars takes no path that is not UTF-8.
        with opened(path) as stream, _silent_panics():
            if os.fstat(stream.fileno()).st_size > MAX_PARQUET_BYTES:
                raise ConfigError(f"larger than {MAX_PARQUET_BYTES} bytes", file=str(path))
            columns = polars.read_parquet_schema(stream)
            stream.seek(0)
            rows = polars.scan_parquet(stream).select(polars.len()).collect().item()
            if len(columns) > MAX_COLUMNS or rows * len(columns) > cells:
                raise ConfigError(
                    f"{rows} rows of {len(columns)} columns; allowed: {cells} cells",
                    file=str(path),
                )
            stream.seek(0)
            table = polars.read_parquet(stream)
            if any(kind.is_nested() for kind in columns.values()):
                raise ConfigError("a column holds lists or structures", file=str(path))
            texts = [
                table[name].cast(polars.String).str.len_bytes().sum()
                for name, kind in columns.items()
                if not kind.is_numeric()
            ]
    except (OSError, polars.exceptions.PolarsError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"cannot be read as Parquet: {reason}", file=str(path)) from error
    except polars.exceptions.PanicException as error:
        raise ConfigError("cannot be read as Parquet: it is damaged", file=str(path)) from error
    if sum(texts) > MAX_TEXT_BYTES:
        raise ConfigError(f"more than {MAX_TEXT_BYTES} bytes of text", file=str(path))
    return table


@contextmanager
def _silent_panics() -> Iterator[None]:
    """Keep what the threads of polars write of a damaged file from standard error."""
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
