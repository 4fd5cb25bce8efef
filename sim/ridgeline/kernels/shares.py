"""Which row of a device's table of achievable shares is a contraction's."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.hardware.device import Achievable, Device
from ridgeline.workload.graph import Conv, Op, Pass


def filter_class(loops: Conv) -> str:
    """Class of a convolution in a device's table of achievable shares.

    3 x 3 x 3 filters of volumes have no kernels of Winograd's, which the shares of 3 x 3 filters
    may include.
    """
    if loops.r * loops.s * loops.taps == 1:
        return "1x1"
    unit = (loops.stride, loops.dilation, loops.taps) == ((1, 1), (1, 1), 1)
    return "3x3" if unit and (loops.r, loops.s) == (3, 3) else "larger"


def achievable_share(op: Op, device: Device, engine: str, format_: str) -> Achievable | None:
    """Find the first calibration row of the device that fits an op.

    A recurrence or fused attention for which there is no row is as good as the products that it
    consists of.
    """
    return achievable_shares((op,), device, engine, format_)[0]


def achievable_shares(
    ops: Sequence[Op], device: Device, engine: str, format_: str, *, as_filter: str = ""
) -> list[Achievable | None]:
    """Find the calibration row of each op; the table is searched once for each class of ops.

    Parameters
    ----------
    as_filter
        The class of filters that convolutions are taken to be of; "": their own.
    """
    known: dict[tuple[tuple[str, ...], Pass, str], list[Achievable]] = {}
    found = []
    for op in ops:
        filter_ = (as_filter or filter_class(op.loops)) if isinstance(op.loops, Conv) else ""
        class_ = _names(op), op.priced_as, filter_
        if class_ not in known:
            known[class_] = [
                row
                for name in class_[0]
                for row in device.achievable
                if (row.engine, row.format, row.op) == (engine, format_, name)
                and row.pass_ in {None, op.priced_as.value}
                and row.filter in {None, filter_}
            ]
        large = (
            row
            for row in known[class_]
            if row.at_least is None or op.matrix_flops >= row.at_least.value
        )
        found.append(next(large, None))
    return found


def _names(op: Op) -> tuple[str, ...]:
    """Names that an op may have in the table, the most special first."""
    product = "conv2d" if isinstance(op.loops, Conv) else "gemm"
    if op.sequential:
        return "recurrence", product
    if op.kind == "flash-attention":
        first = ("attention-1",) if dict(op.attrs).get("first") else ()
        return *first, "attention", product
    return (product,)
