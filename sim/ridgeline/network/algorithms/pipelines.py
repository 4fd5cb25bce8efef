"""Pipelines: the payload is cut into chunks that follow each other through a chain or a tree."""

from __future__ import annotations

import math

import numpy as np

from ridgeline.network.algorithm import CollectiveGroup, algorithm
from ridgeline.network.message_schedule import (
    Flags,
    Ints,
    MessageSchedule,
    make_script,
    make_step,
    pipelined,
)
from ridgeline.network.routed import round_cost

MAX_CHUNKS = 1024


@algorithm("broadcast", "chain")
def broadcast_chain(group: CollectiveGroup) -> MessageSchedule:
    """Pass k chunks along all ranks: (p-2+k)(α + Sβ/k), with k near √((p-2)Sβ/α)."""
    position = np.arange(group.n - 1)
    return _pipeline(group, position, position + 1, position, combine=False)


@algorithm("reduce", "chain")
def reduce_chain(group: CollectiveGroup) -> MessageSchedule:
    """As `broadcast_chain`, towards the root."""
    position = np.arange(group.n - 1)
    return _pipeline(group, position + 1, position, position[::-1], combine=True)


def _pipeline(
    group: CollectiveGroup, source: Ints, target: Ints, begin: Ints, *, combine: bool
) -> MessageSchedule:
    adds = np.full(len(source), combine)
    k = best_chunks(group, source, target, begin, group.size_bytes)
    steps = pipelined(source, target, begin, adds, k)
    return make_script(np.full(k, group.size_bytes / k), steps)


def best_chunks(
    group: CollectiveGroup, source: Ints, target: Ints, begin: Ints, size_bytes: float
) -> int:
    """Return the number of chunks k, at most `MAX_CHUNKS`, with the least (R - 1 + k)(α + L/k).

    R rounds are needed for one chunk; α is the latency of a round in which all edges are busy and
    L the time that it takes if they carry the whole payload.
    """
    script = make_script(np.full(1, size_bytes), [])
    step = make_step(source, target, 0, span=1)
    alpha, busy = round_cost(script, step, group.topology, group.vertex)
    rounds = int(begin.max())
    ideal = math.sqrt(rounds * busy / alpha) if alpha > 0 else math.inf
    if busy == 0 or ideal >= MAX_CHUNKS:
        return MAX_CHUNKS if busy > 0 and rounds else 1
    around = {max(1, math.floor(ideal)), max(1, math.ceil(ideal))}
    return min(around, key=lambda k: ((rounds + k) * (alpha + busy / k), k))


@algorithm("all-reduce", "double-binary-tree")
def all_reduce_double_tree(group: CollectiveGroup) -> MessageSchedule:
    """Reduce up and broadcast down two trees, half of the payload on each, in chunks.

    Sanders, Speck and Träff, Parallel Computing 35(12), 2009. Who is inside one tree is a leaf of
    the other, so that everyone sends and receives twice the payload: about 2Sβ + 4 lg p α and what
    the pipelines need to fill.
    """
    n = group.n
    parent = _tree(n)
    other = np.arange(n)[::-1] if n % 2 == 0 else (np.arange(n) + 1) % n
    edges = [_edges(parent, name) for name in (np.arange(n), other)]
    source, target, begin = (np.concatenate([edge[i] for edge in edges]) for i in range(3))
    adds: Flags = np.concatenate([edge[3] for edge in edges])
    k = best_chunks(group, source, target, begin, group.size_bytes / 2)
    base = np.repeat([0, k], len(source) // 2)
    steps = pipelined(source, target, begin, adds, k, base)
    return make_script(np.full(2 * k, group.size_bytes / (2 * k)), steps)


def double_tree_sent(n: int) -> float:
    """Return how often the member that sends most sends the payload in a double binary tree.

    Half of the payload goes up and down each of two trees, the second of them mirrored or shifted.
    """
    parent = _tree(n)
    sent = 0.5 * (np.bincount(parent[parent >= 0], minlength=n) + (parent >= 0))
    other = sent[::-1] if n % 2 == 0 else np.roll(sent, 1)
    return float((sent + other).max())


def _tree(n: int) -> Ints:
    """[n] parents, -1 for the root, in the tree whose in-order numbers are 0 ... n-1.

    Of the numbers counted from 1, the one that the highest power of two divides is on top; odd ones
    are leaves.
    """
    parent = np.full(n, -1, np.int64)
    open_ = [(1, n, -1)]
    while open_:
        low, high, above = open_.pop()
        if low > high:
            continue
        bit = 1 << (((low - 1) ^ high).bit_length() - 1)
        top = high & ~(bit - 1)
        parent[top - 1] = above
        open_ += [(low, top - 1, top - 1), (top + 1, high, top - 1)]
    return parent


def _edges(parent: Ints, name: Ints) -> tuple[Ints, Ints, Ints, Flags]:
    """Source, target, first round and whether to add, of all edges up and then down a tree."""
    depth = np.zeros(len(parent), np.int64)
    above = parent
    while (above >= 0).any():
        depth += above >= 0
        above = np.where(above >= 0, parent[above], -1)
    child = np.flatnonzero(parent >= 0)
    top = parent[child]
    height = int(depth.max())
    source = np.concatenate((name[child], name[top]))
    target = np.concatenate((name[top], name[child]))
    begin = np.concatenate((height - depth[child], height + depth[top]))
    return source, target, begin, np.repeat([True, False], len(child))
