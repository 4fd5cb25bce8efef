"""Statistical efficiency: how much training reaches a quality at a batch, from measured data.

Of a task the amounts at several batches are known; between them they follow the law of a critical
batch size, amount(B) = Emin (1 + B / Bc), so that steps are Smin (1 + Bc / B) (McCandlish et al.,
"An empirical model of large-batch training", arXiv:1812.06162, equation 2.11). Outside the measured
batches nothing is predicted: large batches miss the target altogether, and no law says where.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.engine.program import Floats
from ridgeline.errors import RidgelineError, nearest
from ridgeline.study.validate.convergence import ConvergencePoint, critical_batch, known_points

_RESAMPLES = 1000
_SHARES = (5.0, 95.0)


@dataclass(frozen=True)
class TrainingAmount:
    """Amount of training to a target at one batch.

    Attributes
    ----------
    amount, low, high
        Best estimate, and 5 and 95 % of it from drawing the measurements anew.
    unit
        What it counts: epochs, samples, tokens or steps.
    least, critical_batch
        Emin, the amount of a small batch, and Bc; None where all batches need equal amounts.
    batches
        Least and most that were measured.
    points
        How many measurements it rests on.
    """

    amount: float
    low: float
    high: float
    unit: str
    least: float
    critical_batch: float | None
    batches: tuple[int, int]
    points: int


def training_amount(benchmark: str, target: str, unit: str | None, batch: int) -> TrainingAmount:
    """Return how much training of a task of the table reaches a target at a batch.

    Raises
    ------
    RidgelineError
        If nothing was measured of the task or the target, or not at such batches.
    """
    of_task = {key: points for key, points in known_points().items() if key[0] == benchmark}
    if not of_task:
        known = sorted({key[0] for key in known_points()})
        raise RidgelineError(
            f"no amount of training is known of {benchmark!r}{nearest(benchmark, known)} "
            f"(known: {', '.join(known)}); or give points of your own (target.quality.points)"
        )
    of_target = {key: points for key, points in of_task.items() if key[1] == target}
    if not of_target:
        targets = sorted({key[1] for key in of_task})
        raise RidgelineError(
            f"of {benchmark} the target {target!r} was not measured{nearest(target, targets)} "
            f"(known: {', '.join(targets)})"
        )
    units = {key[2]: points for key, points in of_target.items()}
    chosen = unit or max(units, key=lambda name: len(units[name]))
    if chosen not in units:
        raise RidgelineError(
            f"amounts of {benchmark} count {' or '.join(sorted(units))}, not {chosen}"
        )
    return amount_at(units[chosen], chosen, batch, f"{benchmark} to {target}")


def amount_at(
    points: Sequence[ConvergencePoint], unit: str, batch: int, task: str
) -> TrainingAmount:
    """Return the amount at a batch between measured ones.

    Raises
    ------
    RidgelineError
        Outside of the measured batches.
    """
    batches = min(point.batch for point in points), max(point.batch for point in points)
    if not batches[0] <= batch <= batches[1]:
        raise RidgelineError(
            f"{task} was measured at batches of {batches[0]:,} to {batches[1]:,}; {batch:,} is "
            "outside, where targets may not be reached at all: give points of your own "
            "(target.quality.points), or an amount (target.epochs, target.samples)"
        )
    least, slope = critical_batch(points)
    random = np.random.default_rng(len(points))
    drawn: Floats = np.empty(_RESAMPLES)
    for i in range(_RESAMPLES):
        some = [points[k] for k in random.integers(len(points), size=len(points))]
        offset, rise = critical_batch(some)
        drawn[i] = offset + rise * batch
    low, high = np.percentile(drawn, _SHARES)
    return TrainingAmount(
        amount=least + slope * batch,
        low=float(low),
        high=float(high),
        unit=unit,
        least=least,
        critical_batch=least / slope if slope else None,
        batches=batches,
        points=len(points),
    )
