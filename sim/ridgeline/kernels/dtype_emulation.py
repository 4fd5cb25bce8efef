"""Dtype emulation: operands stored in one format and multiplied in another.

Kernels that convert read X from memory and multiply Y, so that their traffic is that of X, their
rate that of Y. Which of them there are is said in two places: a network asks for them by its
precision, and a device's file may say of a format that libraries convert it (`Engine.converted`).
The share of the peak that they reach stands in rows of their own (`Achievable.stored`), where
microbenchmarks measured them, and then includes what the conversion takes. Else they reach the
share of kernels that read Y: a number is converted once for a tile, and multiplied for each column
or row of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ridgeline.hardware.device import Achievable, Device
from ridgeline.kernels.efficiency_table import achievable_share
from ridgeline.kernels.op_cost_terms import no_engine
from ridgeline.workload.formats import AS, find
from ridgeline.workload.graph import Op


class Kernels(NamedTuple):
    """Which kernels of a device do products.

    Attributes
    ----------
    device
        The device, with the shares of the peak that these kernels reach.
    engines
        Names of the engines that have them.
    format
        That they multiply.
    """

    device: Device
    engines: list[str]
    format: str


def roof_of(device: Device, format_: str) -> str:
    """Return the rate of a device that bounds products of numbers of a format."""
    rate = find(format_).rate
    return rate if _able(device, rate) else device.converted.get(rate, rate)


def done_by(device: Device, converted: Mapping[str, str], kernels: str, op: Op) -> str:
    """Return the name of the kernels that a device's libraries do an op with.

    Parameters
    ----------
    converted
        `Device.converted`.
    kernels
        That the numbers' format asks for (`Format.kernels`).
    """
    if kernels not in converted:
        return kernels
    own = (achievable_share(op, device, name, kernels) for name in _able(device, kernels))
    return kernels if any(row is not None for row in own) else f"{kernels}{AS}{converted[kernels]}"


def kernels_for(device: Device, kernels: str, op: Op) -> Kernels:
    """Return who does products of this name on a device.

    Raises
    ------
    RidgelineError
        If no engine does.
    """
    stored, as_, _ = kernels.partition(AS)
    format_ = find(kernels).rate if as_ else kernels
    able = _able(device, format_)
    if not able:
        raise no_engine(device, "matrix", format_, op)
    return Kernels(_with_rows(device, stored, format_) if as_ else device, able, format_)


def _able(device: Device, format_: str) -> list[str]:
    return [
        name
        for name, engine in device.engines.items()
        if "matrix" in engine.runs and format_ in engine.rates
    ]


def _with_rows(device: Device, stored: str, format_: str) -> Device:
    """Return the device with the rows of kernels that convert in place of those that do not."""
    own = [
        row.model_copy(update={"stored": None})
        for row in device.achievable
        if (row.stored, row.format) == (stored, format_)
    ]
    if not own:
        return device
    measured = {(row.engine, row.op) for row in own}

    def stands(row: Achievable) -> bool:
        return row.format != format_ or (row.engine, row.op) not in measured

    return device.model_copy(update={"achievable": (*own, *filter(stands, device.achievable))})
