"""Binomial trees: the root has ⌈lg p⌉ children, and the number of informed ranks doubles.

Broadcast and reduce ⌈lg p⌉(α + Sβ); scatter and gather ⌈lg p⌉α + (p-1)/p Sβ for p = 2^k (Thakur,
Rabenseifner and Gropp, Int. J. High Perform. Comput. Appl. 19(1), 2005).
"""

from __future__ import annotations

import numpy as np

from ridgeline.network.algorithm import CollectiveGroup, algorithm
from ridgeline.network.message_schedule import (
    Column,
    MessageRounds,
    MessageSchedule,
    make_script,
    make_step,
)


def _outwards(n: int, *, parts: bool) -> list[MessageRounds]:
    """From the root to all: whole, or to each subtree its parts."""
    return [
        _hop(n, 1 << i, parts=parts, inwards=False, combine=False)
        for i in reversed(range((n - 1).bit_length()))
    ]


def _inwards(n: int, *, parts: bool, combine: bool) -> list[MessageRounds]:
    """From all to the root."""
    return [
        _hop(n, 1 << i, parts=parts, inwards=True, combine=combine)
        for i in range((n - 1).bit_length())
    ]


def _hop(n: int, mask: int, *, parts: bool, inwards: bool, combine: bool) -> MessageRounds:
    parent = np.arange(0, n - mask, 2 * mask)
    child = parent + mask
    first: Column = child if parts else 0
    count: Column = np.minimum(mask, n - child) if parts else 1
    source, target = (child, parent) if inwards else (parent, child)
    return make_step(source, target, first, count, span=n if parts else 1, combine=combine)


@algorithm("broadcast", "binomial-tree")
def broadcast_binomial(group: CollectiveGroup) -> MessageSchedule:
    """⌈lg p⌉(α + Sβ)."""
    return make_script(np.full(1, group.size_bytes), _outwards(group.n, parts=False))


@algorithm("reduce", "binomial-tree")
def reduce_binomial(group: CollectiveGroup) -> MessageSchedule:
    """⌈lg p⌉(α + Sβ)."""
    steps = _inwards(group.n, parts=False, combine=True)
    return make_script(np.full(1, group.size_bytes), steps)


@algorithm("all-reduce", "binomial-tree")
def all_reduce_binomial(group: CollectiveGroup) -> MessageSchedule:
    """Reduce, then broadcast: 2⌈lg p⌉(α + Sβ)."""
    steps = _inwards(group.n, parts=False, combine=True) + _outwards(group.n, parts=False)
    return make_script(np.full(1, group.size_bytes), steps)


@algorithm("barrier", "binomial-tree")
def barrier_binomial(group: CollectiveGroup) -> MessageSchedule:
    """Reduce and broadcast nothing: 2⌈lg p⌉α."""
    steps = _inwards(group.n, parts=False, combine=True) + _outwards(group.n, parts=False)
    return make_script(np.zeros(1), steps)


@algorithm("scatter", "binomial-tree")
def scatter_binomial(group: CollectiveGroup) -> MessageSchedule:
    """⌈lg p⌉ rounds, in which parts travel with those of their subtree."""
    return make_script(group.part_bytes, _outwards(group.n, parts=True), owner=np.arange(group.n))


@algorithm("gather", "binomial-tree")
def gather_binomial(group: CollectiveGroup) -> MessageSchedule:
    """See `scatter_binomial`."""
    steps = _inwards(group.n, parts=True, combine=False)
    return make_script(group.part_bytes, steps, owner=np.arange(group.n))


@algorithm("broadcast", "scatter-allgather")
def broadcast_scatter(group: CollectiveGroup) -> MessageSchedule:
    """Scatter, then gather round a ring: (⌈lg p⌉ + p - 1)α + 2(p-1)/p Sβ for p = 2^k.

    Barnett et al., Supercomputing '94 (van de Geijn's algorithm for long messages).
    """
    n = group.n
    position = np.arange(n)
    ring = make_step(position, (position + 1) % n, position, span=n, shift=-1, repeat=n - 1)
    return make_script(group.part_bytes, [*_outwards(n, parts=True), ring])
