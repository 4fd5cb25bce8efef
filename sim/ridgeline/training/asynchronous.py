"""Asynchronous training: workers and parameter servers as SimPy processes, and how stale they get.

A worker pulls the weights, computes a gradient, and pushes it; a server applies gradients one by
one, in the order in which they come (Downpour SGD, Dean et al., "Large scale distributed deep
networks", NIPS 2012). The staleness of a gradient is the number of updates between the weights that
it was computed from and those that it is applied to. With N workers and exponential times of a
gradient its mean is N - 1, as every other worker is equally likely to deliver next. A bound lets no
worker run ahead of the slowest by more than so many gradients (stale synchronous parallel, Ho et
al., NIPS 2013); with a bound of 0 all keep step. With several local steps a worker exchanges
weights after as many gradients (elastic averaging, Zhang et al., "Deep learning with elastic
averaging SGD", NIPS 2015): an update is then an exchange.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import simpy

from ridgeline.errors import RidgelineError

Service = Literal["exponential", "constant", "lognormal", "uniform"]
_BLOCK = 4096


@dataclass(frozen=True)
class Asynchrony:
    """Result of asynchronous training: throughput, staleness and waiting.

    Attributes
    ----------
    updates
        Gradients that were applied.
    time_s
        Until the last of them.
    staleness
        Updates between pull and push -> how many gradients had it.
    waited_s
        Time of all workers together that they waited: for the server, or for the slowest worker.
    server_busy
        Share of the time that the servers applied gradients.
    """

    workers: int
    updates: int
    time_s: float
    staleness: dict[int, int]
    waited_s: float
    server_busy: float

    @property
    def mean_staleness(self) -> float:
        """Mean over all gradients."""
        return sum(value * count for value, count in self.staleness.items()) / self.updates

    @property
    def updates_per_s(self) -> float:
        """Throughput."""
        return self.updates / self.time_s

    @property
    def worker_busy(self) -> float:
        """Share of the workers' time that they compute."""
        return 1.0 - self.waited_s / (self.workers * self.time_s)


