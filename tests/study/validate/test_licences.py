"""Every measured row has a source with a licence, and share-alike rows stand apart."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from ridgeline.study.validate import shipped_files
from ridgeline.study.validate.rows import SHIPPED

ROOT = Path(__file__).parents[3]
ESTIMATED = {"call_starts.csv", "power_meters.csv", "product_ways.csv", "host_launches.csv"}
"""What ridgeline estimated from measured rows, each with the rows' table."""


def rows(path: Path) -> Iterator[dict[str, str]]:
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
    yield from csv.DictReader(io.StringIO(text))


def tables() -> list[Path]:
    found = sorted(path for path in SHIPPED.rglob("*") if path.suffix in {".csv", ".gz"})
    return [path for path in found if path.name not in {*ESTIMATED, "licences.csv"}]


def licence_of(source: str, known: list[dict[str, str]]) -> dict[str, str]:
    (found,) = [one for one in known if source.startswith(one["source"])]
    return found


@pytest.mark.parametrize("path", tables(), ids=lambda path: str(path.relative_to(SHIPPED)))
def test_every_row_has_a_source_and_a_licence(path: Path) -> None:
    known = list(rows(SHIPPED / "licences.csv"))
    for row in rows(path):
        assert row["source"].strip()
        if "licence" in row:
            assert row["licence"].strip()
            assert "SA" not in row["licence"]
        else:
            shares = licence_of(row["source"], known)["licence"].startswith("CC-BY-SA")
            assert shares == (path.parent.name == "share_alike"), row["source"]


def test_every_licence_is_of_some_row_and_complete() -> None:
    sources = {row["source"] for path in tables() for row in rows(path)}
    for one in rows(SHIPPED / "licences.csv"):
        assert all(one.values()), one
        assert any(source.startswith(one["source"]) for source in sources), one


def test_share_alike_rows_are_read_where_they_are_and_not_in_the_wheel() -> None:
    assert SHIPPED / "share_alike" / "kernels.csv" in shipped_files("gemm")
    assert "data/share_alike" in (ROOT / "pyproject.toml").read_text("utf-8")
    assert "share_alike" in (ROOT / "NOTICE").read_text("utf-8")
