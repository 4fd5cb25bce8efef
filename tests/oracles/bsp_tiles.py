"""Tiles that exchange blocks of operands superstep by superstep and multiply them, set by set.

Every tile has a set of the words that it holds; what it needs for its next multiplication and does
not hold, it receives. A superstep lasts as long as the tile with the most multiplications, plus the
tile that receives most, plus a barrier.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from ridgeline.kernels.bsp_gemm import ElementSizes, EqualTiles, TilePlan

Ints = NDArray[np.int64]


def cuts(size: int, parts: int) -> list[range]:
    """Cut a range into parts of the longest part's length; the last ones are shorter or empty."""
    length = -(-size // parts)
    return [range(i, min(i + length, size)) for i in range(0, length * parts, length)]


def play(
    a: Ints, b: Ints, plan: TilePlan, sizes: ElementSizes, tiles: EqualTiles
) -> tuple[Ints, float, float, int]:
    """Return the product, seconds of arithmetic and of exchange, and the number of supersteps."""
    (m, k), n = a.shape, b.shape[1]
    _, m_parts, n_parts, k_parts = plan.parts
    owners = list(itertools.product(cuts(m, m_parts), cuts(n, n_parts), cuts(k, k_parts)))
    sums = [np.zeros((m, n), np.int64) for _ in owners]
    c = np.zeros((m, n), np.int64)
    compute_s = exchange_s = 0.0
    steps = 0
    rounds = list(itertools.product(*(range(turns) for turns in plan.turns[:2])))
    if not _rows_stay(plan, sizes, (m, n, k)):  # the columns of B stay, rows of A come and go
        rounds.sort(key=lambda turn: turn[::-1])
    held_a: list[set[tuple[int, int]]] = [set() for _ in owners]
    held_b: list[set[tuple[int, int]]] = [set() for _ in owners]
    for m_turn, n_turn in rounds:
        for k_turn in range(plan.turns[2]):
            work = received = 0.0
            for tile, (rows, columns, terms) in enumerate(owners):
                i, j, p = (
                    _turn(part, turn, turns)
                    for part, turn, turns in zip(
                        (rows, columns, terms), (m_turn, n_turn, k_turn), plan.turns, strict=True
                    )
                )
                need_a, need_b = set(itertools.product(i, p)), set(itertools.product(p, j))
                received = max(
                    received,
                    sizes.a * len(need_a - held_a[tile]) + sizes.b * len(need_b - held_b[tile]),
                )
                held_a[tile], held_b[tile] = need_a, need_b
                full = [
                    -(-len(part) // granule) * granule
                    for part, granule in zip((i, j, p), tiles.granule, strict=True)
                ]
                work = max(work, 2.0 * np.prod(full))
                if i and j and p:
                    block = a[np.ix_(i, p)] @ b[np.ix_(p, j)]
                    sums[tile][np.ix_(i, j)] += block
            compute_s += work / tiles.flop_per_s
            exchange_s += received * tiles.byte_s
            steps += 1
    for total in sums:
        c += total
    return c, compute_s, exchange_s, steps


def _rows_stay(plan: TilePlan, sizes: ElementSizes, shape: tuple[int, int, int]) -> bool:
    _, m_parts, n_parts, k_parts = plan.parts
    m, n, k = (-(-x // p) for x, p in zip(shape, (m_parts, n_parts, k_parts), strict=True))
    a, b = m * k * sizes.a, k * n * sizes.b
    return a + b * plan.turns[0] < a * plan.turns[1] + b


def _turn(part: range, turn: int, turns: int) -> range:
    at = cuts(len(part), turns)[turn]
    return part[at.start : at.stop] if at else range(0)
