"""Least times of the kernels around a framework's product: `data/product_ways.csv`.

Before a product of 8 or 4 bits, a kernel finds the scales of the activations and casts them. Where
it gives each row to a block of threads, rows take a time of their own however short they are
(``row_us``, of one row on one processor), and each of their numbers one (``element_ns``). Kernels
of products that do not split sums over k add them up in one block of threads: however few outputs
there are, each element of the sum takes ``k_ns``. Such kernels choose the block by the rows of the
activations alone: from 129 rows on it is of `BLOCK` x `BLOCK` outputs and may reach a ``share`` of
a processor's peak, so that outputs that fill few processors leave the others idle. A line is of the
least ``rows`` that it states. Benchmarks repeat a call with the ``weights`` of so many layers in
turn. Lines with a library are of devices of this generation (`Engine.library`).

``k_ns``, ``element_ns`` and ``share`` are fitted by `benchmarks/fit_product_ways.py`, which says
what devices that are left out get, or shapes where there is one device.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from ridgeline.study.csv_file import read_csv
from ridgeline.study.validate.rows import MAX_BYTES, SHIPPED

FILE = "product_ways.csv"
BLOCK = 128


class ProductWay(NamedTuple):
    """How a framework runs a product of a format.

    Attributes
    ----------
    row_s
        Least time of a row on a processor, of the kernel before the product.
    k_s
        Time of an element of a sum in one block of threads; 0: sums are split.
    weights
        Layers that take turns where a benchmark repeats the call.
    element_s
        Time of a number of a row on a processor, of the kernel before the product.
    share
        Of a processor's peak that a block of `BLOCK` x `BLOCK` sums reaches; 0: sums are split.
    """

    row_s: float = 0.0
    k_s: float = 0.0
    weights: int = 6
    element_s: float = 0.0
    share: float = 0.0


def product_way(framework: str, format_: str, library: str = "", rows: int = 1) -> ProductWay:
    """Return how a framework runs a product of so many rows of activations.

    The line of the most rows counts, of these the library's. Without least times where none is
    known.
    """
    table = _table()
    lines = [
        (least, bool(name), way)
        for name in {library, ""}
        for least, way in table.get((framework, format_, name), ())
        if rows >= least
    ]
    return max(lines, key=lambda line: line[:2])[2] if lines else ProductWay()


@cache
def _table() -> dict[tuple[str, str, str], list[tuple[int, ProductWay]]]:
    found: dict[tuple[str, str, str], list[tuple[int, ProductWay]]] = {}
    for _, row in read_csv(SHIPPED / FILE, MAX_BYTES):
        way = ProductWay(
            float(row["row_us"]) * 1e-6,
            float(row["k_ns"]) * 1e-9,
            int(row["weights"]),
            float(row["element_ns"]) * 1e-9,
            float(row["share"]),
        )
        key = (row["framework"], row["format"], row["library"])
        found.setdefault(key, []).append((int(row["rows"]), way))
    return found
