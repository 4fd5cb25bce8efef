"""What the suites of single kernels share: the device of a row, its format, trivial predictors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache

from ridgeline.hardware.device import Device
from ridgeline.hardware.load import load_device
from ridgeline.kernels.converted import roof_of
from ridgeline.study.validate.names import find_name
from ridgeline.study.validate.outcome import Outcome, Skipped, predict_each, skip
from ridgeline.study.validate.rows import Row
from ridgeline.study.validate.stated import kernel_spread, stated
from ridgeline.workload.formats import AS

COLUMNS = ("kind", "device", "precision", "pass_", "time_ms", "source")
FORMATS = {
    "fp16in_fp32acc": "fp16",
    "pseudo_fp16(fp16 storage,fp32 math)": "fp16-as-fp32",
}
"""Number formats by what DeepBench calls them, where that is another name."""

SUITES_OF_ONE_KIND = frozenset({"gemm", "conv"})
_SCALE, _LAUNCH_S = 1.58, 5e-6  # of the scaled roofline: a fit to DeepBench's matrix products

Predictor = Callable[[Row, Device, str], tuple[float, str, float, float]]
"""Predicted time in seconds, configuration, FLOP, bytes of operands and result once."""


def predict_kernels(
    rows: Iterable[Row], kinds: frozenset[str], predictor: Predictor
) -> Iterator[Outcome | Skipped]:
    """Predict the rows of these kinds; rows of other kinds belong to other suites."""

    def one(row: Row) -> Outcome | Skipped | None:
        return _kernel(row, predictor) if row.text("kind") in kinds else None

    return predict_each(rows, one)


def _kernel(row: Row, predictor: Predictor) -> Outcome | Skipped:
    measured_ms = row.number("time_ms")
    if measured_ms is None or measured_ms <= 0:
        return skip(row, "no measured time")
    name = find_name("devices", row.text("device"))
    if name is None:
        return skip(row, f"no description of the device {row.text('device')}")
    precision = row.text("precision")
    device = _device(name)
    told = FORMATS.get(precision, precision)
    format_ = format_on(device, told)
    predicted_s, configuration, flops, moved = predictor(row, device, format_)
    bound_s = roofline_s(device, format_, flops, moved)
    suite = row.text("kind") if row.text("kind") in SUITES_OF_ONE_KIND else "rnn"
    return Outcome(
        file=row.file,
        line=row.line,
        id=row.id,
        group=f"{name} {format_} {row.text('kind')} {row.text('pass_')}",
        sweep=f"{name} {format_} {row.text('kind')} {row.text('pass_')}",
        configuration=f"{configuration} {format_}, {row.text('pass_')}, {name}",
        quantity="time_s",
        predicted=predicted_s,
        measured=measured_ms * 1e-3,
        source=row.text("source"),
        trivial={
            "roofline": bound_s,
            "scaled roofline": _SCALE * bound_s + _LAUNCH_S,
        },
        **stated(suite, predicted_s, kernel_spread(device, row.text("kind"), told)),
    )


_device = cache(load_device)


def format_on(device: Device, format_: str) -> str:
    """Return a format, or the one that a device's libraries convert so: they choose the kernels."""
    stored, as_, multiplied = format_.partition(AS)
    return stored if as_ and device.converted.get(stored) == multiplied else format_


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
