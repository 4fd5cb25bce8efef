"""Task order: tasks by start time, of a program and of each stream."""

from __future__ import annotations

import numpy as np

from ridgeline._jit import kernel
from ridgeline.engine.program import Floats, Indices, Ints, Program


def by_start(start_s: Floats, end_s: Floats) -> Ints:
    """Return [T] tasks by start; of one moment by end, then by number.

    Most moments have one task, so that this is a sort by start, and a third of the time of one by
    both.
    """
    order: Ints = np.argsort(start_s, kind="stable")
    _sort_moments(order, start_s, end_s)
    return order


def on_streams(program: Program, order: Ints) -> tuple[Ints, Ints]:
    """Return, in CSR, the tasks that hold each stream, alone or in a group, as `order` has them."""
    p = program
    ptr = np.zeros(len(p.stream_rank) + 1, np.int64)
    _count(p.stream, p.group, p.group_ptr, p.group_stream, ptr)
    tasks = np.empty(ptr[-1], np.int64)
    _place(order, p.stream, p.group, p.group_ptr, p.group_stream, ptr[:-1].copy(), tasks)
    return ptr, tasks


@kernel
def _sort_moments(order: Ints, start_s: Floats, end_s: Floats) -> None:
    """Put tasks that start together in the order of their ends, those that end together as is."""
    first = 0
    while first < len(order):
        last, ascends = first + 1, True
        while last < len(order) and start_s[order[last]] == start_s[order[first]]:
            ascends = ascends and end_s[order[last - 1]] <= end_s[order[last]]
            last += 1
        if not ascends:
            _heapsort(order[first:last], end_s)
        first = last


@kernel
def _heapsort(tasks: Ints, end_s: Floats) -> None:
    """Sort by end, then by number (numba's own sorts take seconds to compile)."""
    for root in range(len(tasks) // 2 - 1, -1, -1):
        _sift(tasks, root, len(tasks), end_s)
    for last in range(len(tasks) - 1, 0, -1):
        tasks[0], tasks[last] = tasks[last], tasks[0]
        _sift(tasks, 0, last, end_s)


@kernel
def _sift(tasks: Ints, root: int, n: int, end_s: Floats) -> None:
    """Let a task sink to where those below it come before it."""
    task = tasks[root]
    while 2 * root + 1 < n:
        below = 2 * root + 1
        if below + 1 < n and _is_before(tasks[below], tasks[below + 1], end_s):
            below += 1
        if not _is_before(task, tasks[below], end_s):
            break
        tasks[root] = tasks[below]
        root = below
    tasks[root] = task


@kernel
def _is_before(task: int, other: int, end_s: Floats) -> bool:
    return end_s[task] < end_s[other] or (end_s[task] == end_s[other] and task < other)


@kernel
def _count(
    stream: Indices, group: Indices, group_ptr: Ints, group_stream: Indices, ptr: Ints
) -> None:
    """Write where the tasks of each stream begin."""
    for task in range(len(stream)):
        if group[task] < 0:
            ptr[stream[task] + 1] += 1
        else:
            for i in range(group_ptr[group[task]], group_ptr[group[task] + 1]):
                ptr[group_stream[i] + 1] += 1
    for i in range(1, len(ptr)):
        ptr[i] += ptr[i - 1]


@kernel
def _place(
    order: Ints,
    stream: Indices,
    group: Indices,
    group_ptr: Ints,
    group_stream: Indices,
    room: Ints,
    tasks: Ints,
) -> None:
    """Write the tasks of each stream from where it has room."""
    for task in order:
        if group[task] < 0:
            tasks[room[stream[task]]] = task
            room[stream[task]] += 1
        else:
            for i in range(group_ptr[group[task]], group_ptr[group[task] + 1]):
                tasks[room[group_stream[i]]] = task
                room[group_stream[i]] += 1
