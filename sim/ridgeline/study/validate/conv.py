"""Convolutions: the rows of kind ``conv`` in a table of kernel times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ridgeline.errors import RidgelineError
from ridgeline.hardware.device import Device
from ridgeline.kernels.single import conv
from ridgeline.study.validate import kernels
from ridgeline.study.validate.outcome import Outcome, Skipped
from ridgeline.study.validate.rows import Row
from ridgeline.workload.graph import Conv

_SIZES = ("batch", "C", "H", "W", "Kout", "R", "S")
_STRIDES = ("stride_h", "stride_w", "pad_h", "pad_w")
COLUMNS = (*kernels.COLUMNS, *_SIZES, *_STRIDES)
SHIPPED = "kernels.csv"
_PASSES = {"fwd": "forward", "bwd_input": "input-gradient", "bwd_weight": "weight-gradient"}


def predict(rows: Iterable[Row]) -> Iterator[Outcome | Skipped]:
    """Predict the time of every pass over a convolution."""
    return kernels.predict_kernels(rows, frozenset({"conv"}), _conv)


def _conv(row: Row, device: Device, format_: str) -> tuple[float, str, float, float]:
    sizes = [row.whole(name) for name in (*_SIZES, *_STRIDES)]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        raise RidgelineError("the shape of the convolution is not given")
    if row.text("pass_") not in _PASSES:
        raise RidgelineError(f"there is no single kernel for the pass {row.text('pass_')}")
    batch, c_in, h, w, c_out, r, s, stride_h, stride_w, pad_h, pad_w = known
    if min(stride_h, stride_w) < 1 or min(pad_h, pad_w) < 0:
        raise RidgelineError("the stride must be positive and the padding not negative")
    loops = Conv(
        batch, c_in, h, w, c_out, r, s, stride=(stride_h, stride_w), padding=(pad_h, pad_w)
    )
    result = conv(loops, device, pass_=_PASSES[row.text("pass_")], format=format_)
    name = f"conv {batch}x{c_in}x{h}x{w}, {c_out} filters {r}x{s}"
    return result.time_s, name, result.flops, result.compulsory_bytes
