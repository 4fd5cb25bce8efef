"""Steps of a run: how many there are, what each takes, and what of that waits for input."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ridgeline.engine.program import Floats


@dataclass(frozen=True)
class StepTimes:
    """Undisturbed times of the steps of a run.

    Attributes
    ----------
    count
        Steps to the target.
    time_s, input_s
        Of a step with the whole batch, and what of it waits for input.
    ramp_steps
        Steps with a smaller batch at the beginning.
    ramp_time_s, ramp_input_s
        Of the first of them; a step's time grows evenly with its batch.
    start_share
        Batch of the first step over the whole batch.
    """

    count: int
    time_s: float
    input_s: float = 0.0
    ramp_steps: int = 0
    ramp_time_s: float = 0.0
    ramp_input_s: float = 0.0
    start_share: float = 1.0

    def between(self, first: int, last: int) -> tuple[Floats, Floats]:
        """Return times of steps `first` to `last`, without the last, and their waits for input."""
        number = np.arange(first, last)
        whole = np.ones(last - first)
        if self.ramp_steps:
            # The batch grows evenly with the samples, so exponentially with the steps.
            share = self.start_share ** (1.0 - np.minimum(number / self.ramp_steps, 1.0))
            whole = (share - self.start_share) / (1.0 - self.start_share)
        return (
            self.ramp_time_s + whole * (self.time_s - self.ramp_time_s),
            self.ramp_input_s + whole * (self.input_s - self.ramp_input_s),
        )

    @property
    def undisturbed_s(self) -> float:
        """Time of all steps together."""
        if not self.ramp_steps:
            return self.count * self.time_s
        ramped = min(self.ramp_steps, self.count)
        return float(self.between(0, ramped)[0].sum()) + (self.count - ramped) * self.time_s


def ramp_steps(start: int, batch: int, samples: float) -> int:
    """Return the steps in which a batch grows evenly with the samples from `start` to `batch`.

    Step i takes b(s) samples at s samples so far, b(s) = start + s (batch - start) / samples: the
    number of steps is the integral of 1 / b.
    """
    if start >= batch:
        return 0
    return max(1, round(samples / (batch - start) * math.log(batch / start)))
