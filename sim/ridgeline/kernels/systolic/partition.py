"""Several equal arrays at one product: which part of it each of them gets.

The batch, m and n can be split without any array waiting for another. Where the arrays are
connected, k can be split too; the partial sums of p arrays then meet in a ring reduce-scatter: in
each of p - 1 steps every array sends and adds a p-th of its results (Chan et al., "Collective
communication: theory, practice, and experience", 2007, section 4.2). All operands are taken to be
at hand in the buffers of every array.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import NamedTuple

from ridgeline.hardware.array import Dataflow
from ridgeline.kernels.systolic.closed_form import (
    CycleSpans,
    FoldSchedule,
    folds,
    layout,
    passes,
    spans,
)


class ArrayChain(NamedTuple):
    """The way from array to array: cycles to the next one, and words a cycle."""

    latency_cycles: int
    words_per_cycle: float


class Arrays(NamedTuple):
    """Equal arrays, the ways in which each can work, and what connects them, if anything does.

    With `multicast` what several arrays want is read once for all of them.
    """

    rows: int
    columns: int
    number: int
    schedules: tuple[FoldSchedule, ...]
    network: ArrayChain | None = None
    multicast: bool = False


@dataclass(frozen=True, slots=True)
class ArrayPartition:
    """How a product is divided among arrays.

    Attributes
    ----------
    batch_parts, m_parts, n_parts, k_parts
        Parts along each axis; their product is the number of arrays in use.
    cycles
        Of the array with the largest part, and of the reduction after it.
    reduction_cycles
        Of adding up partial sums, where k is split.
    a_passes, b_passes, c_passes
        How often the words of A and B are read for the arrays, and results or partial sums leave
        one.
    spent
        What the cycles before the reduction are spent on.
    """

    batch_parts: int
    m_parts: int
    n_parts: int
    k_parts: int
    dataflow: Dataflow
    cycles: int
    reduction_cycles: int
    a_passes: int
    b_passes: int
    c_passes: int
    spent: CycleSpans[int]

    @property
    def arrays(self) -> int:
        """Arrays in use."""
        return self.batch_parts * self.m_parts * self.n_parts * self.k_parts


@lru_cache(maxsize=4096)
def best_partition(m: int, n: int, k: int, batch: int, arrays: Arrays) -> ArrayPartition:
    """Find the fastest division of `batch` products C[m, n] = A[m, k] B[k, n] among equal arrays.

    All divisions into at most `arrays.number` parts are looked at, less those that another one
    divides further: a smaller part never takes longer. Among equals the one with the fewest arrays
    in use wins, then the first of `arrays.schedules`.
    """
    best: ArrayPartition | None = None
    for how in arrays.schedules:
        for division in splits(arrays.number, arrays.network is not None):
            macs = math.prod(map(folds, (batch, m, n, k), division))
            if best is not None and macs > best.cycles * arrays.rows * arrays.columns:
                continue  # not even with every cell busy
            found = divided(m, n, k, batch, division, how, arrays)
            if best is None or (found.cycles, found.arrays) < (best.cycles, best.arrays):
                best = found
    assert best is not None
    return best


def divided(
    m: int, n: int, k: int, batch: int, parts: Sequence[int], how: FoldSchedule, arrays: Arrays
) -> ArrayPartition:
    """Count the cycles of one division into at most `parts` along batch, m, n and k."""
    sizes = (batch, m, n, k)
    each_batch, each_m, each_n, each_k = map(folds, sizes, parts)
    b_parts, m_parts, n_parts, k_parts = map(folds, sizes, (each_batch, each_m, each_n, each_k))
    spent = spans(each_m, each_n, each_k, each_batch, arrays.rows, arrays.columns, how, max)
    reduction = 0
    if k_parts > 1:
        assert arrays.network is not None
        reduction = reduction_cycles(each_batch * each_m * each_n, k_parts, arrays.network)
    height, width, _ = layout(how.dataflow, each_m, each_n, each_k)
    a_passes, b_passes, c_passes = passes(
        how.dataflow, folds(height, arrays.rows), folds(width, arrays.columns)
    )
    return ArrayPartition(
        batch_parts=b_parts,
        m_parts=m_parts,
        n_parts=n_parts,
        k_parts=k_parts,
        dataflow=how.dataflow,
        cycles=spent.total() + reduction,
        reduction_cycles=reduction,
        a_passes=a_passes if arrays.multicast else n_parts * a_passes,
        b_passes=b_passes if arrays.multicast else m_parts * b_passes,
        c_passes=k_parts * c_passes,
        spent=spent,
    )


def reduction_cycles(words: int, parts: int, network: ArrayChain) -> int:
    """Count the cycles in which `parts` arrays add up `words` partial sums each, scattered."""
    each = folds(words, parts)
    return (parts - 1) * (network.latency_cycles + math.ceil(each / network.words_per_cycle))


@cache
def splits(count: int, with_k: bool) -> tuple[tuple[int, int, int, int], ...]:
    """List the divisions along (batch, m, n, k) of which no part can be divided further.

    Their product is at most `count`. Along k, where a further division costs more additions, every
    number of parts is listed.
    """
    return tuple(
        (b, i, j, p)
        for p in range(1, count + 1 if with_k else 2)
        for b in range(1, count // p + 1)
        for i in range(1, count // (p * b) + 1)
        for j in (count // (p * b * i),)
        if p * (b + 1) * i * j > count and p * b * (i + 1) * j > count
    )


@cache
def divisions(count: int, with_k: bool) -> tuple[tuple[int, int, int, int], ...]:
    """List all divisions along (batch, m, n, k), first those of `splits`.

    The others take no fewer cycles than one of these, but what enters several arrays is read less
    often.
    """
    first = splits(count, with_k)
    return first + tuple(
        parts
        for p in range(1, count + 1 if with_k else 2)
        for b in range(1, count // p + 1)
        for i in range(1, count // (p * b) + 1)
        for j in range(1, count // (p * b * i) + 1)
        if (parts := (b, i, j, p)) not in first
    )
