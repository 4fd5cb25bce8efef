"""Tables of others, read forgivingly: a row in its source's words gets columns by catalogue names.

A module for each suite has ``READS``, the columns that it needs, and ``normal(row)``, which returns
the columns of a normalised row (`study.validate`), among them ``skip``: why it cannot be simulated.
Names of networks, devices, frameworks and sources are matched here, and nowhere else in the
package.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from ridgeline.errors import ConfigError, RidgelineError, nearest
from ridgeline.study.validate.rows import MeasuredRow, read_rows
from ridgeline.study.validate.suites import SUITES, find_suite

_MODULES = {
    "gemm": "kernels", "conv": "kernels", "rnn": "kernels",
    "single-device": "steps", "multi-device": "steps", "node-power": "energy",
    "power-limit": "energy",
    **dict.fromkeys(
        ("attention", "moe", "elementwise", "norm", "softmax", "linear-attention", "cast",
         "expert-all-to-all", "kernel-power", "model-latency"),
        "measured",
    ),
}  # fmt: skip
_COMPARED = frozenset({"single-device", "multi-device"})


def importer_of(suite: str) -> Any:
    """Import the module that reads a suite's tables.

    Raises
    ------
    RidgelineError
        If there is no such suite.
    """
    find_suite(suite)
    return import_module(f"{__name__}.{_MODULES.get(suite, suite.replace('-', '_'))}")


def imported(suite: str, rows: Iterable[MeasuredRow]) -> Iterator[MeasuredRow]:
    """Add the columns of normalised rows; what cannot be read says why in ``skip``."""
    module, table = importer_of(suite), list(rows)
    normal = module.normal
    if suite in _COMPARED:  # several devices with one, by rows of the same table
        normal = import_module(f"{__name__}.baseline_rows").Alone(table).normal
    translated = getattr(module, "translated", lambda row: row)
    for row in table:
        words = row
        try:
            words = translated(row)
            made = normal(words)
        except RidgelineError as error:
            made = refused(row, error)
        own = {f"source_{n}": text for n in made if (text := row.values.get(n)) and text != made[n]}
        named = {"id": words.id} if words is not row else {}
        yield MeasuredRow(row.file, row.line, {**row.values, **named, **own, **made})


def import_table(suite: str, path: Path) -> list[MeasuredRow]:
    """Read a table in its source's words, as normalised rows.

    Raises
    ------
    ConfigError
        If it cannot be read, or lacks a column that the suite needs.
    """
    rows = read_rows(path)
    check_columns(suite, rows[0])
    return list(imported(suite, rows))


def suite_of(path: Path, rows: Sequence[MeasuredRow]) -> str:
    """Return the suite whose columns a table has.

    Raises
    ------
    ConfigError
        If none is, or several are.
    """
    fits = [
        suite
        for suite in SUITES
        if getattr(importer_of(suite), "IMPORTS", True) and rows and not _missing(suite, rows[0])
    ]
    found = list({importer_of(suite).__name__: suite for suite in fits}.values())
    if len(found) != 1:
        several = f"({', '.join(found)})" if found else f"of {', '.join(SUITES)}"
        raise ConfigError(f"say by --suite what was measured: one {several}", file=str(path))
    return found[0]


def refused(row: MeasuredRow, error: RidgelineError) -> dict[str, str]:
    """Return the columns of a row that cannot be read or simulated."""
    if isinstance(error, ConfigError) and error.file == row.file and error.field:
        return {"skip": f"{error.field}: {error.message}", "unreadable": error.field}
    return {"skip": str(error)}


def check_columns(suite: str, row: MeasuredRow) -> None:
    """Refuse a table that lacks a column.

    Raises
    ------
    ConfigError
        With the first that is missing.
    """
    if missing := _missing(suite, row):
        needed = _needed(suite)
        raise ConfigError(
            f"the column {missing[0]!r} is missing{nearest(missing[0], row.values)} "
            f"(the suite reads: {', '.join(needed)})",
            file=row.file,
            line=1,
        )


def _needed(suite: str) -> tuple[str, ...]:
    module = importer_of(suite)
    return (*module.READS, *getattr(module, "MORE", {}).get(suite, ()))


def _missing(suite: str, row: MeasuredRow) -> list[str]:
    row = getattr(importer_of(suite), "translated", lambda one: one)(row)
    return [name for name in _needed(suite) if name not in row.values]
