"""Tables of a study's rows, wherever they are: the best by a column, and the Pareto front."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ridgeline.errors import ConfigError
from ridgeline.study import ranking
from ridgeline.study.study_rows import front_of
from ridgeline.study.sweep import plain_rows

Row = dict[str, Any]


@runtime_checkable
class PolarsTable(Protocol):
    """A table of polars."""

    def to_dicts(self) -> list[Row]:
        """Return its rows."""


@runtime_checkable
class PandasTable(Protocol):
    """A table of pandas."""

    def to_dict(self, orient: str) -> Any:
        """Return its rows, by the orient "records"."""


Table = str | Path | Iterable[Mapping[str, Any]] | PolarsTable | PandasTable
"""A file of rows (.csv, .parquet), rows of a study, or a data frame of polars or pandas."""


def pareto(table: Table, min: str | Sequence[str] = (), max: str | Sequence[str] = ()) -> list[Row]:
    """Return the rows that no other row beats: as good in all columns and better in one.

    Parameters
    ----------
    table
        Rows of a study, a file of them, or a data frame.
    min, max
        Columns to minimise, and to maximise: a list, or a text with commas between them.

    Raises
    ------
    ConfigError
        If fewer than two columns are named, one is named twice or is not there, or the table
        cannot be read.
    """
    return front_of(rows_of(table), min, max)


def top(table: Table, by: str, n: int = 10, *, largest: bool = False) -> list[Row]:
    """Return the rows with the smallest (or largest) values of a column, best first.

    Raises
    ------
    ConfigError
        If there is no such column, it holds no numbers, or the table cannot be read.
    """
    return ranking.top(rows_of(table), by, n, largest=largest)


def rows_of(table: Table) -> list[Row]:
    """Return the rows of a table as mappings."""
    if isinstance(table, str | Path):
        return plain_rows(table)
    if isinstance(table, PolarsTable):
        return table.to_dicts()
    if isinstance(table, PandasTable):
        return [{str(k): _or_none(v) for k, v in row.items()} for row in table.to_dict("records")]
    rows = list(table) if isinstance(table, Iterable) else None
    if rows is None or not all(isinstance(row, Mapping) for row in rows):
        found = type(table).__name__
        raise ConfigError(f"a table is a file, rows by column, or a data frame; found {found}")
    return [dict(row) for row in rows]


def _or_none(value: Any) -> Any:
    """Return a cell of pandas, whose gaps are not-a-number."""
    return None if isinstance(value, float) and math.isnan(value) else value
