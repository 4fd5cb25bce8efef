"""The measured share of an engine's peak that belongs to an op."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.hardware.device import Achievable, Device
from ridgeline.workload.graph import Conv, Op, Pass


def filter_class(loops: Conv) -> str:
    """Class of a convolution in a device's table of achievable shares."""
    if loops.r * loops.s == 1:
        return "1x1"
    unit = (loops.stride, loops.dilation) == ((1, 1), (1, 1))
    return "3x3" if unit and (loops.r, loops.s) == (3, 3) else "larger"


def achievable_share(op: Op, device: Device, engine: str, format_: str) -> Achievable | None:
    """Find the first calibration row of the device that fits an op.

    A recurrence or fused attention for which there is no row is as good as the products that it
    consists of.
    """
    kind = "conv2d" if isinstance(op.loops, Conv) else "gemm"
    whole = ["recurrence"] if op.sequential else []
    if op.kind == "flash-attention":
        whole = ["attention-1", "attention"] if dict(op.attrs).get("first") else ["attention"]
    rows = (_first_row(op, device, engine, format_, name) for name in (*whole, kind))
    return next((row for row in rows if row is not None), None)


def _first_row(op: Op, device: Device, engine: str, format_: str, kind: str) -> Achievable | None:
    for row in device.achievable:
        if (row.engine, row.format, row.op) != (engine, format_, kind):
            continue
        if row.pass_ is not None and row.pass_ != op.priced_as.value:
            continue
        if row.filter is not None:
            assert isinstance(op.loops, Conv)
            if row.filter != filter_class(op.loops):
                continue
        if row.at_least is not None and op.matrix_flops < row.at_least.value:
            continue
        return row
    return None


def shares_of(
    ops: Sequence[Op], device: Device, engine: str, format_: str
) -> list[Achievable | None]:
    """Find the calibration row of each op; those of one class have the same."""
    known: dict[tuple[bool, Pass, str], Achievable | None] = {}
    found = []
    for op in ops:
        of = filter_class(op.loops) if isinstance(op.loops, Conv) else ""
        class_ = (op.sequential, op.priced_as, of)
        if class_ not in known:
            known[class_] = achievable_share(op, device, engine, format_)
        found.append(known[class_])
    return found
