"""Times of short pieces of work on a machine that also does other things.

What disturbs a measurement (another process, an interrupt, a cold cache) makes it longer, never
shorter. So a piece of work is repeated, what lies far above the lower quartile is rejected, and the
median of the rest counts (Hoefler and Belli, "Scientific benchmarking of parallel computing
systems", SC'15, on why not the mean).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

Run = Callable[[], object]

_DISTURBED = 1.25  # times the lower quartile
_SAMPLE_S = 3e-4  # a sample lasts at least this long: clocks and their calls take up to 1 us
_SAMPLES = 11
_FEWEST = 4
_LOOPS = 100_000


def _nothing() -> None:
    return None


@dataclass(frozen=True)
class Stopwatch:
    """A clock, and how to wait until a device has done what it was given.

    Attributes
    ----------
    now
        Seconds: of this process's processor time where one thread works (other processes do not
        count), else of the wall.
    synchronize
        Returns when all work that was started is done. Work on an accelerator is started, not
        done, when a call returns.
    """

    now: Callable[[], float]
    synchronize: Callable[[], object] = _nothing

    def seconds(self, run: Run, loops: int) -> float:
        """Time of one of `loops` runs."""
        self.synchronize()
        start = self.now()
        for _ in range(loops):
            run()
        self.synchronize()
        return (self.now() - start) / loops


@dataclass(frozen=True)
class TimeSample:
    """A measured time.

    Attributes
    ----------
    spread
        Median deviation of the undisturbed samples from `seconds`, over `seconds`.
    taken, kept
        Samples, and those of them that were not disturbed.
    """

    seconds: float
    spread: float
    taken: int
    kept: int


def cpu_watch(threads: int) -> Stopwatch:
    """Return the clock for work of so many threads of this process."""
    return Stopwatch(time.process_time if threads == 1 else time.perf_counter)


def measure(run: Run, watch: Stopwatch, budget_s: float = 0.05) -> TimeSample:
    """Measure one piece of work, which may be repeated as often as one likes.

    Parameters
    ----------
    budget_s
        About how long this may take; a few samples are taken in any case.
    """
    watch.seconds(run, 1)  # what is allocated, compiled or loaded at the first time
    once = watch.seconds(run, 1)
    loops = _LOOPS if once <= 0 else max(1, min(_LOOPS, round(_SAMPLE_S / once)))
    number = int(budget_s / max(once * loops, 1e-9))
    number = max(_FEWEST, min(_SAMPLES, number))
    return undisturbed([watch.seconds(run, loops) for _ in range(number)])


def undisturbed(samples: list[float]) -> TimeSample:
    """Reject what was disturbed, and return the median of the rest."""
    ordered = sorted(samples)
    quartile = ordered[(len(ordered) - 1) // 4]
    kept = [s for s in ordered if s <= _DISTURBED * quartile]
    middle = statistics.median(kept)
    apart = statistics.median(abs(s - middle) for s in kept)
    return TimeSample(middle, apart / middle if middle else 0.0, len(samples), len(kept))
