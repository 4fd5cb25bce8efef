"""``ridgeline gemm``: one matrix product on one device."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from ridgeline.cli.ops import print_op
from ridgeline.cli.whole import Whole


def gemm_(
    m: Whole,
    n: Whole,
    k: Whole,
    *,
    device: str,
    batch: Whole = 1,
    format: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Price C[m, n] = A[m, k] B[k, n] on one device.

    Parameters
    ----------
    m
        Rows of A and C.
    n
        Columns of B and C.
    k
        Columns of A, rows of B.
    device
        Name or file of a device.
    batch
        How many such products.
    format
        Number format; by default the fastest one of the device.
    json
        Print the answer as JSON.
    """
    from ridgeline.kernels.single import gemm

    print_op(gemm(m, n, k, device, batch=batch, format=format), json)
