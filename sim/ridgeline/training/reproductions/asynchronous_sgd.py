"""Waiting and staleness of synchronous and asynchronous SGD, played and in closed form."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ridgeline.study.reproduce.table import ReproducedFigure, Reproduction, printed
from ridgeline.training.asynchronous import simulate_asynchronous
from ridgeline.training.hogwild import simulate_hogwild
from ridgeline.training.stragglers import StepJitter, Stragglers, waited_for

_WORKERS = (2, 4, 8, 16, 32)
_BACKUPS = ((8, 1), (16, 2), (32, 4))
_UPDATES, _STEPS = 20_000, 200_000
_PLAYED = 0.02  # of a mean of so many draws
_JITTER = StepJitter(distribution="exponential", spread=1.0)


def reproduce() -> Reproduction:
    """Play workers with and without a barrier."""
    return Reproduction(
        name="asynchronous-sgd",
        title="Waiting and staleness of SGD on N equal workers with exponential times",
        source=(
            "synchronous: the largest of N exponential times is H_N = 1 + 1/2 + ... + 1/N (H. A. "
            "David and H. N. Nagaraja, Order Statistics, 2003), with b backup workers H_N - H_b "
            "(J. Chen et al., arXiv:1604.00981); asynchronous: N - 1 by Little's law for a "
            "parameter server (J. Dean et al., NIPS 2012) and for threads on shared memory (F. "
            "Niu et al., Hogwild!, NIPS 2011)"
        ),
        rows=(*_synchronous(), *_asynchronous()),
        fits=(),
        notes=(
            "S. Gupta et al. (ICDM 2016) state a mean staleness of N for N workers: they count "
            "the update itself.",
            "Hogwild's speed-ups on 10 cores (3 to 9) follow from how long a gradient takes "
            "beside its memory traffic, which is not published.",
        ),
    )


def _synchronous() -> Iterator[ReproducedFigure]:
    cases = [*((n, 0) for n in _WORKERS), *_BACKUPS]
    for workers, backups in cases:
        stragglers = Stragglers(jitter=_JITTER, backup_workers=backups)
        drawn = waited_for(stragglers, workers, _STEPS, np.random.default_rng(0))
        spare = f", {backups} of them backups" if backups else ""
        yield printed(
            "bulk synchronous: mean wait over the mean delay of one",
            f"{workers} workers{spare}",
            _harmonic(workers) - _harmonic(backups),
            float(drawn.mean()) - 1.0,
            _PLAYED,
        )


def _asynchronous() -> Iterator[ReproducedFigure]:
    for workers in _WORKERS:
        served = simulate_asynchronous(workers, _UPDATES, gradient_s=1.0)
        shared = simulate_hogwild(workers, _UPDATES, gradient_s=1.0, memory_s=0.1)
        for group, played in (
            ("parameter server: mean staleness", served),
            ("Hogwild: mean staleness", shared),
        ):
            yield printed(
                group, f"{workers} workers", workers - 1.0, played.mean_staleness, _PLAYED
            )


def _harmonic(count: int) -> float:
    return sum(1.0 / i for i in range(1, count + 1))
