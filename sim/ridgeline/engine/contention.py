"""Tasks that share what a rank has once: its processors, and the bandwidth of its memory.

While a collective runs it keeps a share of the processors: tasks that are bound by arithmetic go on
at what is left. What tasks of a rank need of its memory's bandwidth at the same time is divided
max-min fairly where it is more than all of it: who needs less than an even share gets what it
needs. A task that gets less goes on as much more slowly, and so ends later by the integral of what
it does without. Where tasks then lie is found as in `replay`: the order on every stream is kept.
Later ends overlap with other tasks, so that this is done until it settles, always from the
durations as they were played.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ridgeline._jit import kernel
from ridgeline.engine.program import Flags, Floats, Ints
from ridgeline.engine.replay import ReplayedTimes
from ridgeline.engine.timeline import Timeline

_ROUNDS = 12
_SETTLED = 1e-3  # of all delays: what may still change
_MOST = 0.9  # of the processors: something is always left
_FULL = 1.0 + 1e-9


class Demand(NamedTuple):
    """What each task asks of its ranks.

    Attributes
    ----------
    taken
        [T] share of the processors that it keeps from others, 0 to 1.
    bound
        [T] whether it is slowed by that.
    used
        [T] share of the memory's bandwidth that it needs to go on at its full rate, 0 to 1.
    """

    taken: Floats
    bound: Flags
    used: Floats


def contended(timeline: Timeline, demand: Demand) -> Timeline:
    """Return the timeline with tasks slowed by what runs beside them on their rank."""
    p = timeline.program
    ptr, tasks = timeline.tasks_by_stream
    order = np.argsort(p.stream_rank, kind="stable").astype(np.int64)
    rank_ptr = np.searchsorted(p.stream_rank[order], np.arange(len(p.rank_multiplicity) + 1))
    streams = (rank_ptr.astype(np.int64), order, ptr.astype(np.int64), tasks.astype(np.int64))
    played, start_s, end_s = timeline.durations_s, timeline.start_s, timeline.end_s
    before, times = np.zeros(len(played)), None
    for _ in range(_ROUNDS):
        delays = np.zeros(len(played))
        find_delays(*streams, start_s, end_s, *demand, delays)
        if np.abs(delays - before).sum() <= _SETTLED * delays.sum():
            break
        before, durations = delays, played + delays
        times = times or ReplayedTimes(timeline)
        start_s, end_s = times.of(durations)
    return timeline if times is None else replace(timeline, start_s=start_s, end_s=end_s)


@kernel
def find_delays(
    rank_ptr: Ints,
    streams: Ints,
    ptr: Ints,
    tasks: Ints,
    start: Floats,
    end: Floats,
    taken: Floats,
    bound: Flags,
    used: Floats,
    delays: Floats,
) -> None:
    """Write by how much each task ends later; of a task on several ranks, the most.

    Streams ``streams[rank_ptr[k]:rank_ptr[k + 1]]`` are those of rank k, and stream s plays
    ``tasks[ptr[s]:ptr[s + 1]]`` one after the other. So a rank's moments are merged from them.
    """
    for rank in range(len(rank_ptr) - 1):
        first, n = rank_ptr[rank], rank_ptr[rank + 1] - rank_ptr[rank]
        at, active = np.zeros(n, np.int64), np.zeros(n, np.bool_)
        lost, need = np.zeros(n), np.zeros(n)
        for s in range(n):
            at[s] = ptr[streams[first + s]]
        now = 0.0
        while True:
            then, which = np.inf, -1
            for s in range(n):
                if at[s] < ptr[streams[first + s] + 1]:
                    task = tasks[at[s]]
                    moment = end[task] if active[s] else start[task]
                    if moment < then or (moment == then and active[s] and not active[which]):
                        then, which = moment, s
            if which < 0:
                break
            if then > now:
                keeps, total, many = 0.0, 0.0, 0
                for s in range(n):
                    need[s] = 0.0
                    if active[s] and not _stands_before(s, at, active, tasks):
                        keeps += taken[tasks[at[s]]]
                        need[s] = used[tasks[at[s]]]
                        total += need[s]
                        many += 1
                if many > 1 and (keeps > 0.0 or total > _FULL):
                    level = _fair_level(need, total)
                    for s in range(n):
                        if active[s]:
                            task = tasks[at[s]]
                            rate = 1.0 - min(keeps, _MOST) if bound[task] else 1.0
                            if used[task] > level:
                                rate = min(rate, level / used[task])
                            lost[s] += (1.0 - rate) * (then - now)
                now = then
            if active[which]:
                task = tasks[at[which]]
                delays[task] = max(delays[task], lost[which])
                active[which] = False
                at[which] += 1
            else:
                active[which] = True
                lost[which] = 0.0


@kernel
def _stands_before(s: int, at: Ints, active: Flags, tasks: Ints) -> bool:
    """Tell whether an earlier stream of the rank plays the same task."""
    count = 0
    for other in range(s):
        count += active[other] and tasks[at[other]] == tasks[at[s]]
    return count > 0


@kernel
def _fair_level(need: Floats, total: float) -> float:
    """Return what each may have at most so that all together have 1: the max-min fair level."""
    if total <= _FULL:
        return np.inf
    left, some = 1.0, np.sort(need)
    n = len(some)
    for i in range(n):
        if some[i] * (n - i) > left:
            return left / (n - i)
        left -= some[i]
    return np.inf
