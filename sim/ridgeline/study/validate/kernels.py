"""Single kernels on one device: what a row says of one, and the command that prices it alone.

``asked`` is the format that a program names, ``format`` that of the kernels which a device's
libraries choose for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import cache

from ridgeline.errors import RidgelineError
from ridgeline.hardware.device import Device
from ridgeline.hardware.load import load_device
from ridgeline.kernels.dtype_emulation import roof_of
from ridgeline.kernels.single_op import OpResult, conv, gemm
from ridgeline.kernels.single_rnn_layer import CELLS, LayerResult, rnn
from ridgeline.study.validate.outcome import Outcome, Skipped, predict_each
from ridgeline.study.validate.predicted_interval import kernel_spread, stated
from ridgeline.study.validate.rows import MeasuredRow
from ridgeline.workload.graph import Conv

COLUMNS = ("op", "machine", "asked", "format", "pass", "measured", "source")
IMAGES = ("batch", "C", "H", "W", "Kout", "R", "S", "stride_h", "stride_w", "pad_h", "pad_w")
LAYER = ("batch", "hidden", "timesteps")
SHIPPED, FOREIGN = "kernels.csv", "kernels"
_SCALE, _LAUNCH_S = 1.58, 5e-6  # of the scaled roofline: a fit to DeepBench's matrix products


def predict_kernels(
    rows: Iterable[MeasuredRow], ops: Collection[str]
) -> Iterator[Outcome | Skipped]:
    """Predict the rows of these ops; others belong to other suites."""
    return predict_each(rows, lambda row: _one(row) if row.text("op") in ops else None)


def _one(row: MeasuredRow) -> Outcome:
    row.check()
    op, name, format_, pass_ = (row.text(column) for column in ("op", "machine", "format", "pass"))
    early = EARLY in row.text("source")
    device, measured = _device(name, early), row.number("measured")
    if measured is None or measured <= 0:
        raise RidgelineError("no measured time")
    result, words = _priced(row, device, op, format_, pass_)
    bound_s = roofline_s(device, format_, result.flops, result.compulsory_bytes)
    spread = kernel_spread(device, op, row.text("asked"))
    return Outcome(
        file=row.file,
        line=row.line,
        id=row.id,
        group=f"{name} {format_} {op} {pass_}",
        sweep=f"{name} {format_} {op} {pass_}",
        configuration=f"{result.op} {format_}, {pass_}, {name}",
        quantity="time_s",
        predicted=result.time_s,
        measured=measured,
        source=row.text("source"),
        trivial={
            "roofline": bound_s,
            "scaled roofline": _SCALE * bound_s + _LAUNCH_S,
        },
        device=name,
        format=format_,
        kind=f"{op} {pass_}",
        command=f"ridgeline {words} --device {name}{_words_of_early(name) if early else ''}"
        f" --format {format_} --quantity time_s",
        **stated("rnn" if op in CELLS else op, result.time_s, spread, device),
    )


def _priced(
    row: MeasuredRow, device: Device, op: str, format_: str, pass_: str
) -> tuple[OpResult | LayerResult, str]:
    """Price a kernel; also return the words of the command that does so."""
    if op == "gemm":
        m, n, k = _sizes(row, ("M", "N", "K"))
        return gemm(m, n, k, device, format=format_), f"gemm {m} {n} {k}"
    if op == "conv":
        n, c, h, w, c_out, r, s, down, across, above, beside = _sizes(row, IMAGES)
        loops = Conv(n, c, h, w, c_out, r, s, stride=(down, across), padding=(above, beside))
        words = f"conv {n} {c} {h} {w} {c_out} {r}x{s} --stride {down}x{across}"
        words += f" --padding {above}x{beside} --pass {pass_}"
        return conv(loops, device, pass_=pass_, format=format_), words
    batch, hidden, steps = _sizes(row, LAYER)
    words = f"rnn {batch} {hidden} {steps} --cell {op} --pass {pass_}"
    return rnn(batch, hidden, steps, device, cell=op, pass_=pass_, format=format_), words


def _sizes(row: MeasuredRow, columns: Collection[str]) -> list[int]:
    found = [size for name in columns if (size := row.whole(name)) is not None]
    if len(found) < len(columns):
        raise RidgelineError(f"not all of {', '.join(columns)} are given")
    return found


EARLY = "DeepBench"
"""In the source of rows whose programs are of 2016 and 2017: what their libraries of products lose
is in the devices' `achievable`, not in that of a present library (`Engine.library`)."""


@cache
def _early(name: str) -> tuple[str, ...]:
    """Return the paths of the engines' libraries, which early programs do not have."""
    engines = load_device(name).engines
    return tuple(f"engines.{e}.library" for e, engine in engines.items() if engine.library)


@cache
def _device(name: str, early: bool) -> Device:
    return load_device(name, dict.fromkeys(_early(name)) if early else {})


def _words_of_early(name: str) -> str:
    return "".join(f" --set device.{path}=null" for path in _early(name))


def roofline_s(device: Device, format_: str, flops: float, moved: float) -> float:
    """Time at the peak rate of the format and the bandwidth of the farthest memory."""
    rate = roof_of(device, format_)
    peak = max(
        engine.rates[rate].value
        for engine in device.engines.values()
        if "matrix" in engine.runs and rate in engine.rates
    )
    bandwidth = device.memory[device.far_memory].bandwidth
    assert bandwidth is not None
    return max(flops / peak, moved / bandwidth.value)
