"""What bounds a simulated step from below: its work alone, its messages alone, each kind of link.

The step is played again as longest paths with the order on every stream kept
(`ridgeline.engine.replay`): once with messages that take no time, so that work, the waiting of
pipelines for one another and uneven stages are left; once with work that takes none and every
message as if it had its links for itself. Durations only shrink, so that neither is longer than the
step. The longest path of sums is at most the sum of the longest paths: a step takes no longer than
its work and its messages, as they were played, one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ridgeline.engine.program import Floats
from ridgeline.engine.replay import ReplayedTimes
from ridgeline.engine.stochastic import row_times_s
from ridgeline.engine.timeline import Timeline
from ridgeline.parallel.emit.rank_group import COLLECTIVE

UNCONTENDED = 0.85
"""A step is uncontended if its longest bound is at least this share of all of it in turn."""


@dataclass(frozen=True)
class Ceilings:
    """Least times of a step.

    Attributes
    ----------
    work_s
        If messages took no time.
    messages_s
        If work took no time, and every message had its links for itself.
    in_turn_s
        Work, and then messages as they were played: the step is no longer.
    """

    work_s: float
    messages_s: float
    in_turn_s: float


def ceilings(timeline: Timeline) -> Ceilings:
    """Play a step again without its messages, and without its work."""
    program, played = timeline.program, timeline.durations_s
    if COLLECTIVE not in program.kind_names:
        return Ceilings(timeline.makespan_s, 0.0, timeline.makespan_s)
    is_message = program.kind == program.kind_names.index(COLLECTIVE)
    times = ReplayedTimes(timeline)

    def step_s(durations_s: Floats) -> float:
        return float(times.of(durations_s)[1].max(initial=0.0))

    work_s = step_s(np.where(is_message, 0.0, played))
    alone_s = np.minimum(row_times_s(program)[program.cost], played)  # rounding of rounds
    messages_s = step_s(np.where(is_message, alone_s, 0.0))
    return Ceilings(work_s, messages_s, work_s + step_s(np.where(is_message, played, 0.0)))
