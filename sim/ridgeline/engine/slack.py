"""How much later every task could end without delaying the last one."""

from __future__ import annotations

import numpy as np

from ridgeline._jit import kernel
from ridgeline.engine.program import Floats, Ints
from ridgeline.engine.timeline import Timeline


def slack_s(timeline: Timeline) -> Floats:
    """Return the slack of every task, in seconds; those of a critical path have none.

    Durations and the order on every stream are kept as they were played: a task must end before
    its successors, and before what followed it on its streams, has to start at the latest. Slack of
    tasks that follow each other is shared, not added. A delay of a task on shared links would also
    change how these are divided, which slack does not know.

    Returns
    -------
    [T] seconds, at least 0.
    """
    p = timeline.program
    ptr, tasks = timeline.tasks_by_stream
    # whatever must come after a task starts later, or is at least not shorter
    order = np.lexsort((np.arange(p.n_tasks), timeline.end_s, timeline.start_s))
    latest = np.full(p.n_tasks, timeline.makespan_s)
    before_ptr, before = previous_on_streams(ptr, tasks, p.n_tasks)
    known = (p.dep_ptr, p.dep_index.astype(np.int64), before_ptr, before)
    # Once is enough, but for tasks of no length at one moment that wait for later numbers.
    while _latest_ends(order[::-1].copy(), timeline.durations_s, *known, latest):
        pass
    slack: Floats = np.maximum(latest - timeline.end_s, 0.0)
    return slack


def previous_on_streams(ptr: Ints, tasks: Ints, n_tasks: int) -> tuple[Ints, Ints]:
    """Return, in CSR, the tasks that came just before each task on its streams."""
    has = np.ones(len(tasks), np.bool_)
    has[ptr[:-1][np.diff(ptr) > 0]] = False  # the first of each stream
    after = np.flatnonzero(has)
    task, before = tasks[after], tasks[after - 1]
    order = np.argsort(task, kind="stable")
    count = np.bincount(task, minlength=n_tasks)
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(count))), before[order]


@kernel
def _latest_ends(
    order: Ints,
    duration: Floats,
    dep_ptr: Ints,
    dep_index: Ints,
    before_ptr: Ints,
    before: Ints,
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
