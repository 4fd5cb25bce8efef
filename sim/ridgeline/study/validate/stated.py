"""The range that ridgeline itself states for a prediction, as fields of an `Outcome`."""

from __future__ import annotations

from typing import TypedDict

from ridgeline.hardware.device import Device
from ridgeline.report.result import Result
from ridgeline.report.uncertainty.distributions import model_error, relation_of, spread
from ridgeline.workload.formats import AS, find

_OPS = {"gemm": "gemm", "conv": "conv2d"}


class Stated(TypedDict):
    """5 and 95 % of what is predicted; None where nothing is stated."""

    p05: float | None
    p95: float | None


def stated(kind: str, predicted: float, spread_: float = 0.0) -> Stated:
    """State the range of a prediction of some kind.

    Parameters
    ----------
    spread_
        Standard deviation of its logarithm that the machine's parameters add.
    """
    error = model_error(kind)
    if error is None:
        return {"p05": None, "p95": None}
    low, high = error.interval(predicted, spread_)
    return {"p05": low, "p95": high}


def stated_step(result: Result, scale: float | None = None) -> Stated:
    """State the range of a step time, or of `scale` over it: a throughput."""
    if result.uncertainty is None:
        return {"p05": None, "p95": None}
    low, high = (result.uncertainty["step_time_s"][end] for end in ("p05", "p95"))
    return {"p05": low, "p95": high} if scale is None else {"p05": scale / high, "p95": scale / low}


def kernel_spread(device: Device, kind: str, format_: str) -> float:
    """Return what the shares of a device add to the range of a kernel's time."""
    op, (stored, as_, _) = _OPS.get(kind, "recurrence"), format_.partition(AS)
    format_ = find(format_).rate
    for own in (stored, None) if as_ else (None,):
        for row in device.achievable:
            if (row.op, row.format, row.stored) == (op, format_, own):
                return spread(op, relation_of(device, row)[1])
    return spread("gemm", "other")
