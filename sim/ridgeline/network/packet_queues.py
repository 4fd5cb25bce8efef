"""Queues of the packet level, on bare arrays: rounds of entries at a link, and events by time."""

from __future__ import annotations

import numpy as np

from ridgeline._jit import kernel, kernel_part
from ridgeline.network.message_schedule import Flags
from ridgeline.network.paths import Ints
from ridgeline.network.topology import Floats


@kernel_part
def join_round(
    entry: int,
    link: int,
    priority: Ints,
    flow_of: Ints,
    by_priority: bool,
    head: Ints,
    tail: Ints,
    following: Ints,
    in_round: Flags,
) -> None:
    """Put an entry at the end of its link's round, or behind the last of its priority."""
    in_round[entry] = True
    if by_priority and head[link] != -1:
        mine = priority[flow_of[entry]]
        if mine < priority[flow_of[head[link]]]:
            following[entry] = head[link]
            head[link] = entry
            return
        at = head[link]
        while following[at] != -1 and priority[flow_of[following[at]]] <= mine:
            at = following[at]
        following[entry] = following[at]
        following[at] = entry
        if following[entry] == -1:
            tail[link] = entry
        return
    following[entry] = -1
    if head[link] == -1:
        head[link] = entry
    else:
        following[tail[link]] = entry
    tail[link] = entry


@kernel_part
def push_event(
    times: Floats, what: Ints, keys: Ints, size: int, time: float, event: int, key: int
) -> None:
    """Add an event to a heap of `size` events; the first has the least time, then the least key."""
    hole = size
    while hole > 0:
        parent = (hole - 1) >> 1
        if times[parent] < time or (times[parent] == time and keys[parent] < key):
            break
        times[hole], what[hole], keys[hole] = times[parent], what[parent], keys[parent]
        hole = parent
    times[hole], what[hole], keys[hole] = time, event, key


@kernel_part
def pop_event(times: Floats, what: Ints, keys: Ints, size: int) -> None:
    """Remove the first of ``size + 1`` events."""
    time, event, key = times[size], what[size], keys[size]
    hole = 0
    while True:
        child = 2 * hole + 1
        if child >= size:
            break
        if child + 1 < size and (
            times[child + 1] < times[child]
            or (times[child + 1] == times[child] and keys[child + 1] < keys[child])
        ):
            child += 1
        if time < times[child] or (time == times[child] and key < keys[child]):
            break
        times[hole], what[hole], keys[hole] = times[child], what[child], keys[child]
        hole = child
    times[hole], what[hole], keys[hole] = time, event, key


@kernel
def grown(values: Floats) -> Floats:
    """Return the values with as much room again."""
    longer = np.empty(2 * len(values))
    longer[: len(values)] = values
    return longer


@kernel
def grown_ints(values: Ints) -> Ints:
    """Return the values with as much room again."""
    longer = np.empty(2 * len(values), np.int64)
    longer[: len(values)] = values
    return longer
