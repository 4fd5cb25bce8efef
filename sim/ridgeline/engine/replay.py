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
from ridgeline.engine.critical_path import previous_on_streams
from ridgeline.engine.program import Floats, Indices, Ints
from ridgeline.engine.timeline import Timeline

_TOGETHER = 8  # samples whose ends of all tasks are held at a time
_Known = tuple[Ints, Indices, Ints, Indices]


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
    last = np.zeros(n_samples)
    ends = np.zeros((p.n_tasks, _TOGETHER))
    for first in range(0, n_samples, _TOGETHER):
        width = min(_TOGETHER, n_samples - first)
        some = np.ones((ratios.shape[0], _TOGETHER))
        some[:, :width] = ratios[:, first : first + width]
        if again:  # else every end is found before it is read
            ends[:] = 0.0
        found = _settle(order, timeline.durations_s, p.cost, some, known, ends, again=again)
        last[first : first + width] = found[:width]
    return last


class ReplayedTimes:
    """Times of all tasks of a timeline for other durations, the order on its streams kept."""

    def __init__(self, timeline: Timeline) -> None:
        self._program = timeline.program
        self._order, self._known, self._again = _order(timeline)

    def of(self, durations_s: Floats) -> tuple[Floats, Floats]:
        """Return [T] when each task starts and ends if each takes [T] another time.

        A start is to the last bit the end of what a task waited for, as in a timeline that was
        played: critical paths are found by that.
        """
        p = self._program
        ends, ratios = np.zeros((p.n_tasks, 1)), np.ones((len(p.phase_ptr) - 1, 1))
        _settle(self._order, durations_s, p.cost, ratios, self._known, ends, again=self._again)
        starts = np.zeros(p.n_tasks)
        _find_starts(*self._known, ends[:, 0], starts)
        return starts, ends[:, 0]


def _settle(
    order: Ints,
    duration: Floats,
    row: Indices,
    ratio: Floats,
    known: _Known,
    ends: Floats,
    *,
    again: bool,
) -> Floats:
    """Find the ends of all tasks, in one pass or until none changes; return the last of each."""
    last = _find_ends(order, duration, row, ratio, *known, ends)
    while again:
        before = ends.copy()
        last = _find_ends(order, duration, row, ratio, *known, ends)
        again = not np.array_equal(before, ends)
    return last


def _order(timeline: Timeline) -> tuple[Ints, _Known, bool]:
    """Return tasks as they were played, what each waited for, and whether one pass may not do."""
    p = timeline.program
    known = (p.dep_ptr, p.dep_index, *previous_on_streams(*timeline.tasks_by_stream, p.n_tasks))
    order = timeline.by_start
    # Once is enough, but for tasks of no length at one moment that wait for later numbers.
    again = _waits_for_later(order, *known[:2]) or _waits_for_later(order, *known[2:])
    return order, known, again


@kernel
def _waits_for_later(order: Ints, ptr: Ints, index: Indices) -> bool:
    """Tell whether a task waits for one that stands behind it in `order`."""
    before = np.zeros(len(order), np.bool_)
    for task in order:
        for i in range(ptr[task], ptr[task + 1]):
            if not before[index[i]]:
                return True
        before[task] = True
    return False


@kernel
def _find_starts(
    dep_ptr: Ints,
    dep_index: Indices,
    before_ptr: Ints,
    before: Indices,
    ends: Floats,
    starts: Floats,
) -> None:
    """Write the last end of what each task waited for."""
    for task in range(len(starts)):
        for i in range(dep_ptr[task], dep_ptr[task + 1]):
            starts[task] = max(starts[task], ends[dep_index[i]])
        for i in range(before_ptr[task], before_ptr[task + 1]):
            starts[task] = max(starts[task], ends[before[i]])


@kernel
def _find_ends(
    order: Ints,
    duration: Floats,
    row: Indices,
    ratio: Floats,
    dep_ptr: Ints,
    dep_index: Indices,
    before_ptr: Ints,
    before: Indices,
    ends: Floats,
) -> Floats:
    """Find the ends of all tasks in the order in which they were played; return the last."""
    width = ends.shape[1]
    end, last = np.zeros(width), np.zeros(width)
    for task in order:
        for s in range(width):
            end[s] = 0.0
        for i in range(dep_ptr[task], dep_ptr[task + 1]):
            other = dep_index[i]
            for s in range(width):
                end[s] = ends[other, s] if ends[other, s] > end[s] else end[s]
        for i in range(before_ptr[task], before_ptr[task + 1]):
            other = before[i]
            for s in range(width):
                end[s] = ends[other, s] if ends[other, s] > end[s] else end[s]
        length, kind = duration[task], row[task]
        for s in range(width):
            value = end[s] + length * ratio[kind, s]
            ends[task, s] = value
            last[s] = value if value > last[s] else last[s]
    return last
