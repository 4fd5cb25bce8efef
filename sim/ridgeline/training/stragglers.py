"""Stragglers: how long a synchronous step takes when its workers differ.

A synchronous step waits for the slowest of its workers. Where times are drawn independently, the
time of a step is an order statistic: the largest of N, or with b backup workers the (N - b)-th
smallest (Chen et al., "Revisiting distributed synchronous SGD", arXiv:1604.00981). It is drawn
without drawing all N: the shares of the largest are V1^(1/N), that times V2^(1/(N-1)), and so on,
with V uniform (H. A. David and H. N. Nagaraja, "Order Statistics", 3rd ed., section 2.5).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from ridgeline.config import Strict
from ridgeline.engine.program import Floats
from ridgeline.errors import RidgelineError
from ridgeline.hardware.sourced import Count, Positive


class StepJitter(Strict):
    """Jitter: the time of a worker's step over that of an undisturbed one, 1 or more."""

    distribution: Literal["exponential", "lognormal", "pareto", "uniform"]
    """"exponential": 1 plus an exponential delay of mean `spread`; "lognormal": 1 plus a delay
    whose logarithm is normal, of mean `spread` and as wide as it; "pareto": 1 plus a delay with a
    heavy tail (shape 2.5) of mean `spread`; "uniform": from 1 to 1 + 2 `spread`."""
    spread: float = Field(ge=0, le=100)
    """Mean delay of one worker, as a share of its step."""

    def quantile(self, share: Floats) -> Floats:
        """Return relative step times of one worker at shares of its distribution, 0 to 1."""
        delays: Callable[[Floats], Floats] = _DELAYS[self.distribution]
        return np.asarray(1.0 + self.spread * delays(share))


def _lognormal(share: Floats) -> Floats:
    from statistics import NormalDist

    sigma = math.sqrt(math.log(2.0))  # mean 1 and standard deviation 1
    inverse = np.vectorize(NormalDist().inv_cdf, otypes=[float])
    inside = np.clip(share, 1e-300, 1 - 1e-16)
    return np.asarray(np.exp(-0.5 * sigma**2 + sigma * inverse(inside)))


_SHAPE = 2.5
_DELAYS: dict[str, Callable[[Floats], Floats]] = {
    "exponential": lambda share: -np.log1p(-np.minimum(share, 1 - 1e-16)),
    "lognormal": _lognormal,
    "pareto": lambda share: (
        ((1 - np.minimum(share, 1 - 1e-16)) ** (-1 / _SHAPE) - 1) * (_SHAPE - 1)
    ),
    "uniform": lambda share: 2.0 * share,
}
"""Quantile functions of delays of mean 1."""


class SlowWorkers(Strict):
    """Workers that are slower throughout the run."""

    count: Count = 1
    """How many there are."""
    factor: Annotated[float, Field(ge=1, le=1000)]
    """Time of their step over that of the others."""


class Stragglers(Strict):
    """How the workers of a synchronous step differ."""

    jitter: StepJitter | None = None
    """Of every worker and step, by chance."""
    slow: SlowWorkers | None = None
    """Persistent ones; named for people as slow ranks."""
    backup_workers: int = Field(default=0, ge=0)
    """A step ends when all but so many workers have delivered; their gradients are dropped."""
    share: Positive = 1.0
    """Share of a step that a straggler stretches: 1 where all of it is computed by the worker."""


def waited_for(
    stragglers: Stragglers, workers: int, steps: int, random: np.random.Generator
) -> Floats:
    """Draw the time of synchronous steps over that of an undisturbed one.

    Parameters
    ----------
    workers
        That each deliver a gradient: replicas of the model.
    steps
        How many are drawn.

    Returns
    -------
    Floats
        One number of at least 1 a step, (steps,).

    Raises
    ------
    RidgelineError
        If all workers are backups.
    """
    backups = stragglers.backup_workers
    if backups >= workers:
        raise RidgelineError(f"{backups} backup workers of {workers}: a step needs one more")
    slow = 0 if stragglers.slow is None else min(stragglers.slow.count, workers)
    latest = _largest(stragglers.jitter, workers - slow, backups + 1, steps, random)
    if stragglers.slow is not None:
        factor = stragglers.slow.factor
        late = factor * _largest(stragglers.jitter, slow, backups + 1, steps, random)
        latest = np.sort(np.concatenate((latest, late), axis=1), axis=1)[:, ::-1]
    return np.asarray(1.0 + stragglers.share * (latest[:, backups] - 1.0))


def _largest(
    jitter: StepJitter | None, workers: int, count: int, steps: int, random: np.random.Generator
) -> Floats:
    """Draw the largest times of equal workers, falling: (steps, at most `count`)."""
    count = min(count, workers)
    if jitter is None:
        return np.ones((steps, count))
    left = workers - np.arange(count)
    share: Floats = random.random((steps, count)) ** (1.0 / left)
    return jitter.quantile(share.cumprod(axis=1))
