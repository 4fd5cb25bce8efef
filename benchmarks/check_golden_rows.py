"""Compares the predictions of a suite's rows with those that a file of an earlier state has.

    python benchmarks/check_golden_rows.py SUITE golden.json [--data rows.csv] [--processes N]

``golden.json`` is of ``ridgeline validate SUITE --json --rows``. Rows are matched by their id and
quantity, in order; what differs by more than 1e-12 is printed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ridgeline.study.validate import validate

_LIMIT = 1e-12


def differences(
    before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]]
) -> list[tuple[float, str]]:
    """Return how far rows are from their predictions before, and what they say, if too far."""
    old: dict[str, list[Mapping[str, Any]]] = {}
    for row in before:
        old.setdefault(row["id"], []).append(row)
    found = []
    for row in after:
        same = old.get(row["id"])
        was = same.pop(0) if same else {}
        if row.get("skipped") or was.get("skipped") or not was:
            if row.get("skipped") != was.get("skipped"):
                found.append((float("inf"), f"{row['id']}: {was.get('skipped')!r} -> {row}"))
            continue
        for name in ("predicted", "measured"):
            off = abs(row[name] - was[name]) / (abs(was[name]) or 1.0)
            if off > _LIMIT:
                words = f"{row['id']}: {name} {was[name]!r} -> {row[name]!r}"
                found.append((off, f"{words}\n    {row['command']}"))
    found += [(float("inf"), f"{name}: no longer a row") for name, rest in old.items() if rest]
    return found


def main() -> None:
    """Compare a suite, and print what differs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("suite")
    parser.add_argument("golden", type=Path)
    parser.add_argument("--data")
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args()
    before = json.loads(given.golden.read_text("utf-8"))["rows"]
    after = validate(given.suite, given.data, given.processes).to_dict(rows=True)["rows"]
    found = differences(before, after)
    for _, words in found:
        print(words)
    finite = [off for off, _ in found if off < float("inf")]
    print(
        f"{given.suite}: {len(after)} rows, {len(found)} differ, at most {max(finite, default=0)}"
    )


if __name__ == "__main__":
    main()
