"""What a number format loses of a distribution of values: rounding, and the shares it cannot hold.

`quantise` rounds values bit by bit as `ridgeline.workload.formats` describes. `range_loss` says
which share of values becomes infinite or saturates (overflow), becomes zero (underflow) or loses
bits to gradual underflow (subnormal): exactly for given values, and in closed form for normal and
log-normal distributions. Thresholds follow from rounding to nearest, ties to even: half a step
beyond the largest number overflows, half of the least number underflows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from ridgeline.errors import RidgelineError
from ridgeline.workload import formats
from ridgeline.workload.formats import Format

Floats = npt.NDArray[np.float64]
_SQRT2 = math.sqrt(2.0)


@dataclass(frozen=True, slots=True)
class Normal:
    """Values around `mean` with standard deviation `std`, such as weights."""

    std: float
    mean: float = 0.0

    def share_below(self, magnitude: float) -> float:
        """Share of values with a smaller magnitude."""
        if self.mean == 0.0:
            return math.erf(magnitude / self.std / _SQRT2)
        low, high = (-magnitude - self.mean) / self.std, (magnitude - self.mean) / self.std
        return 0.5 * (math.erf(high / _SQRT2) - math.erf(low / _SQRT2))

    def share_above(self, magnitude: float) -> float:
        """Share of values with a larger magnitude."""
        low, high = (magnitude + self.mean) / self.std, (magnitude - self.mean) / self.std
        return 0.5 * (math.erfc(high / _SQRT2) + math.erfc(low / _SQRT2))


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Magnitudes of which log2 is normal, such as gradients: most are near 2**`mean_log2`."""

    mean_log2: float
    std_log2: float

    def share_below(self, magnitude: float) -> float:
        """Share of values with a smaller magnitude."""
        return 0.5 * math.erfc(-self._deviations(magnitude) / _SQRT2) if magnitude > 0 else 0.0

    def share_above(self, magnitude: float) -> float:
        """Share of values with a larger magnitude."""
        return 0.5 * math.erfc(self._deviations(magnitude) / _SQRT2) if magnitude > 0 else 1.0

    def _deviations(self, magnitude: float) -> float:
        return (math.log2(magnitude) - self.mean_log2) / self.std_log2


@dataclass(frozen=True, slots=True)
class RangeLoss:
    """Shares of values that a format does not hold in full.

    Attributes
    ----------
    overflow
        Beyond the largest number: infinite, NaN or saturated.
    underflow
        Not zero, but rounded to zero.
    subnormal
        Neither, but below the least number with a full mantissa.
    """

    format: str
    scale: float
    overflow: float
    underflow: float
    subnormal: float


def quantise(
    values: npt.ArrayLike,
    format: str,
    *,
    scale: float = 1.0,
    step: float | None = None,
    overflow: Literal["format", "saturate"] = "format",
) -> Floats:
    """Round values to a format and return what they then are, as float64.

    Parameters
    ----------
    scale
        Multiplied with before rounding and divided by after it: a loss scale, or the scale of an
        fp8 tensor.
    step
        Of a fixed format; None: the one that just holds the largest of the values.
    overflow
        ``"saturate"`` gives the largest number instead of infinity or NaN; fixed formats always do.

    Raises
    ------
    RidgelineError
        If the format is unknown or an index, or a scale or step is not above 0.
    """
    found = _rounded_format(format)
    _check_positive("scale", scale)
    x = np.asarray(values, np.float64) * scale
    if found.kind == "fixed":
        return _fixed(x, found, step) / scale
    _, exponent = np.frexp(x)  # x = m 2**e with 0.5 <= m < 1
    least = 1 - found.bias
    quantum = np.ldexp(1.0, np.maximum(exponent - 1, least) - found.mantissa_bits)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        rounded = np.where(np.isfinite(x), np.rint(x / quantum) * quantum, x)
    if found.name == "fp64":
        rounded = x
    beyond = np.abs(rounded) > found.largest
    limits = {"exponent": np.inf, "code": np.nan, "nothing": found.largest}
    limit = found.largest if overflow == "saturate" else limits[found.kept]
    return np.asarray(np.where(beyond, np.copysign(limit, x), rounded) / scale)


def _fixed(x: Floats, format_: Format, step: float | None) -> Floats:
    if step is None:
        largest = float(np.max(np.abs(x), initial=0.0))
        if largest == 0.0:
            return x
        step = formats.step_for(format_, largest)
    _check_positive("step", step)
    return np.clip(np.rint(x / step), -format_.largest, format_.largest) * step


def range_loss(
    values: Normal | LogNormal | npt.ArrayLike,
    format: str,
    *,
    scale: float = 1.0,
    step: float | None = None,
) -> RangeLoss:
    """Return the shares of values that a format does not hold in full.

    Parameters
    ----------
    values
        A distribution, or the values themselves; of these, zeros count but lose nothing.
    scale, step
        As in `quantise`; a fixed format needs a step with a distribution, which has no largest
        value.

    Raises
    ------
    RidgelineError
        As `quantise` does, or if there are no values or a distribution has no spread.
    """
    found = _rounded_format(format)
    _check_positive("scale", scale)
    unit = 1.0
    if found.kind == "fixed":
        unit = _step(values, found, scale, step)
    over = (found.largest + 0.5 * _last_quantum(found)) * unit / scale
    under = 0.5 * found.least * unit / scale
    normal = found.least_normal * unit / scale
    if isinstance(values, Normal | LogNormal):
        _check_positive("spread", values.std if isinstance(values, Normal) else values.std_log2)
        lost = values.share_below(under)
        below = values.share_below(normal)
        return RangeLoss(format, scale, values.share_above(over), lost, max(0.0, below - lost))
    x = np.abs(np.asarray(values, np.float64)).ravel()
    if not x.size:
        raise RidgelineError("there are no values to round")
    # A tie at the top goes to the even neighbour: beyond, unless the largest number is even.
    top_is_even = found.kind == "float" and found.kept == "code"
    above = x > over if top_is_even else x >= over
    if found.kind == "fixed":
        above = np.rint(x * scale / unit) > found.largest
    lost_values = (x > 0) & (x <= under)  # a tie at the bottom goes to zero
    thin = (x > under) & (x < normal)
    return RangeLoss(
        format, scale, float(above.mean()), float(lost_values.mean()), float(thin.mean())
    )


def _step(
    values: Normal | LogNormal | npt.ArrayLike, format_: Format, scale: float, step: float | None
) -> float:
    if step is not None:
        _check_positive("step", step)
        return step
    if isinstance(values, Normal | LogNormal):
        raise RidgelineError(
            f"{format_.name} has one step for a whole tensor: give a step for a distribution, "
            "which has no largest value"
        )
    largest = float(np.max(np.abs(np.asarray(values, np.float64)), initial=0.0))
    return formats.step_for(format_, largest * scale) if largest else 1.0


def _last_quantum(format_: Format) -> float:
    """Distance of the largest number from the next one, if there were one."""
    if format_.kind == "fixed":
        return 1.0
    top = format_.bias if format_.kept == "exponent" else format_.bias + 1
    return math.ldexp(1.0, top - format_.mantissa_bits)


def _rounded_format(name: str) -> Format:
    found = formats.find(name)
    if found.kind == "index":
        raise RidgelineError(f"{name} holds indices, which are not rounded")
    return found


def _check_positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise RidgelineError(f"the {name} must be a number above 0, found {value!r}")
