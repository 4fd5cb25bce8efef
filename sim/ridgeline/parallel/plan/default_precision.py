"""The precision of a step that nobody has chosen: the network's, or what the machine has."""

from __future__ import annotations

from ridgeline.hardware.device import Device
from ridgeline.units import show
from ridgeline.workload import formats, numerics

_HALF = 16  # bits of the format in which networks train on arrays
_ALONE = {"fp64": "fp64", "bf16": "bf16-true", "fp16": "fp16", "int16": "int16", "int8": "int8"}
"""Precisions of machines that multiply nothing else, by the format; the widest first."""


def products(device: Device) -> frozenset[str]:
    """Return the formats that a device multiplies, with those that its libraries convert."""
    able = [engine for engine in device.engines.values() if "matrix" in engine.runs]
    return frozenset(device.converted).union(*(engine.rates for engine in able))


def default_precision(wanted: str, device: Device) -> str:
    """Return the precision of a network's description, or the one that a device has instead.

    A device that does not multiply the network's own format, nor fp32, trains in the widest that it
    has: everything in that one format (`numerics.PURE`).
    """
    able = products(device)
    if "fp32" in able or formats.find(numerics.find(wanted).compute).rate in able:
        return wanted
    return next((name for format_, name in _ALONE.items() if format_ in able), wanted)


def precision_notes(precision: str | None, device: Device) -> list[str]:
    """Say what a precision with one format for everything stands for on a device."""
    if precision is None or precision not in numerics.PURE:
        return []
    able = ", ".join(sorted(products(device)))
    return [
        f"precision {precision}: mini-batch, weights, gradients, optimizer state, statistics and "
        f"loss are all in {precision} ({device.name} multiplies {able}); whether a network "
        "converges so is not modelled"
    ]


def unasked_notes(precision: str, device: Device) -> list[str]:
    """Say of a precision that nobody chose that the device's arrays do not multiply it.

    A vector unit multiplies it then, whose rate is a small part of theirs.
    """
    format_ = formats.find(numerics.find(precision).compute).rate
    able = {name: e for name, e in device.engines.items() if "matrix" in e.runs}
    arrays = {name: e for name, e in able.items() if e.array or e.grid or e.spatial}
    slow = {n: e.rates[format_].value for n, e in able.items() if format_ in e.rates}
    if format_ in device.converted or not slow or not arrays or not set(slow).isdisjoint(arrays):
        return []
    rates = {f: rate.value for e in arrays.values() for f, rate in e.rates.items()}
    rate = max(slow.values())
    best = max(rates, key=lambda name: (formats.find(name).bits == _HALF, rates[name]))
    known = f"{best}-mixed" if f"{best}-mixed" in numerics.PRECISIONS else best
    return [
        f"precision {precision}, since nobody chose one: {max(slow, key=lambda n: slow[n])}"
        f" multiplies it at {show(rate, 'FLOP/s')}; {', '.join(arrays)} multiplies"
        f" {', '.join(sorted(rates))}, {best} at {show(rates[best], 'FLOP/s')}: name"
        f" --precision {known}"
    ]
