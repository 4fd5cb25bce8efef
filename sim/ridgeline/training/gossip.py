"""Gossip: workers that average their weights in pairs, with two-sided or one-sided messages.

Two-sided: a worker that has computed a gradient waits for another that has, and the two exchange
weights and take their mean (X. Lian et al., "Asynchronous decentralized parallel SGD", ICML 2018).
One-sided: it writes its weights into another worker's memory with a notification, as GASPI does (C.
Simmendinger et al., "The GASPI API", 2015), and goes on; the other takes the mean with what has
arrived when its own gradient is done. Nobody waits, and weights are older when they are used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import simpy

from ridgeline.errors import RidgelineError
from ridgeline.training.asynchronous import Asynchrony, GradientTimes, Service

Messages = Literal["one-sided", "two-sided"]


@dataclass(frozen=True)
class GossipOutcome(Asynchrony):
    """Result of gossip; staleness counts gradients of all workers from sending to use.

    Attributes
    ----------
    disagreement
        Variance over the workers of a number that they only average, over that at the beginning.
    exchanges
        Means that were taken.
    """

    disagreement: float
    exchanges: int


class _Letter(NamedTuple):
    """Weights on their way: the number that stands for them, and the update that they are of."""

    value: float
    update: int


def simulate_gossip(
    workers: int,
    updates: int,
    *,
    gradient_s: float,
    exchange_s: float = 0.0,
    messages: Messages = "two-sided",
    service: Service = "exponential",
    seed: int = 0,
) -> GossipOutcome:
    """Train by gossip until so many gradients are computed.

    Parameters
    ----------
    gradient_s
        Mean time of a gradient.
    exchange_s
        Time of a message with all weights; two-sided ones pass both ways at once.

    Raises
    ------
    RidgelineError
        If there are less than two workers or no update, or a time or kind is wrong.
    """
    if workers < 2 or updates < 1:
        raise RidgelineError(
            f"gossip needs at least two workers and one update; found {workers} and {updates}"
        )
    if not gradient_s > 0 or exchange_s < 0:
        raise RidgelineError("a gradient takes more than 0 s, and a message at least 0 s")
    if messages not in ("one-sided", "two-sided"):
        raise RidgelineError(f"messages are one-sided or two-sided; found {messages!r}")
    return _Gossip(workers, exchange_s, messages, GradientTimes(
        gradient_s, service, np.random.default_rng((seed, 0))), seed).play(updates)  # fmt: skip


class _Gossip:
    def __init__(
        self, workers: int, exchange_s: float, messages: Messages, times: GradientTimes, seed: int
    ) -> None:
        self.workers, self.exchange_s, self.messages = workers, exchange_s, messages
        self.environment = simpy.Environment()
        self._times = times
        self._random = np.random.default_rng((seed, 1))
        self.values = np.random.default_rng((seed, 2)).standard_normal(workers)
        self._begun = float(self.values.var())
        self.staleness: Counter[int] = Counter()
        self.updates = self.exchanges = 0
        self.waited_s = 0.0
        self._waiting: list[tuple[int, int, simpy.Event]] = []  # worker, its update, its partner
        self._arrived: list[list[_Letter]] = [[] for _ in range(workers)]
        self._done = self.environment.event()
        self._target = 0

    def play(self, updates: int) -> GossipOutcome:
        self._target = updates
        work = self._two_sided if self.messages == "two-sided" else self._one_sided
        for number in range(self.workers):
            self.environment.process(work(number))
        self.environment.run(until=self._done)
        return GossipOutcome(
            workers=self.workers,
            updates=self.updates,
            time_s=float(self.environment.now),
            staleness=dict(sorted(self.staleness.items())),
            waited_s=self.waited_s,
            server_busy=0.0,
            disagreement=float(self.values.var()) / self._begun,
            exchanges=self.exchanges,
        )

    def _compute(self) -> Generator[simpy.Event, Any, None]:
        yield self.environment.timeout(self._times.draw())
        self.updates += 1
        if self.updates == self._target:
            self._done.succeed()

    def _two_sided(self, number: int) -> Generator[simpy.Event, Any, None]:
        """Compute, and wait for a partner, for ever."""
        while self.updates < self._target:
            yield from self._compute()
            began_s = self.environment.now
            if self._waiting:
                partner, update, found = self._waiting.pop()
                self.staleness[self.updates - 1 - update] += 1
                self._average(number, partner)
                yield self.environment.timeout(self.exchange_s)
                found.succeed()
            else:
                found = self.environment.event()
                self._waiting.append((number, self.updates, found))
                yield found
            self.waited_s += self.environment.now - began_s

    def _average(self, one: int, other: int) -> None:
        self.values[[one, other]] = (self.values[one] + self.values[other]) / 2
        self.exchanges += 1

    def _one_sided(self, number: int) -> Generator[simpy.Event, Any, None]:
        """Compute, take what has arrived, write to another worker, for ever."""
        while self.updates < self._target:
            yield from self._compute()
            for letter in self._arrived[number]:
                self.values[number] = (self.values[number] + letter.value) / 2
                self.staleness[self.updates - 1 - letter.update] += 1
                self.exchanges += 1
            self._arrived[number].clear()
            other = int(self._random.integers(self.workers - 1))
            other += other >= number
            letter = _Letter(float(self.values[number]), self.updates)
            if self.exchange_s:
                self.environment.process(self._send(other, letter))
            else:
                self._arrived[other].append(letter)

    def _send(self, other: int, letter: _Letter) -> Generator[simpy.Event, Any, None]:
        yield self.environment.timeout(self.exchange_s)
        self._arrived[other].append(letter)
