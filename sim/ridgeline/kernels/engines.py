"""How long a contraction keeps a compute engine busy: one model per kind of engine.

A model is a function from the contraction to *FLOP at peak rate*: the number of FLOP that the
engine would do at its peak in the time that this contraction takes. Kinds are registered by name; a
cycle-accurate model of an engine replaces its entry here and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ridgeline.hardware.device import Achievable, Device
from ridgeline.workload.graph import Conv, Op


@dataclass(frozen=True, slots=True)
class Busy:
    """Work of a contraction on an engine.

    Attributes
    ----------
    peak_flops
        FLOP that the engine would do at peak in the same time.
    calibrated
        Whether the achievable share is known; without it the peak is taken, which is a bound.
    """

    peak_flops: float
    calibrated: bool


EngineModel = Callable[[Op, Device, str, str], Busy]


def achievable_share(op: Op, device: Device, engine: str, format_: str) -> Achievable | None:
    """Find the first calibration row of the device that fits an op."""
    is_conv = isinstance(op.loops, Conv)
    for row in device.achievable:
        if (row.engine, row.format) != (engine, format_):
            continue
        if row.op != ("conv2d" if is_conv else "gemm"):
            continue
        if row.pass_ is not None and row.pass_ != op.pass_.value:
            continue
        if row.filter is not None:
            assert isinstance(op.loops, Conv)
            if (row.filter == "1x1") != (op.loops.r * op.loops.s == 1):
                continue
        return row
    return None


def share_of_peak(op: Op, device: Device, engine: str, format_: str) -> Busy:
    """Arithmetic at the share of the peak that microbenchmarks of this class of op reach."""
    row = achievable_share(op, device, engine, format_)
    if row is None:
        return Busy(float(op.matrix_flops), calibrated=False)
    return Busy(op.matrix_flops / row.fraction.value, calibrated=True)


ENGINE_MODELS: dict[str, EngineModel] = {
    "tensor-core": share_of_peak,
    "vector": share_of_peak,
    "systolic": share_of_peak,
}
