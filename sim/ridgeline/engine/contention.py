"""Work beside communication: what a collective takes of a device, other tasks there do without.

While a collective runs it keeps a share ``s`` of what bounds a task on the same rank, which goes on
at ``1 - s`` of its speed and so ends ``s`` times the overlap later. Where tasks then lie is found
as in `replay`: the order on every stream is kept. Later ends overlap with other collectives, so
that this is done a few times over, always from the durations as they were played.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ridgeline.engine.program import Flags, Floats, Ints
from ridgeline.engine.replay import ends_s
from ridgeline.engine.timeline import Timeline

_ROUNDS = 3


def contended(timeline: Timeline, taken: Floats, bound: Ints) -> Timeline:
    """Return the timeline with tasks slowed by what runs beside them on their rank.

    Parameters
    ----------
    taken
        [T, B] Share that each task takes of each of B things that bound others, 0 to 1.
    bound
        [T] Which of these things bounds a task; -1: none, it is not slowed.
    """
    takes = taken.max(axis=1, initial=0.0) > 0
    if not takes.any():
        return timeline
    played = timeline.durations_s
    found = timeline
    for _ in range(_ROUNDS):
        durations = played + _delays(found, taken, takes, bound)
        end_s = ends_s(timeline, durations)
        found = replace(timeline, start_s=end_s - durations, end_s=end_s)
    return found


def _delays(timeline: Timeline, taken: Floats, takes: Flags, bound: Ints) -> Floats:
    """Return [T] the seconds by which each task ends later: the integral of what is taken."""
    program = timeline.program
    ptr, tasks = timeline.tasks_by_stream
    rank_of = np.repeat(program.stream_rank, np.diff(ptr))
    delays = np.zeros(program.n_tasks)
    for rank in np.unique(rank_of[takes[tasks]]):
        mine = np.unique(tasks[rank_of == rank])
        beside = mine[takes[mine]]
        times = np.concatenate((timeline.start_s[beside], timeline.end_s[beside]))
        order = np.argsort(times, kind="stable")
        at = times[order]
        for b in range(taken.shape[1]):
            change = np.concatenate((taken[beside, b], -taken[beside, b]))[order]
            share = np.clip(np.cumsum(change), 0.0, 1.0)[:-1]
            lost = np.concatenate((np.zeros(1), np.cumsum(share * np.diff(at))))
            slowed = mine[bound[mine] == b]
            until, since = (
                np.interp(t[slowed], at, lost) for t in (timeline.end_s, timeline.start_s)
            )
            delays[slowed] = until - since
    return delays
