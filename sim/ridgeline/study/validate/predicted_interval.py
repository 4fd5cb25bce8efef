"""Predicted interval: the range that ridgeline states for a prediction."""

from __future__ import annotations

from typing import TypedDict

from ridgeline.hardware.device import Device
from ridgeline.report.result import Result
from ridgeline.report.uncertainty import new_device_range
from ridgeline.report.uncertainty.device_range import range_of
from ridgeline.report.uncertainty.distributions import relation_of, spread
from ridgeline.workload.formats import AS, find

_OPS = {"gemm": "gemm", "conv": "conv2d"}


class IntervalEnds(TypedDict, total=False):
    """Either range of `PredictedInterval`."""

    p05: float | None
    p95: float | None
    p05_left_out: float | None
    p95_left_out: float | None


class PredictedInterval(TypedDict):
    """5 and 95 % of what is predicted; None where nothing is stated.

    Attributes
    ----------
    p05_left_out, p95_left_out
        The same, as if the device had no measured rows.
    """

    p05: float | None
    p95: float | None
    p05_left_out: float | None
    p95_left_out: float | None


def _ends(low: float, high: float, *, left_out: bool) -> IntervalEnds:
    if left_out:
        return {"p05_left_out": low, "p95_left_out": high}
    return {"p05": low, "p95": high}


NOTHING: PredictedInterval = {"p05": None, "p95": None, "p05_left_out": None, "p95_left_out": None}


def stated(
    kind: str, predicted: float, spread_: float = 0.0, device: Device | None = None
) -> PredictedInterval:
    """State the range of a prediction of some kind.

    Parameters
    ----------
    spread_
        Standard deviation of its logarithm that the machine's parameters add.
    device
        By whose distance from measured devices the range is chosen.
    """
    found = NOTHING.copy()
    for end, left_out in (("", False), ("_left_out", True)):
        error = range_of(kind, device, left_out=left_out)
        if error is not None:
            low, high = error.interval(predicted, spread_)
            found.update(_ends(low, high, left_out=bool(end)))
    return found


def stated_step(result: Result, scale: float | None = None) -> PredictedInterval:
    """State the range of a step time, or of `scale` over it: a throughput."""
    found = NOTHING.copy()
    without = new_device_range(result)
    for end, both in (("", result.uncertainty), ("_left_out", without)):
        if both is not None:
            low, high = (both["step_time_s"][which] for which in ("p05", "p95"))
            low, high = (low, high) if scale is None else (scale / high, scale / low)
            found.update(_ends(low, high, left_out=bool(end)))
    return found


def kernel_spread(device: Device, kind: str, format_: str) -> float:
    """Return what the shares of a device add to the range of a kernel's time."""
    op, (stored, as_, _) = _OPS.get(kind, "recurrence"), format_.partition(AS)
    format_ = find(format_).rate
    for own in (stored, None) if as_ else (None,):
        for row in device.achievable:
            if (row.op, row.format, row.stored) == (op, format_, own):
                return spread(op, relation_of(device, row)[1])
    return spread("gemm", "other")
