"""From the ids that nodes of Chakra traces wait for to numbers of tasks."""

from __future__ import annotations

from typing import Any

import numpy as np

from ridgeline._jit import kernel
from ridgeline.workload.execution import Ints


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
    """Replace the ids in `deps` by numbers of nodes; return the first id's place that is unknown.

    `order` sorts the ids within every file. Returns -1 if all are known.
    """
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
                return dep
            deps[dep] = order[a]
    return -1
