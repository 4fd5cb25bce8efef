"""Iterations of reinforcement learning on SimPy: who waits for what.

Two sides work: rollouts and training. A rollout of iteration i needs weights that have seen the
updates of iteration i - 1 - s (s: staleness); training of iteration i needs its rollout. Where both
share the devices (colocated), they also wait for each other. New weights are copied when training
ends, which both sides take part in.

With G the time of a rollout, T that of scoring and training, C that of the copy, an iteration of
many equal ones takes

    colocated or s = 0    G + T + C        asynchronous, s >= 1    max(G + C, T + C)
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

import simpy


class IterationTimes(NamedTuple):
    """What the phases of one iteration take."""

    rollout_s: float
    train_s: float
    copy_s: float


class IterationSpan(NamedTuple):
    """When the phases of one iteration began and ended."""

    rollout_start_s: float
    rollout_end_s: float
    train_start_s: float
    train_end_s: float
    copied_s: float


def play_iterations(times: Sequence[IterationTimes], staleness: int) -> list[IterationSpan]:
    """Play iterations one after the other.

    Parameters
    ----------
    staleness
        Iterations that the weights of a rollout may be behind those that training has made; 0: none
        (both sides then alternate, on one pool or two).
    """
    environment = simpy.Environment()
    copied = [environment.event() for _ in times]
    rolled = [environment.event() for _ in times]
    starts = [0.0] * len(times)
    ends = [0.0] * len(times)
    trained: list[tuple[float, float, float]] = []

    def generate() -> Generator[Any, Any, None]:
        for i, of in enumerate(times):
            needs = i - 1 - staleness
            if needs >= 0:
                yield copied[needs]
            if staleness and needs >= 0:  # the pool takes the weights between two rollouts
                yield environment.timeout(times[needs].copy_s)
            starts[i] = environment.now
            yield environment.timeout(of.rollout_s)
            ends[i] = environment.now
            rolled[i].succeed()

    def train() -> Generator[Any, Any, None]:
        for i, of in enumerate(times):
            yield rolled[i]
            start_s = environment.now
            yield environment.timeout(of.train_s)
            end_s = environment.now
            yield environment.timeout(of.copy_s)
            trained.append((start_s, end_s, environment.now))
            copied[i].succeed()

    environment.process(generate())
    environment.process(train())
    environment.run()
    return [
        IterationSpan(start, end, *after)
        for start, end, after in zip(starts, ends, trained, strict=True)
    ]
