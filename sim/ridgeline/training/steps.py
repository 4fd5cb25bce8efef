"""Steps of a run: how many there are, what each takes, and what of that waits for input."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ridgeline.engine.program import Floats


@dataclass(frozen=True)
class StepPhase:
    """Equal steps of a run, or steps whose batch grows.

    Attributes
    ----------
    count
        How many steps.
    time_s, input_s
        Of a step, and what of it waits for input; where the batch grows, of the last step.
    first_time_s, first_input_s
        Of the first step where the batch grows: a step's time grows evenly with its batch.
    start_share
        Batch of the first step over that of the last; 1: it does not grow. It grows evenly with
        the samples, so exponentially with the steps.
    """

    count: int
    time_s: float
    input_s: float = 0.0
    first_time_s: float = 0.0
    first_input_s: float = 0.0
    start_share: float = 1.0

    def between(self, first: int, last: int) -> Floats:
        """Return times and waits for input of steps `first` to `last`, without it, (n, 2)."""
        usual = np.array([self.time_s, self.input_s])
        if self.start_share == 1.0:
            return np.tile(usual, (last - first, 1))
        batch = self.start_share ** (1.0 - np.arange(first, last) / self.count)
        grown = (batch - self.start_share) / (1.0 - self.start_share)
        smallest = np.array([self.first_time_s, self.first_input_s])
        return np.asarray(smallest + grown[:, None] * (usual - smallest))


@dataclass(frozen=True)
class StepTimes:
    """Undisturbed times of all steps of a run, phase by phase."""

    phases: tuple[StepPhase, ...]

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """Number of the step after the last of each phase."""
        return tuple(np.cumsum([phase.count for phase in self.phases]).tolist())

    @property
    def count(self) -> int:
        """Steps of the run."""
        return self.ends[-1]

    @property
    def time_s(self) -> float:
        """Of a step of the longest phase."""
        return max(self.phases, key=lambda phase: phase.count).time_s

    def between(self, first: int, last: int) -> tuple[Floats, Floats]:
        """Return times of steps `first` to `last`, without the last, and their waits for input."""
        parts = []
        begin = 0
        for phase, end in zip(self.phases, self.ends, strict=True):
            if begin < last and first < end:
                parts.append(phase.between(max(first, begin) - begin, min(last, end) - begin))
            begin = end
        both = np.concatenate(parts) if parts else np.empty((0, 2))
        return both[:, 0], both[:, 1]

    @property
    def undisturbed_s(self) -> float:
        """Time of all steps together."""
        return math.fsum(
            phase.count * phase.time_s
            if phase.start_share == 1.0
            else float(phase.between(0, phase.count)[:, 0].sum())
            for phase in self.phases
        )


def ramp_steps(start: int, batch: int, samples: float) -> int:
    """Return the steps in which a batch grows evenly with the samples from `start` to `batch`.

    After s samples a step takes b(s) = start + s (batch - start) / samples of them: the number of
    steps is the integral of 1 / b.
    """
    return max(1, round(samples / (batch - start) * math.log(batch / start)))