class GradientTimes:
    """Times of gradients, drawn in blocks.

    Parameters
    ----------
    mean_s
        Of one gradient.
    service
        "exponential"; "constant"; "lognormal" with a standard deviation of half the mean;
        "uniform" from half to one and a half of the mean.
    """

    def __init__(self, mean_s: float, service: Service, random: np.random.Generator) -> None:
        self.mean_s, self.service, self._random = mean_s, service, random
        self._block: list[float] = []

    def draw(self) -> float:
        """Return the time of the next gradient, in seconds."""
        if not self._block:
            self._block = self._drawn().tolist()
        return self._block.pop()

    def _drawn(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        match self.service:
            case "exponential":
                return self._random.exponential(self.mean_s, _BLOCK)
            case "constant":
                return np.full(_BLOCK, self.mean_s)
            case "lognormal":
                sigma = np.sqrt(np.log(1.25))
                return self.mean_s * self._random.lognormal(-(sigma**2) / 2, sigma, _BLOCK)
            case "uniform":
                return self._random.uniform(0.5 * self.mean_s, 1.5 * self.mean_s, _BLOCK)


class ParameterServer:
    """Weights that gradients are applied to, one at a time on each shard.

    Parameters
    ----------
    apply_s
        Time to apply one gradient, on all shards together.
    shards
        Servers that each hold a part of the weights; a gradient is applied on all of them at once.
    """

    def __init__(self, environment: simpy.Environment, apply_s: float, shards: int = 1) -> None:
        self.environment = environment
        self.apply_s = apply_s / shards
        self.version = 0
        self.busy_s = 0.0
        self._free_s = 0.0

    def apply(self) -> float:
        """Queue a gradient; return when it is applied."""
        start_s = max(self._free_s, self.environment.now)
        self._free_s = start_s + self.apply_s
        self.busy_s += self.apply_s
        return self._free_s


class AsynchronousTraining:
    """Workers that train against parameter servers without waiting for each other.

    Parameters
    ----------
    gradient_s
        Mean time of a gradient of one worker.
    pull_s, push_s
        Time of a message with all weights, and with one gradient.
    bound
        Exchanges that a worker may be ahead of the slowest; None: any.
    local_steps
        Gradients between two exchanges.
    slow
        Factors of workers that are slower than the others, by their number.
    """

    def __init__(
        self,
        workers: int,
        *,
        gradient_s: float,
        service: Service = "exponential",
        pull_s: float = 0.0,
        push_s: float = 0.0,
        apply_s: float = 0.0,
        shards: int = 1,
        bound: int | None = None,
        local_steps: int = 1,
        slow: dict[int, float] | None = None,
        seed: int = 0,
    ) -> None:
        if min(workers, shards, local_steps) < 1:
            raise RidgelineError(
                "asynchronous training needs at least one worker, one server and one local step; "
                f"found {workers}, {shards} and {local_steps}"
            )
        if not gradient_s > 0 or min(pull_s, push_s, apply_s) < 0:
            raise RidgelineError("a gradient takes more than 0 s, messages and updates at least 0")
        if bound is not None and bound < 0:
            raise RidgelineError(f"a bound is 0 or more gradients; found {bound}")
        self.workers, self.bound = workers, bound
        self.pull_s, self.push_s, self.local_steps = pull_s, push_s, local_steps
        self.slow = slow or {}
        self.environment = simpy.Environment()
        self.server = ParameterServer(self.environment, apply_s, shards)
        self.staleness: Counter[int] = Counter()
        self.waited_s = 0.0
        self.updates = 0
        self._times = GradientTimes(gradient_s, service, np.random.default_rng(seed))
        self._clocks = _Clocks(workers)
        self._blocked: list[tuple[int, int, simpy.Event]] = []
        self._done = self.environment.event()
        self._target = 0

    def play(self, updates: int) -> Asynchrony:
        """Train until so many gradients are applied.

        Raises
        ------
        RidgelineError
            If it is less than one.
        """
        if updates < 1:
            raise RidgelineError(f"at least one update is needed; found {updates}")
        self._target = updates
        for number in range(self.workers):
            self.environment.process(self._work(number))
        self.environment.run(until=self._done)
        time_s = float(self.environment.now)
        return Asynchrony(
            workers=self.workers,
            updates=self.updates,
            time_s=time_s,
            staleness=dict(sorted(self.staleness.items())),
            waited_s=self.waited_s,
            server_busy=min(1.0, self.server.busy_s / time_s) if time_s else 0.0,
        )

    def _work(self, number: int) -> Generator[simpy.Event, Any, None]:
        """Pull, compute, push, for ever."""
        environment, server = self.environment, self.server
        factor = self.slow.get(number, 1.0)
        while True:
            if self.bound is not None and self._clocks.ahead(number) > self.bound:
                began = environment.now
                freed = environment.event()
                heapq.heappush(self._blocked, (self._clocks.of(number), number, freed))
                yield freed
                self.waited_s += environment.now - began
            if self.pull_s:
                yield environment.timeout(self.pull_s)
            pulled = server.version
            computed_s = sum(self._times.draw() for _ in range(self.local_steps))
            yield environment.timeout(factor * computed_s + self.push_s)
            applied_s = server.apply()
            if applied_s > environment.now:
                self.waited_s += applied_s - environment.now
                yield environment.timeout(applied_s - environment.now)
            if self.updates == self._target:  # another ended the run at this very moment
                return
            self.staleness[server.version - pulled] += 1
            server.version += 1
            self.updates += 1
            if self.updates == self._target:
                self._done.succeed()
                return
            if self.bound is not None and self._clocks.tick(number):
                self._free()

    def _free(self) -> None:
        """Let those go on whom the slowest worker has caught up with."""
        assert self.bound is not None
        while self._blocked and self._blocked[0][0] - self._clocks.least <= self.bound:
            heapq.heappop(self._blocked)[2].succeed()


class _Clocks:
    """Gradients of every worker, and the least of them."""

    def __init__(self, workers: int) -> None:
        self._clock = [0] * workers
        self._at = Counter({0: workers})
        self.least = 0

    def of(self, worker: int) -> int:
        return self._clock[worker]

    def ahead(self, worker: int) -> int:
        return self._clock[worker] - self.least

    def tick(self, worker: int) -> bool:
        """Count a gradient; tell whether the slowest got on."""
        clock = self._clock[worker]
        self._clock[worker] = clock + 1
        self._at[clock] -= 1
        self._at[clock + 1] += 1
        before = self.least
        while not self._at[self.least]:
            del self._at[self.least]
            self.least += 1
        return self.least > before


def simulate_asynchronous(workers: int, updates: int, **settings: Any) -> Asynchrony:
    """Train asynchronously until so many gradients are applied; see `AsynchronousTraining`."""
    return AsynchronousTraining(workers, **settings).play(updates)
