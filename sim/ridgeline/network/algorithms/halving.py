"""Recursive halving and doubling: partners at distances that are powers of two.

With p = 2^k ranks: reduce-scatter and all-gather kα + (p-1)/p Sβ; all-reduce of both, or, by
doubling alone, k(α + Sβ) (Thakur, Rabenseifner and Gropp, Int. J. High Perform. Comput. Appl.
19(1), 2005). Otherwise m = 2^⌊lg p⌋ ranks do this, and each of the p - m others first hands its
data to a neighbour and gets the result from it at the end.
"""

from __future__ import annotations

import numpy as np

from ridgeline.network.algorithm import CollectiveGroup, algorithm
from ridgeline.network.message_schedule import (
    Column,
    Ints,
    MessageRounds,
    MessageSchedule,
    make_script,
    make_step,
)


class _Core:
    """The ranks that take part, m of p: of the first 2(p-m) positions the even ones, then all.

    Part j is what core member j keeps: slots ``start[j]:start[j + 1]``.
    """

    def __init__(self, n: int, start: Ints | None = None) -> None:
        self.m = 1 << (n.bit_length() - 1)
        self.pairs = np.arange(n - self.m)  # positions 2i + 1 hand over to 2i
        self.position = np.concatenate((2 * self.pairs, np.arange(2 * (n - self.m), n)))
        self.start = np.append(self.position, n) if start is None else start
        self.slots = int(self.start[-1])

    def halving(self) -> list[MessageRounds]:
        """Leave core member j the sum of part j."""
        masks = [1 << i for i in reversed(range(self.m.bit_length() - 1))]
        return [self._exchange(mask, np.arange(self.m) ^ mask, combine=True) for mask in masks]

    def doubling(self) -> list[MessageRounds]:
        """Give all core members all parts."""
        masks = [1 << i for i in range(self.m.bit_length() - 1)]
        return [self._exchange(mask, np.arange(self.m), combine=False) for mask in masks]

    def _exchange(self, mask: int, part: Ints, *, combine: bool) -> MessageRounds:
        member = np.arange(self.m)
        low = part & ~(mask - 1)
        first = self.start[low]
        return self.step(
            self.position, self.position[member ^ mask], first, self.start[low + mask] - first,
            combine=combine,
        )  # fmt: skip

    def hand_over(self, first: Column, count: Column, *, combine: bool) -> MessageRounds:
        """Positions 2i + 1 send slots to 2i."""
        return self.step(2 * self.pairs + 1, 2 * self.pairs, first, count, combine=combine)

    def hand_back(self, first: Column, count: Column) -> MessageRounds:
        """Positions 2i send slots to 2i + 1."""
        return self.step(2 * self.pairs, 2 * self.pairs + 1, first, count, combine=False)

    def step(
        self, source: Ints, target: Ints, first: Column, count: Column, *, combine: bool
    ) -> MessageRounds:
        return make_step(source, target, first, count, span=self.slots, combine=combine)


def _equal_parts(group: CollectiveGroup) -> tuple[_Core, MessageSchedule]:
    """Return a core whose members each keep an m-th of the payload, and a script without steps."""
    m = 1 << (group.n.bit_length() - 1)
    core = _Core(group.n, np.arange(m + 1))
    return core, make_script(np.full(m, group.size_bytes / m), [])


def _with(script: MessageSchedule, steps: list[MessageRounds]) -> MessageSchedule:
    return make_script(script.slot_bytes, steps)


@algorithm("all-reduce", "halving-doubling")
def all_reduce_halving(group: CollectiveGroup) -> MessageSchedule:
    """Halve and double: 2 lg p α + 2(p-1)/p Sβ; if p is no power of two, 2(α + Sβ) more."""
    core, script = _equal_parts(group)
    m = core.slots
    fold, unfold = core.hand_over(0, m, combine=True), core.hand_back(0, m)
    return _with(script, [fold, *core.halving(), *core.doubling(), unfold])


@algorithm("all-reduce", "rabenseifner")
def all_reduce_rabenseifner(group: CollectiveGroup) -> MessageSchedule:
    """As halving-doubling, but the two of a pair share the work of adding up their data.

    Each sends the other one half, adds, and the half of the one that drops out is sent after it:
    2α + Sβ instead of α + Sβ, and half the arithmetic (Rabenseifner, ICCS 2004).
    """
    core, script = _equal_parts(group)
    half = core.slots // 2
    odd = 2 * core.pairs + 1
    swap = core.step(
        np.concatenate((odd - 1, odd)),
        np.concatenate((odd, odd - 1)),
        np.repeat([half, 0], len(odd)),
        half,
        combine=True,
    )
    fold = [swap, core.hand_over(half, half, combine=False)]
    unfold = core.hand_back(0, core.slots)
    return _with(script, [*fold, *core.halving(), *core.doubling(), unfold])


@algorithm("all-reduce", "recursive-doubling")
def all_reduce_doubling(group: CollectiveGroup) -> MessageSchedule:
    """Exchange and add whole buffers: lg p (α + Sβ); if p is no power of two, 2(α + Sβ) more."""
    core = _Core(group.n, np.zeros(2, np.int64))
    core.slots = 1
    member = np.arange(core.m)
    rounds = [
        core.step(core.position, core.position[member ^ (1 << i)], 0, 1, combine=True)
        for i in range(core.m.bit_length() - 1)
    ]
    steps = [core.hand_over(0, 1, combine=True), *rounds, core.hand_back(0, 1)]
    return make_script(np.full(1, group.size_bytes), steps)


@algorithm("reduce-scatter", "halving-doubling")
def reduce_scatter_halving(group: CollectiveGroup) -> MessageSchedule:
    """Recursive halving: lg p α + (p-1)/p Sβ."""
    core = _Core(group.n)
    fold = core.hand_over(0, group.n, combine=True)
    unfold = core.hand_back(2 * core.pairs + 1, 1)
    steps = [fold, *core.halving(), unfold]
    return make_script(group.part_bytes, steps, owner=np.arange(group.n))


@algorithm("all-gather", "halving-doubling")
def all_gather_doubling(group: CollectiveGroup) -> MessageSchedule:
    """Recursive doubling: lg p α + (p-1)/p Sβ."""
    core = _Core(group.n)
    fold = core.hand_over(2 * core.pairs + 1, 1, combine=False)
    unfold = core.hand_back(0, group.n)
    steps = [fold, *core.doubling(), unfold]
    return make_script(group.part_bytes, steps, owner=np.arange(group.n))
