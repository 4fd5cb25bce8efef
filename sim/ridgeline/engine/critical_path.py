"""Critical path and slack of a played program."""

from __future__ import annotations

import numpy as np

from ridgeline._jit import kernel
from ridgeline.engine.program import Floats, Indices, Ints, Program


def slack_s(
    p: Program, start_s: Floats, end_s: Floats, order: Ints, streams: tuple[Ints, Ints]
) -> Floats:
    """Return the slack of every task, in seconds; those of a critical path have none.

    Durations and the order on every stream are kept as they were played: a task must end before
    its successors, and before what followed it on its streams, has to start at the latest. Slack of
    tasks that follow each other is shared, not added. A delay of a task on shared links would also
    change how these are divided, which slack does not know.

    Parameters
    ----------
    start_s, end_s
        [T] When each task of the program ran, in seconds.
    order
        [T] Tasks by start: what must come after a task starts later, or is at least not shorter.
    streams
        Tasks of each stream by start, as CSR.

    Returns
    -------
    [T] seconds, at least 0.
    """
    ptr, tasks = streams
    latest = np.full(p.n_tasks, float(end_s.max(initial=0.0)))
    known = (p.dep_ptr, p.dep_index, *previous_on_streams(ptr, tasks, p.n_tasks))
    # Once is enough, but for tasks of no length at one moment that wait for later numbers.
    while _latest_ends(order[::-1].copy(), end_s - start_s, *known, latest):
        pass
    slack: Floats = np.maximum(latest - end_s, 0.0)
    return slack


def critical_path(p: Program, start_s: Floats, end_s: Floats, streams: tuple[Ints, Ints]) -> Ints:
    """Return tasks that follow each other without a gap; see `Timeline.critical_path`."""
    if p.n_tasks == 0:
        return np.zeros(0, np.int64)
    known = (p.dep_ptr, p.dep_index, *previous_on_streams(*streams, p.n_tasks))
    last = int(np.argmax(end_s))
    path = np.empty(p.n_tasks, np.int64)
    return path[: _walk(last, start_s, end_s, *known, path)][::-1].copy()


def previous_on_streams(ptr: Ints, tasks: Ints, n_tasks: int) -> tuple[Ints, Indices]:
    """Return, in CSR, the tasks that came just before each task on its streams."""
    before_ptr = np.zeros(n_tasks + 1, np.int64)
    before = np.empty(len(tasks) - np.count_nonzero(np.diff(ptr)), np.int32)
    _find_previous(ptr, tasks, before_ptr, before)
    return before_ptr, before


@kernel
def _find_previous(ptr: Ints, tasks: Ints, before_ptr: Ints, before: Indices) -> None:
    """Write what came before each task, by counting."""
    for stream in range(len(ptr) - 1):
        for i in range(ptr[stream] + 1, ptr[stream + 1]):
            before_ptr[tasks[i]] += 1
    for task in range(len(before_ptr) - 1):
        before_ptr[task + 1] += before_ptr[task]
    # Each pointer is at the end of its list; filling from the last on moves it to the head.
    for stream in range(len(ptr) - 2, -1, -1):
        for i in range(ptr[stream + 1] - 1, ptr[stream], -1):
            before_ptr[tasks[i]] -= 1
            before[before_ptr[tasks[i]]] = tasks[i - 1]


@kernel
def _latest_ends(
    order: Ints,
    duration: Floats,
    dep_ptr: Ints,
    dep_index: Indices,
    before_ptr: Ints,
    before: Indices,
    latest: Floats,
) -> bool:
    """Pass the latest start of every task back to what it waited for; tell whether any changed."""
    changed = False
    for task in order:
        start = latest[task] - duration[task]
        for i in range(dep_ptr[task], dep_ptr[task + 1]):
            if latest[dep_index[i]] > start:
                latest[dep_index[i]] = start
                changed = True
        for i in range(before_ptr[task], before_ptr[task + 1]):
            if latest[before[i]] > start:
                latest[before[i]] = start
                changed = True
    return changed


@kernel
def _walk(
    last: int,
    start: Floats,
    end: Floats,
    dep_ptr: Ints,
    dep_index: Indices,
    before_ptr: Ints,
    before: Indices,
    path: Ints,
) -> int:
    """Go back from a task to time 0 through tasks that ended when the next began; count them.

    Tasks of no length that ran at one moment may point at each other, so that a walk may have to
    turn back: none is entered twice.
    """
    asked = np.zeros(len(start), np.int64)  # how many of a task's causes
    seen = np.zeros(len(start), np.bool_)
    path[0], seen[last], n = last, True, 1
    while n > 0 and start[path[n - 1]] > 0.0:
        task = path[n - 1]
        waited = dep_ptr[task + 1] - dep_ptr[task]
        i = asked[task]
        asked[task] += 1
        if i >= waited + before_ptr[task + 1] - before_ptr[task]:
            n -= 1
            continue
        if i < waited:
            cause = dep_index[dep_ptr[task] + i]
        else:
            cause = before[before_ptr[task] + i - waited]
        if end[cause] == start[task] and not seen[cause]:
            path[n], seen[cause] = cause, True
            n += 1
    return n
