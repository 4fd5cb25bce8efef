"""Elastic averaging (EASGD): workers that are tied to a centre, and how fast its rounds contract.

Every `period` local steps a worker and the centre move towards each other by a share alpha of their
distance (S. Zhang, A. Choromanska and Y. LeCun, "Deep learning with elastic averaging SGD", NIPS
2015). Workers exchange one by one, when they are ready. On a quadratic without noise, whose
gradient steps multiply a weight by 1 - eta h, a round in which each worker exchanges once is a
product of matrices, and its spectral radius is what a round leaves of the distance to the optimum.
That is the dynamics of the method, not the accuracy of a network.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy

from ridgeline.errors import RidgelineError
from ridgeline.training.asynchronous import Asynchrony, GradientTimes, ParameterServer, Service


@dataclass(frozen=True)
class ElasticRounds(Asynchrony):
    """Result of elastic averaging; an update is an exchange of a worker with the centre.

    Attributes
    ----------
    contraction
        Distance of the centre to the optimum after as many exchanges as workers, over that before,
        in the mean over the second half of the run.
    spread
        Standard deviation of the workers over the distance of the centre, at the end.
    """

    contraction: float
    spread: float


def round_contraction(workers: int, *, alpha: float, decay: float, period: int = 1) -> float:
    """Return what a round of exchanges in turn leaves of the distance to the optimum.

    Parameters
    ----------
    alpha
        Share of their distance by which a worker and the centre move.
    decay
        What a local step leaves of a worker's distance, 1 - eta h.

    Returns
    -------
    float
        Spectral radius of the round; the method diverges above 1.
    """
    whole = np.eye(workers + 1)
    for k in range(workers):
        turn = np.eye(workers + 1)
        turn[k, k] = (1.0 - alpha) * decay**period
        turn[k, -1] = alpha
        turn[-1, k] = alpha * decay**period
        turn[-1, -1] = 1.0 - alpha
        whole = turn @ whole
    return float(np.abs(np.linalg.eigvals(whole)).max())


def simulate_elastic_averaging(
    workers: int,
    exchanges: int,
    *,
    gradient_s: float,
    alpha: float,
    decay: float,
    period: int = 1,
    message_s: float = 0.0,
    apply_s: float = 0.0,
    service: Service = "exponential",
    seed: int = 0,
) -> ElasticRounds:
    """Train by elastic averaging until so many exchanges are done.

    Parameters
    ----------
    gradient_s
        Mean time of a local step.
    alpha, decay, period
        See `round_contraction`.
    message_s
        Time of a message to the centre, and of its answer.
    apply_s
        Time in which the centre moves.

    Raises
    ------
    RidgelineError
        If a number is out of its range.
    """
    if min(workers, period) < 1 or exchanges < 2 * workers:
        raise RidgelineError(
            "elastic averaging needs a worker, a local step and two exchanges of each worker; "
            f"found {workers}, {period} and {exchanges}"
        )
    if not 0 < alpha < 1 or not -1 < decay < 1 or not gradient_s > 0 or min(message_s, apply_s) < 0:
        raise RidgelineError(
            "alpha is between 0 and 1, decay between -1 and 1, times are not negative; found "
            f"{alpha}, {decay}, {gradient_s}, {message_s} and {apply_s}"
        )
    environment = simpy.Environment()
    server = ParameterServer(environment, apply_s)
    times = GradientTimes(gradient_s, service, np.random.default_rng(seed))
    weights = np.ones(workers)
    centre = [1.0]  # after each exchange
    log_scale = 0.0  # of all weights, so that long runs keep their digits
    logs = [0.0]
    staleness: Counter[int] = Counter()
    done = environment.event()
    waited_s = 0.0

    def work(number: int) -> Generator[simpy.Event, Any, None]:
        nonlocal waited_s, log_scale, weights
        seen = 0
        while True:
            yield environment.timeout(sum(times.draw() for _ in range(period)) + message_s)
            applied_s = server.apply()
            waited_s += applied_s - environment.now
            yield environment.timeout(applied_s - environment.now)
            if server.version == exchanges:
                return
            own = weights[number] * decay**period
            pull = alpha * (own - centre[-1])
            weights[number] = own - pull
            centre.append(centre[-1] + pull)
            size = max(abs(centre[-1]), float(np.abs(weights).max()))
            if size < _SMALL:
                weights = weights / size
                centre[-1] /= size
                log_scale += float(np.log(size))
            logs.append(log_scale + float(np.log(max(abs(centre[-1]), 1e-300))))
            staleness[server.version - seen] += 1
            server.version += 1
            seen = server.version
            if server.version == exchanges:
                done.succeed()
                return
            yield environment.timeout(message_s)

    for number in range(workers):
        environment.process(work(number))
    environment.run(until=done)
    half = exchanges // 2
    rounds = (exchanges - half) / workers
    return ElasticRounds(
        workers=workers,
        updates=exchanges,
        time_s=float(environment.now),
        staleness=dict(sorted(staleness.items())),
        waited_s=waited_s,
        server_busy=min(1.0, server.busy_s / float(environment.now)),
        contraction=float(np.exp((logs[-1] - logs[half]) / rounds)),
        spread=float(weights.std() / max(abs(centre[-1]), 1e-300)),
    )


_SMALL = 1e-100
