"""``ridgeline gemm``: one matrix product on one device, or on one systolic array."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from ridgeline.cli.whole import Whole


def gemm_(
    m: Whole,
    n: Whole,
    k: Whole,
    *,
    device: str | None = None,
    array: str | None = None,
    batch: Whole = 1,
    format: str | None = None,
    dataflow: str = "ws",
    fold: str = "overlapped",
    edge: str = "exact",
    sparsity: str | None = None,
    compat: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Price C[m, n] = A[m, k] B[k, n] on one device, or count its cycles on one systolic array.

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
    array
        Rows x columns of a systolic array, 128x128, instead of a device.
    batch
        How many such products.
    format
        Number format on a device; by default its fastest one.
    dataflow
        Of an array: os, ws or is.
    fold
        Of an array: overlapped, pipelined or serial.
    edge
        Of an array: exact or full.
    sparsity
        Of an array: N:M structured weights, 2:4.
    compat
        scalesim: the figures that SCALE-Sim 3.0.0 reports for an array.
    json
        Print the answer as JSON.
    """
    from ridgeline.errors import ConfigError

    if (device is None) == (array is None):
        raise ConfigError("give either --device NAME or --array ROWSxCOLUMNS")
    if device is not None:
        from ridgeline.cli.ops import print_op
        from ridgeline.kernels.single import gemm

        print_op(gemm(m, n, k, device, batch=batch, format=format), json)
        return
    assert array is not None
    from ridgeline.cli.arrays import print_array

    print_array((m, n, k), array, batch, (dataflow, fold, edge), sparsity, compat, json)
