"""Least times of the kernels around a framework's product: `data/product_ways.csv`.

Before a product of 8 or 4 bits, a kernel finds the scales of the activations and casts them. Where
it gives each row to a block of threads, rows take a time of their own however short they are
(``row_us``, of one row on one processor). Kernels of products that do not split sums over k add
them up in one block of threads: however few outputs there are, each element of the sum takes
``k_ns``. Benchmarks repeat a call with the ``weights`` of so many layers in turn. Lines with a
library are of devices of this generation (`Engine.library`).
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from ridgeline.study.csv_file import read_csv
from ridgeline.study.validate.rows import MAX_BYTES, SHIPPED

FILE = "product_ways.csv"


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
    """

    row_s: float = 0.0
    k_s: float = 0.0
    weights: int = 6


def product_way(framework: str, format_: str, library: str = "") -> ProductWay:
    """Return how a framework runs a product; without least times where none is known."""
    table = _table()
    known = table.get((framework, format_, library)) or table.get((framework, format_, ""))
    return known or ProductWay()


@cache
def _table() -> dict[tuple[str, str, str], ProductWay]:
    return {
        (row["framework"], row["format"], row["library"]): ProductWay(
            float(row["row_us"]) * 1e-6, float(row["k_ns"]) * 1e-9, int(row["weights"])
        )
        for _, row in read_csv(SHIPPED / FILE, MAX_BYTES)
    }
