"""Work beside communication: what a collective takes of a device, other tasks there do without.

While a collective runs it keeps a share ``s`` of what bounds a task on the same rank, which goes on
at ``1 - s`` of its speed and so ends ``s`` times the overlap later. Where tasks then lie is found
as in `replay`: the order on every stream is kept. Later ends overlap with other collectives, so
that this is done a few times over, always from the durations as they were played.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ridgeline.engine.program import Flags, Floats, Ints
from ridgeline.engine.replay import Times
from ridgeline.engine.timeline import Timeline

_ROUNDS = 3
_SETTLED = 1e-3  # of all delays: what may still change


def contended(timeline: Timeline, taken: Floats, bound: Ints) -> Timeline:
    """Return the timeline with tasks slowed by what runs beside them on their rank.

    Parameters
    ----------
    taken
        [T, B] Share that each task takes of each of B things that bound others, 0 to 1.
    bound
        [T] Which of these things bounds a task; -1: none, it is not slowed.
    """
    takes = np.logical_or.reduce([column > 0 for column in taken.T])
    if not takes.any():
        return timeline
    played, ranks = timeline.durations_s, _Beside.of_ranks(timeline, takes)
    start_s, end_s = timeline.start_s, timeline.end_s
    before, times = np.zeros(len(played)), None
    for _ in range(_ROUNDS):
        delays = np.zeros(len(played))
        for rank in ranks:
            rank.delay(start_s, end_s, taken, bound, delays)
        if np.abs(delays - before).sum() <= _SETTLED * delays.sum():
            break
        before, durations = delays, played + delays
        times = times or Times(timeline)
        start_s, end_s = times.of(durations)
    return replace(timeline, start_s=start_s, end_s=end_s)


@dataclass(frozen=True)
class _Beside:
    """The tasks of one rank, and those of them that take something of it."""

    tasks: Ints
    takers: Ints

    @classmethod
    def of_ranks(cls, timeline: Timeline, takes: Flags) -> list[_Beside]:
        """Return those of every rank where something is taken."""
        ptr, tasks = timeline.tasks_by_stream
        rank_of = np.repeat(timeline.program.stream_rank.astype(np.int64), np.diff(ptr))
        placed = np.sort(rank_of * len(takes) + tasks)  # by rank, then by task
        placed = placed[np.diff(placed, prepend=-1) > 0]  # a task may hold two streams of a rank
        of_rank, task = np.divmod(placed, len(takes))
        each = np.split(task, np.flatnonzero(np.diff(of_rank)) + 1)
        return [cls(mine, taking) for mine in each if len(taking := mine[takes[mine]])]

    def delay(
        self, start_s: Floats, end_s: Floats, taken: Floats, bound: Ints, delays: Floats
    ) -> None:
        """Set the seconds by which each task ends later: the integral of what is taken."""
        times = np.concatenate((start_s[self.takers], end_s[self.takers]))
        order = np.argsort(times, kind="stable")
        at = times[order]
        for b in range(taken.shape[1]):
            change = np.concatenate((taken[self.takers, b], -taken[self.takers, b]))[order]
            share = np.clip(np.cumsum(change), 0.0, 1.0)[:-1]
            lost = np.concatenate((np.zeros(1), np.cumsum(share * np.diff(at))))
            slowed = self.tasks[bound[self.tasks] == b]
            since, until = np.interp(start_s[slowed], at, lost), np.interp(end_s[slowed], at, lost)
            delays[slowed] = until - since
