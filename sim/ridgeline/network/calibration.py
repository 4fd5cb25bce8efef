"""Calibration of a collective model by measurements of the same collective."""

from __future__ import annotations

import numpy as np

from ridgeline.errors import RidgelineError
from ridgeline.network.topology import Floats


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
