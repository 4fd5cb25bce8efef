"""Calibration of a collective model by measurements of the same collective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.errors import RidgelineError
from ridgeline.network.topology import Floats

LEAST_ROWS = 3
"""Sizes of one way that two numbers are fitted to, at least."""


def fit_linear(model_s: Floats, measured_s: Floats) -> tuple[float, float]:
    """Return (start_s, scale) with the least mean of ``|(start + scale * model) / measured - 1|``.

    Absolute errors, so that a single odd measurement does not bend the line (by reweighted least
    squares).

    `start_s` is what starting a collective takes more than the model says (less, if negative),
    ``1 / scale`` the share of the modelled bandwidth that is reached.

    Parameters
    ----------
    model_s, measured_s
        [N] seconds; at least two different model times.

    Raises
    ------
    RidgelineError
        If there are too few points, or a time is not above 0.
    """
    model, measured = np.asarray(model_s, float), np.asarray(measured_s, float)
    if model.shape != measured.shape or len(np.unique(model)) < 2:
        raise RidgelineError(
            f"a calibration needs two different sizes at least; found {len(model)} and "
            f"{len(measured)} times"
        )
    if not (model > 0).all() or not (measured > 0).all():
        raise RidgelineError("a calibration needs times above 0")
    weighted = np.stack((1.0 / measured, model / measured), axis=1)
    weight = np.ones(len(measured))
    for _ in range(60):
        solution = np.linalg.lstsq(weighted * weight[:, None], weight, rcond=None)[0]
        weight = 1.0 / np.sqrt(np.maximum(np.abs(weighted @ solution - 1.0), 1e-6))
    return float(solution[0]), float(solution[1])


@dataclass(frozen=True, slots=True)
class Correction:
    """What a machine takes besides the model, for each way that NCCL goes (``ring-simple``, ...).

    Attributes
    ----------
    by_way
        (start_s, scale) as of `fit_linear`; a way without one is taken as modelled.
    """

    by_way: Mapping[str, tuple[float, float]]

    def time_s(self, way: str, model_s: float) -> float:
        """Return the corrected time, 0 at least."""
        start_s, scale = self.by_way.get(way, (0.0, 1.0))
        return max(start_s + scale * model_s, 0.0)


def fit_ways(ways: Sequence[str], model_s: Floats, measured_s: Floats) -> Correction:
    """Fit every algorithm and protocol by itself, since each has latencies and a share of its own.

    Parameters
    ----------
    ways
        [N] what was chosen for each size (`CollectiveResult.algorithm`).
    model_s, measured_s
        [N] seconds. Ways of fewer than `LEAST_ROWS` sizes are left as modelled.

    Raises
    ------
    RidgelineError
        As `fit_linear`.
    """
    model, measured = np.asarray(model_s, float), np.asarray(measured_s, float)
    found: dict[str, tuple[float, float]] = {}
    for way in dict.fromkeys(ways):
        own = np.array([other == way for other in ways])
        if own.sum() >= LEAST_ROWS:
            found[way] = fit_linear(model[own], measured[own])
    return Correction(found)
