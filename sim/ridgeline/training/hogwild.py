"""Hogwild: threads that update shared weights without locks, and the memory that they share.

A thread reads the weights, computes a gradient, and writes what it changes; nobody waits for a lock
(F. Niu et al., "Hogwild!", NIPS 2011). What threads do wait for is the memory: reads and writes of
all of them pass its channels. With exponential times this is the machine-repairman queue, so its
throughput is known in closed form. By Little's law the mean staleness is N - 1 whatever the times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy

from ridgeline.errors import RidgelineError
from ridgeline.training.asynchronous import Asynchrony, GradientTimes, Service


@dataclass(frozen=True)
class SharedUpdates(Asynchrony):
    """Result of threads on shared weights; `server_busy` is that of the memory.

    Attributes
    ----------
    density
        Share of the weights that an update reads and changes.
    parameters
        Weights.
    """

    density: float
    parameters: int

    @property
    def conflict_share(self) -> float:
        """Share of updates computed from a weight that another changed meanwhile.

        Updates draw their weights independently, so one of staleness s meets none of s others with
        probability (1 - density)^(density parameters s).
        """
        touched = self.density * self.parameters
        log_spared = touched * float(np.log1p(-self.density)) if self.density < 1 else -np.inf
        met = sum(
            count * (1.0 - float(np.exp(log_spared * value)) if value else 0.0)
            for value, count in self.staleness.items()
        )
        return met / self.updates


def simulate_hogwild(
    threads: int,
    updates: int,
    *,
    gradient_s: float,
    memory_s: float = 0.0,
    channels: int = 1,
    density: float = 1.0,
    parameters: int = 1,
    service: Service = "exponential",
    seed: int = 0,
) -> SharedUpdates:
    """Train on shared memory until so many updates are written.

    Parameters
    ----------
    gradient_s
        Mean time of a gradient by one thread, without its memory traffic.
    memory_s
        Mean time of the traffic of one update on one channel, reads and writes together.
    channels
        Of the memory: updates whose traffic passes at a time.
    density, parameters
        Share of the weights that an update changes, and how many there are.
    service
        Distribution of both times.

    Raises
    ------
    RidgelineError
        If there is no thread, update or channel, or a number is out of its range.
    """
    if min(threads, updates, channels, parameters) < 1:
        raise RidgelineError(
            "shared memory needs at least one thread, update, channel and parameter; found "
            f"{threads}, {updates}, {channels} and {parameters}"
        )
    if not gradient_s > 0 or memory_s < 0 or not 0 < density <= 1:
        raise RidgelineError(
            "a gradient takes more than 0 s, its memory traffic at least 0 s, and changes a share "
            f"of more than 0 and at most 1; found {gradient_s}, {memory_s} and {density}"
        )
    environment = simpy.Environment()
    memory = simpy.Resource(environment, channels)
    computed, passed = (
        GradientTimes(mean_s, service, np.random.default_rng((seed, k)))
        for k, mean_s in enumerate((gradient_s, memory_s))
    )
    staleness: Counter[int] = Counter()
    done = environment.event()
    written = 0
    waited_s = busy_s = 0.0

    def thread() -> Generator[simpy.Event, Any, None]:
        nonlocal written, waited_s, busy_s
        while True:
            read = written
            yield environment.timeout(computed.draw())
            if memory_s:
                asked_s = environment.now
                with memory.request() as channel:
                    yield channel
                    waited_s += environment.now - asked_s
                    traffic_s = passed.draw()
                    yield environment.timeout(traffic_s)
                    busy_s += traffic_s
            if written == updates:
                return
            staleness[written - read] += 1
            written += 1
            if written == updates:
                done.succeed()

    for _ in range(threads):
        environment.process(thread())
    environment.run(until=done)
    time_s = float(environment.now)
    return SharedUpdates(
        workers=threads,
        updates=updates,
        time_s=time_s,
        staleness=dict(sorted(staleness.items())),
        waited_s=waited_s,
        server_busy=min(1.0, busy_s / (channels * time_s)),
        density=density,
        parameters=parameters,
    )
