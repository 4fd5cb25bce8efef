"""Parameters of a sum of terms from measured times: robust least squares of relative errors.

A time is modelled as ``terms @ seconds``, a term being an amount of something (FLOPs, bytes, one
launch) and the parameter the seconds that one of it takes, never negative. What is minimised is the
sum over the measurements of Huber's function of ``log(predicted / measured)`` (Huber, "Robust
estimation of a location parameter", Ann. Math. Statist. 35(1), 1964), by Gauss-Newton steps with
reweighting, from the best non-negative least-squares solution.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import RidgelineError

Floats = NDArray[np.float64]
_HUBER = 1.5  # scales of the residuals; beyond, a residual counts by its size instead of its square
_STEPS = 50
_NORMAL_90 = 1.6448536269514722  # 95 % quantile of the standard normal distribution
_TO_SIGMA = 1.4826  # median absolute deviation to standard deviation, of normal errors
_LEAST_SHARE = 0.003  # of any time: a term that is never more explains nothing
_LEAST_SCALE = 0.01  # no clock and no machine repeats a time better than this


@dataclass(frozen=True)
class ParameterFit:
    """Parameters with their uncertainty, and what is left over.

    Attributes
    ----------
    seconds
        Of one unit of each term; 0 for a term that explains nothing.
    factor
        The true parameter lies between seconds / factor and seconds * factor in 90 of 100 fits;
        inf where the parameter is 0, or there are no more measurements than parameters.
    errors
        Predicted over measured time of every measurement, less one.
    """

    seconds: Floats
    factor: Floats
    errors: Floats

    @property
    def spread(self) -> tuple[float, float, float]:
        """The 10 %, 50 % and 90 % quantiles of the errors."""
        low, middle, high = np.quantile(self.errors, (0.1, 0.5, 0.9))
        return float(low), float(middle), float(high)


def fit(terms: Floats, times_s: Floats, known_s: Floats | None = None) -> ParameterFit:
    """Estimate the seconds of one unit of every term.

    Parameters
    ----------
    terms
        Amounts, [measurements, terms], none negative.
    times_s
        Measured times, all positive.
    known_s
        The part of each time that is explained already; none by default.

    Raises
    ------
    RidgelineError
        If there are fewer measurements than terms, or one is not a positive number.
    """
    count, unknown = terms.shape
    if count < unknown:
        raise RidgelineError(f"{count} measurements cannot tell {unknown} parameters apart")
    if not (np.all(np.isfinite(times_s)) and np.all(times_s > 0)):
        raise RidgelineError("a measured time is not a positive number of seconds")
    relative = terms / times_s[:, None]
    known = np.zeros(count) if known_s is None else known_s / times_s
    scale = np.max(relative, axis=0)  # so that all columns are of one size
    scale[scale == 0] = 1.0
    start = _non_negative(relative / scale, 1.0 - known)
    active = start > 0
    found, factor = np.zeros(unknown), np.full(unknown, np.inf)
    if active.any():
        found[active], factor[active] = _refined(
            (relative / scale)[:, active], known, start[active]
        )
    nothing = np.max(relative / scale * found, axis=0) < _LEAST_SHARE
    found[nothing], factor[nothing] = 0.0, np.inf
    return ParameterFit(found / scale, factor, known + relative @ (found / scale) - 1.0)


def _non_negative(relative: Floats, wanted: Floats) -> Floats:
    """Return the non-negative solution of ``relative @ x = wanted`` of least squares.

    It is the unconstrained one of some subset of the columns; there are few columns, so all
    subsets are tried.
    """
    unknown = relative.shape[1]
    best, least = np.zeros(unknown), float(np.sum(wanted**2))
    for size in range(1, unknown + 1):
        for columns in itertools.combinations(range(unknown), size):
            part = relative[:, columns]
            x, *_ = np.linalg.lstsq(part, wanted, rcond=None)
            if np.any(x <= 0):
                continue
            rest = float(np.sum((part @ x - wanted) ** 2))
            if rest < least:
                least, best = rest, np.zeros(unknown)
                best[list(columns)] = x
    return best


def _refined(relative: Floats, known: Floats, start: Floats) -> tuple[Floats, Floats]:
    """Minimise Huber's function of the logarithms; return parameters and their factors."""
    logs = np.log(start)
    residual, jacobian = _linearised(relative, known, logs)
    for _ in range(_STEPS):
        weight = _weights(residual)
        hessian = jacobian.T @ (weight[:, None] * jacobian)
        step = np.linalg.lstsq(hessian, -jacobian.T @ (weight * residual), rcond=None)[0]
        step = np.clip(step, -1.0, 1.0)
        logs = logs + step
        residual, jacobian = _linearised(relative, known, logs)
        if np.max(np.abs(step)) < 1e-9:
            break
    return np.exp(logs), _factors(residual, jacobian)


def _linearised(relative: Floats, known: Floats, logs: Floats) -> tuple[Floats, Floats]:
    """Logarithms of predicted over measured, and their derivatives by those of the parameters."""
    parts = relative * np.exp(logs)
    predicted = known + parts.sum(axis=1)
    return np.log(predicted), parts / predicted[:, None]


def _weights(residual: Floats) -> Floats:
    scale = max(_LEAST_SCALE, _TO_SIGMA * float(np.median(np.abs(residual))))
    return np.asarray(1.0 / np.maximum(1.0, np.abs(residual) / (_HUBER * scale)))


def _factors(residual: Floats, jacobian: Floats) -> Floats:
    """90 % ranges from the covariance of the parameters (sandwich estimate of an M-estimator)."""
    count, unknown = jacobian.shape
    free = count - unknown
    if free == 0:
        return np.full(unknown, np.inf)
    weight = _weights(residual)
    bread = np.linalg.pinv(jacobian.T @ (weight[:, None] * jacobian))
    scores = weight * residual
    floor = _LEAST_SCALE**2 / count  # fits of exact times are no better than a clock
    variance = float(np.sum(scores**2)) / free + floor
    flat = np.linalg.pinv(jacobian.T @ jacobian)
    covariance = np.maximum(np.diag(bread), np.diag(flat)) * variance
    factors: Floats = np.exp(np.minimum(_student_90(free) * np.sqrt(covariance), 50.0))
    return factors


def _student_90(free: int) -> float:
    """95 % quantile of Student's t (Abramowitz and Stegun, 1964, 26.7.5; exact for 1 and 2)."""
    if free <= 2:
        return 6.3138 if free == 1 else 2.9200
    z = _NORMAL_90
    return (
        z
        + (z**3 + z) / (4 * free)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * free**3)
    )
