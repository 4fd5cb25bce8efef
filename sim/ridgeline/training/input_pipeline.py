"""Input pipeline of a run as SimPy processes: storage, decoding, staging, and the steps it feeds.

On every node a reader for each source fetches mini-batches, workers decode them, and a stager
copies them to the devices; full buffers stop each of them. A step starts once every node has its
part, so it waits for the slowest (J. Mohan et al., "Analyzing and mitigating data stalls in DNN
training", VLDB 2021, calls waiting for storage a fetch stall, for decoding a prep stall).

Without chance a step takes the longest of its own time and of `InputStages.limits_s`; buffers only
matter at the beginning and after stops. With chance they even out what varies.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import simpy

from ridgeline.engine.program import Floats

Process = Generator[simpy.Event, Any, None]
STORAGE, CACHE, DECODING, STAGING = "storage", "cache", "decoding", "staging"
_MEASURED = 256
"""Steps at least over which a mean is taken."""
_MOST_BATCHES = 60_000
"""Of all nodes together, that are played with chance."""
_BLOCK = 256


@dataclass(frozen=True)
class InputStages:
    """Stages of the input of one node, for its part of a mini-batch.

    Attributes
    ----------
    storage_s, cache_s
        Reading what comes from storage, and what comes from a cache; both beside each other.
    decode_s
        Decoding by one worker.
    workers
        Processes that each decode a mini-batch.
    staging_s
        Copying to the devices.
    prefetch
        Decoded mini-batches that can wait on the host.
    shuffle_s
        Reading until the shuffle buffer is full, before the first mini-batch.
    spread
        Standard deviation of the times of reading and decoding over their mean (log-normal).
    """

    storage_s: float
    decode_s: float
    workers: int
    prefetch: int
    cache_s: float = 0.0
    staging_s: float = 0.0
    shuffle_s: float = 0.0
    spread: float = 0.0

    @property
    def limits_s(self) -> dict[str, float]:
        """Time between two mini-batches if one stage alone set the pace."""
        return {
            STORAGE: self.storage_s,
            CACHE: self.cache_s,
            DECODING: self.decode_s / self.workers,
            STAGING: self.staging_s,
        }

    @property
    def limit(self) -> str:
        """Slowest stage."""
        return max(self.limits_s, key=lambda name: self.limits_s[name])

    @property
    def batch_s(self) -> float:
        """Time between two mini-batches at best: that of the slowest stage."""
        return self.limits_s[self.limit]


class InputWaits(NamedTuple):
    """What steps wait for their input.

    Attributes
    ----------
    fill_s
        From an empty pipeline to the first step.
    wait_s
        Of a step in the steady state, in the mean.
    begun_s
        Waiting that later mini-batches spare which were ready together with the first one.
    banked_s
        Waiting that a long stop spares afterwards, as buffers fill while nothing is trained.
    nodes
        That were played; one stands for all if nothing is left to chance.
    """

    fill_s: float
    wait_s: float
    begun_s: float
    banked_s: float
    nodes: int


class InputSimulation:
    """Input pipelines of all nodes of a job, and the steps that they feed.

    Parameters
    ----------
    stages
        Of every node.
    nodes
        How many; each draws times of its own.
    """

    def __init__(self, stages: InputStages, nodes: int = 1, seed: int = 0) -> None:
        self.stages = stages
        self.environment = simpy.Environment()
        self._nodes = [_InputNode(self.environment, stages, (seed, k)) for k in range(nodes)]

    def train(self, steps: int, step_s: float) -> Floats:
        """Train more steps; return the clock at the start of each, and at the end of the last.

        Parameters
        ----------
        step_s
            Time of a step that has its input.
        """
        clock = np.empty(steps + 1)
        self.environment.run(until=self.environment.process(self._train(clock, step_s)))
        return clock

    def stop(self, time_s: float) -> None:
        """Let time pass in which nothing is trained, and the pipelines work on."""
        self.environment.run(until=self.environment.now + time_s)

    def _train(self, clock: Floats, step_s: float) -> Process:
        for k in range(len(clock) - 1):
            for node in self._nodes:
                yield node.staged.get()
            clock[k] = self.environment.now
            yield self.environment.timeout(step_s)
        clock[-1] = self.environment.now


class _InputNode:
    """Readers, decoding workers and stager of one node."""

    def __init__(
        self, environment: simpy.Environment, stages: InputStages, seed: tuple[int, int]
    ) -> None:
        self.environment, self.stages = environment, stages
        self.ready = simpy.Store(environment, stages.prefetch)
        self.staged = simpy.Store(environment, 1)
        self._random = np.random.default_rng(seed)
        self._drawn: list[float] = []
        self._sources = []
        for time_s, first_s in ((stages.storage_s, stages.shuffle_s), (stages.cache_s, 0.0)):
            if time_s or first_s:
                read = simpy.Store(environment, stages.workers)
                self._sources.append(read)
                environment.process(self._read(read, time_s, first_s))
        for _ in range(stages.workers):
            environment.process(self._decode())
        environment.process(self._stage())

    def _read(self, read: simpy.Store, time_s: float, first_s: float) -> Process:
        """Fetch mini-batches from one source for ever."""
        yield self.environment.timeout(first_s)
        while True:
            yield self.environment.timeout(time_s * self._varied())
            yield read.put(None)

    def _decode(self) -> Process:
        """Decode mini-batches for ever."""
        while True:
            for source in self._sources:
                yield source.get()
            yield self.environment.timeout(self.stages.decode_s * self._varied())
            yield self.ready.put(None)

    def _stage(self) -> Process:
        """Copy mini-batches to the devices for ever."""
        while True:
            yield self.ready.get()
            yield self.environment.timeout(self.stages.staging_s)
            yield self.staged.put(None)

    def _varied(self) -> float:
        """Draw a time over its mean."""
        if not self.stages.spread:
            return 1.0
        if not self._drawn:
            sigma = math.sqrt(math.log1p(self.stages.spread**2))
            self._drawn = self._random.lognormal(-(sigma**2) / 2, sigma, _BLOCK).tolist()
        return self._drawn.pop()


def input_waits(stages: InputStages, step_s: float, nodes: int = 1, seed: int = 0) -> InputWaits:
    """Play the input of a job until it is steady; return what its steps wait.

    Nodes that leave nothing to chance are equal, so one stands for all. Of very many, as many are
    played as there is time for: the slowest of them is a lower bound.

    Parameters
    ----------
    step_s
        Time of a step that has its input.
    """
    workers = stages.workers
    lead = workers * -(-(_MEASURED + workers + stages.prefetch) // workers)
    measured = workers * -(-_MEASURED // workers)  # workers in step bring their batches at once
    played = max(1, _MOST_BATCHES // (lead + 2 * measured)) if stages.spread else 1
    nodes = min(nodes, played)
    simulation = InputSimulation(stages, nodes, seed)
    fill_s = float(simulation.train(1, 0.0)[0])
    # Where input is slower than the steps, nothing waits in buffers once they have run empty.
    drained_s = 0.0 if stages.batch_s > step_s else step_s
    begun = simulation.train(lead, drained_s)
    simulation.train(_SETTLING * workers, step_s)
    clock = simulation.train(measured + 1, step_s)
    wait_s = max(0.0, float(clock[-2] - clock[0]) / measured - step_s)
    if wait_s <= 1e-9 * step_s:
        return InputWaits(fill_s, 0.0, 0.0, 0.0, nodes)
    begun_s = max(0.0, lead * (step_s + wait_s) - float(begun[-1] - fill_s))
    simulation.stop(_LONG * (fill_s + (lead + stages.prefetch) * stages.batch_s))
    begin_s = simulation.environment.now
    clock = simulation.train(lead, drained_s)
    banked_s = max(0.0, lead * (step_s + wait_s) - float(clock[-1] - begin_s))
    return InputWaits(fill_s, wait_s, begun_s, banked_s, nodes)


_SETTLING = 4
"""Rounds of the workers until their batches come in the rhythm of the steps."""
_LONG = 2.0
"""Times that a stop is longer than filling all buffers."""
