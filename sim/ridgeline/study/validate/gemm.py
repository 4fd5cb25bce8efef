"""Matrix products: the rows of kind ``gemm`` in a table of kernel times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ridgeline.errors import RidgelineError
from ridgeline.hardware.device import Device
from ridgeline.kernels.single import gemm
from ridgeline.study.validate import kernels
from ridgeline.study.validate.outcome import Outcome, Skipped
from ridgeline.study.validate.rows import Row

COLUMNS = (*kernels.COLUMNS, "M", "N", "K")
SHIPPED = "kernels.csv"


def predict(rows: Iterable[Row]) -> Iterator[Outcome | Skipped]:
    """Predict the time of every matrix product."""
    return kernels.predict_kernels(rows, frozenset({"gemm"}), _gemm)


def _gemm(row: Row, device: Device, format_: str) -> tuple[float, str, float, float]:
    m, n, k = (row.whole(name) for name in "MNK")
    if m is None or n is None or k is None:
        raise RidgelineError("the size of the product is not given")
    result = gemm(m, n, k, device, format=format_)
    return result.time_s, f"gemm {m}x{n}x{k}", result.flops, result.compulsory_bytes
