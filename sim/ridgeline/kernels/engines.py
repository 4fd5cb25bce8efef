"""How long a contraction keeps a compute engine busy: one model per kind of engine.

A model is a function from the contraction to *FLOP at peak rate*: the number of FLOP that the
engine would do at its peak in the time that this contraction takes. Kinds are registered by name; a
cycle-accurate model of an engine replaces its entry here and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ridgeline.hardware.device import Achievable, Device
from ridgeline.kernels.traffic import Operands, near_levels
from ridgeline.kernels.waves import Machine, best_blocking
from ridgeline.workload.graph import Conv, Op

# Tensor-core convolutions work on channels in multiples of 8; cuDNN pads others with zeros (NVIDIA,
# "Convolutional Layers User's Guide", DU-09795-001, section "Channels In And Out").
_CHANNEL_MULTIPLE = 8


@dataclass(frozen=True, slots=True)
class Busy:
    """Work of a contraction on an engine.

    Attributes
    ----------
    peak_flops
        FLOP that the engine would do at peak in the same time.
    calibrated
        Whether the achievable share is known; without it a full engine is taken to run at its
        peak, which is a bound.
    latency_s
        Time besides the op's launch in which neither arithmetic nor traffic goes on.
    near_bytes
        Bytes that pass each memory level between registers and the farthest.
    """

    peak_flops: float
    calibrated: bool
    latency_s: float
    near_bytes: float


EngineModel = Callable[[Op, Operands, Device, str, str], Busy]


def filter_class(loops: Conv) -> str:
    """Class of a convolution in a device's table of achievable shares."""
    return "1x1" if loops.r * loops.s == 1 else "larger"


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
            if row.filter != filter_class(op.loops):
                continue
        return row
    return None


def padding(loops: Conv) -> float:
    """Channels of a convolution with padding, over channels: how much more work is done."""
    channels = loops.c_in // loops.groups
    return math.ceil(channels / _CHANNEL_MULTIPLE) * _CHANNEL_MULTIPLE / channels


def in_waves(op: Op, operands: Operands, device: Device, engine: str, format_: str) -> Busy:
    """Output tiles in waves over the device's processors (see `waves`).

    The processors are the instances of the nearest memory level. Full, they run at the share of
    the peak that microbenchmarks of this class of op reach.
    """
    row = achievable_share(op, device, engine, format_)
    peak = device.engines[engine].rates[format_].value
    far = device.memory[device.far_memory]
    assert far.bandwidth is not None
    bandwidths = [
        level.bandwidth.value * level.achievable.value
        for level in near_levels(device).values()
        if level.bandwidth is not None
    ]
    share = 1.0 if row is None else row.fraction.value
    if device.engines[engine].kind == "tensor-core" and isinstance(op.loops, Conv):
        share /= padding(op.loops)
    machine = Machine(
        processors=next(iter(device.memory.values())).instances.value,
        rate_flop_per_s=peak * share,
        near_bytes_per_s=min(bandwidths, default=math.inf),
        round_latency_s=2 * far.latency.value if far.latency is not None else 0.0,
        launch_s=device.launch_latency.value,
    )
    floor_s = operands.far_bytes / (far.bandwidth.value * far.achievable.value)
    best = best_blocking(operands.gemm, operands.a_bytes, operands.b_bytes, floor_s, machine)
    return Busy(
        peak_flops=best.arithmetic_s * peak,
        calibrated=row is not None,
        latency_s=best.latency_s,
        near_bytes=operands.near_bytes(best.rows, best.columns) + best.partial_bytes,
    )


ENGINE_MODELS: dict[str, EngineModel] = {
    "tensor-core": in_waves,
    "vector": in_waves,
    "systolic": in_waves,
}
