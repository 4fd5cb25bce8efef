"""Matrix products on a machine of tiles with local memories, in bulk-synchronous supersteps.

A superstep takes w + h g + l: the longest arithmetic of any tile, the most bytes h that one tile
receives at g seconds a byte, and a barrier of l seconds (L. Valiant, "A bridging model for parallel
computation", CACM 33(8), 1990). Nothing of it overlaps.

C[m, n] = A[m, k] B[k, n] is cut into parts along batch, m, n and k, one block for each tile. The
operands lie spread over all memories, so that a tile receives all of its blocks of A and B; one
that sends a word to many tiles sends it once. What does not fit into a tile's memory is worked off
in turns: sub-blocks of the result one after the other, and the sum in pieces, each a superstep.
Where k is cut among p tiles, each of them receives the p - 1 other partial sums of a p-th of the
block's results in one more superstep and adds them up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from ridgeline.errors import RidgelineError
from ridgeline.workload.graph import Gemm


class Tiles(NamedTuple):
    """Equal tiles.

    Attributes
    ----------
    number
        How many.
    room_bytes
        Of one tile, for operands and results.
    flop_per_s
        Of one tile.
    granule
        m, n and k of the product that is done at once; a tile's block is rounded up to it.
    byte_s
        g, seconds for one byte that a tile receives.
    sync_s
        l, of a barrier.
    """

    number: int
    room_bytes: int
    flop_per_s: float
    granule: tuple[int, int, int]
    byte_s: float
    sync_s: float


class Sizes(NamedTuple):
    """Bytes of one element: of A, B, results, and of the sums while they are added up."""

    a: float
    b: float
    c: float
    sum: float


@dataclass(frozen=True, slots=True)
class TilePlan:
    """How a product is cut, and what it takes.

    Attributes
    ----------
    parts
        Along batch, m, n and k; their product is the number of tiles in use.
    turns
        Sub-blocks along m, n and k that a tile works off one after the other.
    supersteps
        Barriers.
    compute_s, exchange_s, sync_s
        Of all supersteps.
    received_bytes
        By all tiles.
    tile_bytes
        That one tile's memory holds at most.
    """

    parts: tuple[int, int, int, int]
    turns: tuple[int, int, int]
    supersteps: int
    compute_s: float
    exchange_s: float
    sync_s: float
    received_bytes: float
    tile_bytes: float

    @property
    def time_s(self) -> float:
        """Of all supersteps: w + h g + l."""
        return self.compute_s + self.exchange_s + self.sync_s

    @property
    def tiles(self) -> int:
        """Tiles in use."""
        return math.prod(self.parts)


def planned(
    gemm: Gemm, parts: tuple[int, int, int, int], turns: tuple[int, int, int], sizes: Sizes,
    tiles: Tiles,
) -> TilePlan:  # fmt: skip
    """Count one way to cut a product."""
    batch, m, n, k = map(_part, (gemm.batch, gemm.m, gemm.n, gemm.k), parts)
    (m_turns, n_turns, k_turns), k_parts = turns, parts[3]
    sub_m, sub_n, sub_k = map(_part, (m, n, k), turns)
    rounds = batch * m_turns * n_turns
    compute = _padded_flops(batch, (m, n, k), turns, tiles) / tiles.flop_per_s
    # Every sub-block of the result needs its rows of A and its columns of B anew. If sums are not
    # cut, either the rows or the columns stay while the sub-blocks go through the others.
    a_bytes, b_bytes = batch * m * k * sizes.a, batch * k * n * sizes.b
    if k_turns > 1:
        a_bytes, b_bytes = a_bytes * n_turns, b_bytes * m_turns
    elif a_bytes + b_bytes * m_turns < a_bytes * n_turns + b_bytes:
        b_bytes *= m_turns
    else:
        a_bytes *= n_turns
    received = a_bytes + b_bytes
    supersteps = rounds * k_turns
    held = sub_m * sub_k * sizes.a + sub_k * sub_n * sizes.b + sub_m * sub_n * sizes.sum
    if k_parts > 1:
        # The turns of one sub-block are over: its sums go to those that add them up.
        mine = _part(sub_m * sub_n, k_parts)
        others = rounds * (k_parts - 1) * mine
        received += others * sizes.sum
        compute += others / (tiles.flop_per_s / _MATRIX_TO_ADD)
        supersteps += rounds
        held = max(held, (sub_m * sub_n + (k_parts - 1) * mine) * sizes.sum)
    return TilePlan(
        parts=parts,
        turns=turns,
        supersteps=supersteps,
        compute_s=compute,
        exchange_s=received * tiles.byte_s,
        sync_s=supersteps * tiles.sync_s,
        received_bytes=received * math.prod(parts),
        tile_bytes=held,
    )


_MATRIX_TO_ADD = 16  # a matrix unit's FLOP for each addition outside of it, as on the IPU


def _part(size: int, parts: int) -> int:
    """Length of the longest of so many parts."""
    return -(-size // parts)


def _padded_flops(
    batch: int, block: tuple[int, int, int], turns: tuple[int, int, int], tiles: Tiles
) -> float:
    """FLOP of a block with each of its sub-blocks rounded up to the granule."""
    work = 2.0 * batch
    for size, count, granule in zip(block, turns, tiles.granule, strict=True):
        sub = _part(size, count)
        whole, rest = divmod(size, sub)
        work *= whole * _part(sub, granule) * granule + _part(rest, granule) * granule
    return work


@lru_cache(maxsize=8192)
def best_plan(gemm: Gemm, sizes: Sizes, tiles: Tiles) -> TilePlan:
    """Find the fastest way to cut a product among tiles.

    All numbers of parts are looked at that differ in the length of the longest part, with the
    fewest turns that fit. Arithmetic and exchange of a cut that is too large for the memory are not
    less than those without turns, so that what they take is a bound.

    Raises
    ------
    RidgelineError
        If a tile's memory does not hold one element of each operand.
    """
    if sizes.a + sizes.b + sizes.sum > tiles.room_bytes:
        raise RidgelineError(
            f"a tile's memory of {tiles.room_bytes} bytes does not hold one element of each operand"
        )
    bounds = [planned(gemm, parts, (1, 1, 1), sizes, tiles) for parts in _cuts(gemm, tiles.number)]
    bounds.sort(key=lambda plan: plan.time_s)
    best: TilePlan | None = None
    for bound in bounds:
        if best is not None and bound.time_s >= best.time_s:
            break
        plan = bound
        if plan.tile_bytes > tiles.room_bytes:
            in_turns = _in_turns(gemm, plan.parts, sizes, tiles)
            if in_turns is None:
                continue
            plan = in_turns
        if best is None or plan.time_s < best.time_s:
            best = plan
    assert best is not None  # one tile can work off one element of each after the other
    return best


def _cuts(gemm: Gemm, count: int) -> Iterator[tuple[int, int, int, int]]:
    """Numbers of parts along batch, m, n and k; the largest that another one leaves room for."""
    for b in _numbers(gemm.batch, count):
        for p in _numbers(gemm.k, count // b):
            for i in _numbers(gemm.m, count // (b * p)):
                j = _numbers(gemm.n, count // (b * p * i))[-1]
                yield b, i, j, p


@lru_cache(maxsize=4096)
def _numbers(size: int, limit: int) -> list[int]:
    """Numbers of parts up to a limit that differ in the length of the longest part."""
    found = [1]
    while True:
        length = _part(size, found[-1])
        if length == 1:
            return found
        parts = _part(size, length - 1)
        if parts > limit:
            return found
        found.append(parts)


def _in_turns(
    gemm: Gemm, parts: tuple[int, int, int, int], sizes: Sizes, tiles: Tiles
) -> TilePlan | None:
    """Work a block off in the fewest turns of its sum, for each way to halve its results.

    None if the partial sums of other tiles do not fit.
    """
    block = tuple(map(_part, (gemm.m, gemm.n, gemm.k), parts[1:]))
    best: TilePlan | None = None
    for m_turns in _doublings(block[0]):
        for n_turns in _doublings(block[1]):
            turns = _sum_turns(gemm, parts, (m_turns, n_turns), block[2], sizes, tiles)
            if turns is None:
                continue
            plan = planned(gemm, parts, (m_turns, n_turns, turns), sizes, tiles)
            if best is None or plan.time_s < best.time_s:
                best = plan
    return best


def _doublings(size: int) -> list[int]:
    """1, 2, 4, ... and the size itself."""
    return [*(2**i for i in range(size.bit_length()) if 2**i < size), size]


def _sum_turns(
    gemm: Gemm, parts: tuple[int, int, int, int], outer: tuple[int, int], k: int, sizes: Sizes,
    tiles: Tiles,
) -> int | None:  # fmt: skip
    """Return the fewest pieces of the sum with which a sub-block fits, or None."""

    def fits(turns: int) -> bool:
        plan = planned(gemm, parts, (*outer, turns), sizes, tiles)
        return plan.tile_bytes <= tiles.room_bytes

    if not fits(k):
        return None
    low, high = 1, k  # `high` fits
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle + 1, high)
    return high
