"""Numbers out of Chakra traces: the tasks that nodes wait for, different texts, whole numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from ridgeline._jit import kernel
from ridgeline.workload.execution import Indices, Ints


def order_of(ids: Ints, file_ptr: Ints) -> tuple[Any, int]:
    """Return the order that sorts the ids within every file, and a node whose id is taken or -1."""
    file = np.repeat(np.arange(len(file_ptr) - 1), np.diff(file_ptr))
    rising = ids[1:] > ids[:-1]
    if bool((rising | (file[1:] != file[:-1])).all()):
        return np.arange(len(ids)), -1
    order = np.lexsort((ids, file))
    ordered = ids[order]
    twins = np.flatnonzero((ordered[1:] == ordered[:-1]) & (file[1:] == file[:-1]))
    return order, int(order[twins[0]]) if len(twins) else -1


@kernel
def find_ids(ids: Ints, file_ptr: Ints, order: Ints, dep_ptr: Ints, deps: Ints) -> int:
    """Replace the ids in `deps` by numbers of nodes, unknown ones by -1; return how many these are.

    `order` sorts the ids within every file.
    """
    unknown = 0
    for file in range(len(file_ptr) - 1):
        low, high = file_ptr[file], file_ptr[file + 1]
        for dep in range(dep_ptr[low], dep_ptr[high]):
            wanted = deps[dep]
            a, b = low, high
            guess = low + wanted - ids[order[low]]  # right if the ids are numbered through
            if low <= guess < high and ids[order[guess]] == wanted:
                a, b = guess, guess + 1
            while b - a > 1:
                middle = (a + b) // 2
                if ids[order[middle]] <= wanted:
                    a = middle
                else:
                    b = middle
            if a >= high or ids[order[a]] != wanted:
                deps[dep] = -1
                unknown += 1
            else:
                deps[dep] = order[a]
    return unknown


def distinct(values: Ints) -> tuple[Ints, Ints]:
    """Return which of the different values each one is, and where each first appears.

    They are numbered in the order of their first appearance. `values` are hashes: their last bits
    are as good as any.
    """
    which, first = np.empty(len(values), np.int64), np.empty(len(values), np.int64)
    slots = np.full(2 << max(len(values), 8).bit_length(), -1, np.int64)
    n = _distinct(np.ascontiguousarray(values), slots, which, first)
    return which, first[:n].copy()


@kernel
def _distinct(values: Ints, slots: Ints, which: Ints, first: Ints) -> int:
    """Return how many there are; a table with open addresses, at most half full, knows them."""
    n, mask = 0, len(slots) - 1
    for i in range(len(values)):
        slot = values[i] & mask
        while slots[slot] >= 0 and values[first[slots[slot]]] != values[i]:
            slot = (slot + 1) & mask
        if slots[slot] < 0:
            slots[slot], first[n] = n, i
            n += 1
        which[i] = slots[slot]
    return n


def whole_numbers(values: Any, absent: int) -> tuple[Indices, int]:
    """Return numbers of 32 bits, `absent` for NaN, and the first that is none or -1."""
    whole = np.empty(len(values), np.int32)
    return whole, _whole_numbers(values, absent, whole)


@kernel
def _whole_numbers(values: Any, absent: int, whole: Indices) -> int:
    for i in range(len(values)):
        value = values[i]
        if np.isnan(value):
            whole[i] = absent
        elif value == np.floor(value) and abs(value) < 2**31:
            whole[i] = np.int32(value)
        else:
            return i
    return -1
