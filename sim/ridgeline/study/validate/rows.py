"""Tables of measurements: CSV files whose rows know their file and line."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.study.csv_file import read_csv

SHIPPED = Path(__file__).with_name("data")
"""Folder of the tables that ship."""
MAX_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """One measurement as it stands in its file; an empty field is None."""

    file: str
    line: int
    values: Mapping[str, str]

    @property
    def id(self) -> str:
        """The row's own name, or its line."""
        return self.values.get("id") or f"line {self.line}"

    def check(self) -> None:
        """Refuse a row that says why it cannot be simulated.

        Raises
        ------
        RidgelineError
            For its own reason (``skip``); as ConfigError where a field of it could not be read.
        """
        if field := self.text("unreadable"):
            reason = self.text("skip").removeprefix(f"{field}: ")
            raise ConfigError(reason, file=self.file, line=self.line, field=field)
        if why := self.text("skip"):
            raise RidgelineError(why)

    def command(self, suite: str) -> str:
        """Return the line of a shell that prints the row's prediction of a suite by itself."""
        words = ["ridgeline", "validate", suite, "--only", self.id]
        if SHIPPED not in Path(self.file).parents:
            words += ["--data", self.file]
        if software := self.text("under"):
            words += ["--software", software]
        return shlex.join([*words, "--quantity", "predicted"])

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


def read_rows(path: Path) -> list[MeasuredRow]:
    """Read a CSV file with a header, or a log of nccl-tests.

    Raises
    ------
    ConfigError
        If it cannot be read, is too large, has no rows, or a row has more or fewer fields than the
        header.
    """
    from ridgeline.study.import_rows.nccl_tests import is_log, read_nccl_tests

    found = read_nccl_tests(path) if is_log(path) else read_csv(path, MAX_BYTES)
    rows = [MeasuredRow(str(path), line, fields) for line, fields in found]
    if not rows:
        raise ConfigError("there are no rows", file=str(path))
    return rows
