"""The best rows of a sweep: by one column, or those that no other row beats in several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ridgeline.errors import ConfigError
from ridgeline.study.columns import number, resolve

Row = dict[str, Any]


def candidates(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that can be chosen: without an error, and feasible where that is asked."""
    failed = [isinstance(error := row.get("error"), str) and error != "" for row in rows]
    return [
        row
        for row, fails in zip(rows, failed, strict=True)
        if not fails and row.get("feasible") in {None, True}
    ]


def values_of(rows: Sequence[Row], column: str) -> tuple[str, np.ndarray[Any, np.dtype[Any]]]:
    """Return the full name and the numbers of a column; not a number where a row has none.

    Raises
    ------
    ConfigError
        If there is no such column, or it holds no numbers.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    name = resolve(column, names)
    read = [number(row.get(name)) for row in rows]
    wrong = next((value for value in read if value is not None and isinstance(value, str)), None)
    if wrong is not None or all(value is None for value in read):
        raise ConfigError(f"the column {name!r} holds no numbers (found {wrong!r})")
    return name, np.array([np.nan if value is None else float(value) for value in read])


def top(rows: Sequence[Row], by: str, n: int, *, largest: bool = False) -> list[Row]:
    """Return the `n` rows with the smallest (or largest) values of a column, best first."""
    rows = candidates(rows)
    if not rows:
        return []
    _, values = values_of(rows, by)
    order = np.argsort(-values if largest else values, kind="stable")
    return [rows[i] for i in order.tolist() if not np.isnan(values[i])][:n]


def pareto(rows: Sequence[Row], smallest: Sequence[str], largest: Sequence[str] = ()) -> list[Row]:
    """Return the rows that no other row beats: as good in all columns and better in one.

    Rows are ordered by the first column. A row without a number in one of the columns cannot be
    compared, and is left out.

    Raises
    ------
    ConfigError
        If a column is named twice, also as one to be small and large.
    """
    rows = candidates(rows)
    if not rows:
        return []
    read = [values_of(rows, name) for name in (*smallest, *largest)]
    names = [name for name, _ in read]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"the column {twice!r} is named twice; a front is of different columns")
    values = np.stack([column for _, column in read], axis=1)
    values[:, len(smallest) :] *= -1
    order = [i for i in np.lexsort(values.T[::-1]).tolist() if not np.isnan(values[i]).any()]
    front: list[int] = []
    kept = np.empty((len(order), values.shape[1]))
    for i in order:  # whatever beats a row comes before it in this order
        before = kept[: len(front)]
        beaten = (before <= values[i]).all(axis=1) & (before < values[i]).any(axis=1)
        if not beaten.any():
            kept[len(front)] = values[i]
            front.append(i)
    return [rows[i] for i in front]
