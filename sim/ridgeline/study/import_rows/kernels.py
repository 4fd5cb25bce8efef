"""Single kernels as DeepBench's tables have them: devices, formats and passes in its words."""

from __future__ import annotations

from functools import cache

from ridgeline.errors import RidgelineError
from ridgeline.hardware.device import Device
from ridgeline.hardware.load import load_device
from ridgeline.study.import_rows import refused
from ridgeline.study.import_rows.names import find_name
from ridgeline.study.validate.rows import MeasuredRow
from ridgeline.workload.formats import AS

READS = ("kind", "device", "precision", "pass_", "time_ms", "source")
MORE = {
    "gemm": ("M", "N", "K"),
    "conv": ("batch", "C", "H", "W", "Kout", "R", "S", "stride_h", "stride_w", "pad_h", "pad_w"),
    "rnn": ("batch", "hidden", "timesteps"),
}
_OPS = {"rnn_vanilla": "rnn-relu"}
_FORMATS = {
    "fp16in_fp32acc": "fp16",
    "pseudo_fp16(fp16 storage,fp32 math)": "fp16-as-fp32",
}
_PASSES = {
    "fwd": "forward",
    "bwd_input": "input-gradient",
    "bwd_weight": "weight-gradient",
    "bwd_total": "backward",
}


def normal(row: MeasuredRow) -> dict[str, str]:
    """Return what a kernel is called here; its op even if no more can be read."""
    op = {"op": _OPS.get(row.text("kind"), row.text("kind"))}
    try:
        return {**op, **_named(row)}
    except RidgelineError as error:
        return {**op, **refused(row, error)}


def _named(row: MeasuredRow) -> dict[str, str]:
    measured_ms, name = row.number("time_ms"), find_name("devices", row.text("device"))
    if measured_ms is None or measured_ms <= 0:
        return {"skip": "no measured time"}
    if name is None:
        return {"skip": f"no description of the device {row.text('device')}"}
    words = words_of(row)
    return {
        "machine": name,
        "asked": words["asked"],
        "format": format_on(_device(name), words["asked"]),
        "pass": words["pass"],
        "measured": repr(measured_ms * 1e-3),
    }


def words_of(row: MeasuredRow) -> dict[str, str]:
    """Return the format that a program asks for, and the pass, in our words."""
    return {
        "asked": _FORMATS.get(row.text("precision"), row.text("precision")),
        "pass": _PASSES.get(row.text("pass_"), row.text("pass_")),
    }


_device = cache(load_device)


def format_on(device: Device, format_: str) -> str:
    """Return a format, or the one that a device's libraries convert so: they choose the kernels."""
    stored, as_, multiplied = format_.partition(AS)
    return stored if as_ and device.converted.get(stored) == multiplied else format_
