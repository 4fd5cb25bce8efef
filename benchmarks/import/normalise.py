"""The tables that ship with ``ridgeline validate``, normalised from raw rows.

    python benchmarks/import/normalise.py [TABLE ...]

reads ``raw/TABLE.csv``, rows in their sources' words, and writes the table of that name that ships
with ``ridgeline validate``.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from ridgeline.study.csv_file import write_csv
from ridgeline.study.import_rows import imported
from ridgeline.study.validate.rows import SHIPPED, MeasuredRow, read_rows

HERE = Path(__file__).parent
SUITES = {
    "steps": "multi-device",
    "llm": "llm",
    "memory": "memory",
    "kernels": "gemm",
    "share_alike/kernels": "gemm",
    "collectives": "collectives",
    "share_alike/collectives": "collectives",
    "power": "energy",
    "imagenet": "imagenet",
    "mlperf": "mlperf",
    "pipelines": "pipeline",
    "convergence": "convergence",
}
"""Tables, and a suite that reads each."""


def normalised(table: str) -> list[MeasuredRow]:
    """Return all rows of a table, in the source's words and by catalogue names.

    Why a row is skipped is written without the nearest name, which changes with the catalogue.
    """
    rows = imported(SUITES[table], read_rows(HERE / "raw" / f"{table}.csv"))
    return [
        replace(row, values={**row.values, "skip": row.values["skip"].partition("; did you ")[0]})
        if row.values.get("skip")
        else row
        for row in rows
    ]


def write(table: str, path: Path) -> None:
    """Write a table of normalised rows."""
    write_csv(path, [row.values for row in normalised(table)])


def main() -> None:
    """Normalise the tables that are named, or all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=", ".join(SUITES))
    for table in parser.parse_args().tables or SUITES:
        write(table, SHIPPED / f"{table}.csv")


if __name__ == "__main__":
    main()
