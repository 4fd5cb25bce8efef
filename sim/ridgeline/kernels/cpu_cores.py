"""CPU cores: matrix products and convolutions on the cores of a processor.

A library of matrix products on general-purpose cores (Goto and van de Geijn, ACM TOMS 34(3), 2008)
copies panels of the operands into buffers, runs an inner kernel at nearly the peak over them, and
reads and writes the result once for every panel of the sum. The copies, the edges that do not fill
the kernel's tile and the result take time in proportion to the operands' bytes:

    copying = A / a + B / b + C / c + (products - 1) each
    time = latency + FLOP / (peak fraction) + max(copying, memory)

where memory is what the slowest of its levels takes. The five parameters are those of the device's
row for the class of op (`Achievable`), which ``ridgeline calibrate`` measures. A parameter that a
row leaves out takes no time, and without a row the peak alone counts.
"""

from __future__ import annotations

from typing import NamedTuple

from ridgeline.hardware.device import Achievable, Device
from ridgeline.kernels.traffic import Operands
from ridgeline.workload.graph import Op


class Terms(NamedTuple):
    """What the time of a contraction is a sum over, each with a parameter of its own.

    Attributes
    ----------
    flops
        Of all products.
    a_bytes, b_bytes, c_bytes
        Of the two operands and of everything else that is read or written, as often as the library
        is handed them: at every step of a recurrence.
    further
        Products after the first.
    """

    flops: float
    a_bytes: float
    b_bytes: float
    c_bytes: float
    further: float


def terms_of(op: Op, operands: Operands) -> Terms:
    """Return what the time of a contraction on cores is a sum over."""
    gemm = operands.gemm
    steps = gemm.batch if op.sequential else 1
    return Terms(
        float(op.matrix_flops),
        float(operands.a_bytes),
        float(operands.b_bytes * steps),
        float(operands.rest_bytes),
        float(gemm.batch - 1),
    )


def besides_s(row: Achievable, terms: Terms) -> float:
    """Time that a contraction takes besides its latency and its arithmetic."""
    moved = zip((row.repack.a, row.repack.b, row.repack.c), terms[1:4], strict=True)
    each_s = row.each.value if row.each is not None else 0.0
    if row.step_latency is not None:
        each_s += row.step_latency.value
    return terms.further * each_s + sum(
        size / rate.value for rate, size in moved if rate is not None
    )


def latency_of(row: Achievable | None, device: Device) -> float:
    """Return the fixed time of an op of a row's class."""
    if row is None or row.latency is None:
        return device.launch_latency.value
    return row.latency.value
