"""A played Program once more with other durations, many times at once.

What a task waited for when it was played, its predecessors and what came before it on its streams,
it waits for again: ``start = max(ends of those)``, ``end = start + duration * ratio of its cost
row``. That is a longest path for each sample, without events. The order on every stream is kept,
and so is the share that tasks had of what they divided; where neither would change, the ends are
those of the executor.
"""

from __future__ import annotations

import numpy as np

from ridgeline._jit import kernel
from ridgeline.engine.program import Floats, Ints
from ridgeline.engine.slack import previous_on_streams
from ridgeline.engine.timeline import Timeline

_TOGETHER = 8  # samples whose ends of all tasks are held at a time


def replay_s(timeline: Timeline, ratios: Floats) -> Floats:
    """Return when the last task ends if every cost row takes another time.

    Parameters
    ----------
    ratios
        [C, S] how much longer each cost row takes than it was played, in each sample.

    Returns
    -------
    [S] seconds.
    """
    p = timeline.program
    n_samples = ratios.shape[1]
    order, known, again = _order(timeline)
    rows = p.cost.astype(np.int64)
    last = np.zeros(n_samples)
    ends = np.zeros((p.n_tasks, _TOGETHER))
    for first in range(0, n_samples, _TOGETHER):
        width = min(_TOGETHER, n_samples - first)
        some = np.ones((ratios.shape[0], _TOGETHER))
        some[:, :width] = ratios[:, first : first + width]
        ends[:] = 0.0
        while _find_ends(order, timeline.durations_s, rows, some, *known, ends) and again:
            pass
        last[first : first + width] = ends[:, :width].max(axis=0, initial=0.0)
    return last


def ends_s(timeline: Timeline, durations_s: Floats) -> Floats:
    """Return [T] when each task ends if each takes [T] another time."""
    n_tasks = timeline.program.n_tasks
    order, known, again = _order(timeline)
    ends, ratios = np.zeros((n_tasks, _TOGETHER)), np.ones((1, _TOGETHER))
    rows = np.zeros(n_tasks, np.int64)
    while _find_ends(order, durations_s, rows, ratios, *known, ends) and again:
        pass
    return ends[:, 0].copy()


def _order(timeline: Timeline) -> tuple[Ints, tuple[Ints, Ints, Ints, Ints], bool]:
    """Return tasks as they were played, what each waited for, and whether one pass may not do."""
    p = timeline.program
    ptr, tasks = timeline.tasks_by_stream
    before_ptr, before = previous_on_streams(ptr, tasks, p.n_tasks)
    order = np.lexsort((np.arange(p.n_tasks), timeline.end_s, timeline.start_s))
    known = (p.dep_ptr, p.dep_index.astype(np.int64), before_ptr, before)
    # Once is enough, but for tasks of no length at one moment that wait for later numbers.
    again = _waits_for_later(order, p.dep_ptr, known[1]) or _waits_for_later(order, *known[2:])
    return order, known, again


def _waits_for_later(order: Ints, ptr: Ints, index: Ints) -> bool:
    """Tell whether a task waits for one that stands behind it in `order`."""
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return bool(np.any(place[index] > np.repeat(place, np.diff(ptr))))


@kernel
def _find_ends(
    order: Ints,
    duration: Floats,
    row: Ints,
    ratio: Floats,
    dep_ptr: Ints,
    dep_index: Ints,
    before_ptr: Ints,
    before: Ints,
    ends: Floats,
) -> bool:
    """Find the ends of all tasks in the order in which they were played; tell if any changed."""
    end = np.zeros(_TOGETHER)
    different = 0
    for task in order:
        for s in range(_TOGETHER):
            end[s] = 0.0
        for i in range(dep_ptr[task], dep_ptr[task + 1]):
            other = dep_index[i]
            for s in range(_TOGETHER):
                end[s] = ends[other, s] if ends[other, s] > end[s] else end[s]
        for i in range(before_ptr[task], before_ptr[task + 1]):
            other = before[i]
            for s in range(_TOGETHER):
                end[s] = ends[other, s] if ends[other, s] > end[s] else end[s]
        length, kind = duration[task], row[task]
        for s in range(_TOGETHER):
            value = end[s] + length * ratio[kind, s]
            different += ends[task, s] != value
            ends[task, s] = value
    return different > 0
