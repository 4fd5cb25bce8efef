"""Queues of the executor as compiled functions on bare arrays.

A *list* is an array whose entry 0 is its length. A *heap* holds tasks, that with the least
(priority, number) first; many heaps lie side by side in one array. A *tournament* holds one time
for each leaf (infinity: none) and knows the least; a leaf can be moved at any moment, so nothing
stale is ever left in it.
"""

from __future__ import annotations

import math

import numpy as np

from ridgeline._jit import kernel_part
from ridgeline.engine.program import Floats, Indices
from ridgeline.engine.tables import Places

ZERO, ONE, TWO, THREE = np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(3)


def empty_list(capacity: int) -> Places:
    """Return an empty list for up to `capacity` items."""
    return np.zeros(capacity + 2, np.uint32)


@kernel_part
def append(items: Places, item: int) -> None:
    """Add an item to the end of a list."""
    items[0] += 1
    items[items[0]] = item


@kernel_part
def _precedes(task: int, other: int, priority: Indices) -> bool:
    if priority[task] != priority[other]:
        return bool(priority[task] < priority[other])
    return task < other


@kernel_part
def heap_push(heap: Places, base: int, size: int, task: int, priority: Indices) -> None:
    """Add a task to the heap of `size` tasks that begins at ``heap[base]``."""
    hole = size
    while hole > 0:
        parent = (hole - 1) >> 1
        if _precedes(heap[base + parent], task, priority):
            break
        heap[base + hole] = heap[base + parent]
        hole = parent
    heap[base + hole] = task


@kernel_part
def heap_pop(heap: Places, base: int, size: int, priority: Indices) -> None:
    """Remove the first task, ``heap[base]``, from a heap of `size` tasks."""
    last = heap[base + size - 1]
    hole = 0
    while True:
        child = 2 * hole + 1
        if child >= size - 1:
            break
        if child < size - 2 and _precedes(heap[base + child + 1], heap[base + child], priority):
            child += 1
        if _precedes(last, heap[base + child], priority):
            break
        heap[base + hole] = heap[base + child]
        hole = child
    heap[base + hole] = last


@kernel_part
def sink(levels: Floats, items: Places, size: int, hole: int) -> None:
    """Move an item down a heap of `size` items, the least level first, to where it belongs.

    After the last item there is an infinite level.
    """
    at, end = np.uint64(hole), np.uint64(size)
    level, item = levels[at], items[at]
    child = (at << ONE) + ONE
    while child < end:
        child += np.uint64(levels[child + ONE] < levels[child])  # no branch to be mispredicted
        if level <= levels[child]:
            break
        levels[at] = levels[child]
        items[at] = items[child]
        at = child
        child = (at << ONE) + ONE
    levels[at] = level
    items[at] = item


def tournament(leaves: int) -> Floats:
    """Return an empty tournament; entry 0 is its least time, infinity when there is none.

    Four meet at a time: the children of node i are nodes 4i + 1 to 4i + 4, the leaves come last.
    """
    nodes = 1
    while 3 * nodes + 1 < 4 * leaves:  # a tree of n nodes has (3n + 1) / 4 leaves
        nodes = 4 * nodes + 1
    return np.full(nodes, math.inf)


@kernel_part
def leaf_node(tree: Floats, leaf: int) -> int:
    """Return the number of a leaf's entry."""
    return (len(tree) >> 2) + leaf


@kernel_part
def _winner(tree: Floats, node: int) -> float:
    """Return the least time of a node's children."""
    child = (np.uint64(node) << TWO) + ONE
    left = min(tree[child], tree[child + ONE])
    right = min(tree[child + TWO], tree[child + THREE])
    return float(min(left, right))


@kernel_part
def set_time(tree: Floats, leaf: int, time: float) -> None:
    """Give a leaf its time; infinity removes it."""
    node = leaf_node(tree, leaf)
    tree[node] = time
    while node > 0:
        node = (node - 1) >> 2
        time = _winner(tree, node)
        if tree[node] == time:
            return  # nothing changes further up
        tree[node] = time


@kernel_part
def hold_again(tree: Floats) -> None:
    """Find all winners anew after times have been written to the leaves alone."""
    for node in range((len(tree) >> 2) - 1, -1, -1):
        tree[node] = _winner(tree, node)


@kernel_part
def first_leaf(tree: Floats) -> int:
    """Return the lowest leaf that has the least time; there must be one."""
    leaves = np.uint64(len(tree) >> 2)
    least = tree[0]
    node = ZERO
    while node < leaves:
        node = (node << TWO) + ONE
        # no branch to be mispredicted
        later = np.uint64(tree[node] != least)
        after = later & np.uint64(tree[node + ONE] != least)
        node += later + after + (after & np.uint64(tree[node + TWO] != least))
    return int(np.int64(node - leaves))
