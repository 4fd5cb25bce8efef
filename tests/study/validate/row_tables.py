"""Tables of measurements that tests write."""

from __future__ import annotations

from pathlib import Path

from ridgeline.study.validate import Validation, validate


def made(folder: Path, suite: str, header: str, rows: str) -> Validation:
    """Validate rows under a header as a file of a suite."""
    path = folder / "rows.csv"
    path.write_text(header + rows, encoding="utf-8")
    return validate(suite, path)
