"""BSP matrix products: tiles with local memories, in bulk-synchronous supersteps.

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ridgeline.errors import RidgelineError
from ridgeline.workload.graph import Gemm


class EqualTiles(NamedTuple):
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
    least_s
        In which the operands pass the memories once, under the arithmetic.
    memory_byte_s, rest_s
        Seconds for one byte that tiles have received and read, all together; and of what is read or
        written besides.
    """

    number: int
    room_bytes: int
    flop_per_s: float
    granule: tuple[int, int, int]
    byte_s: float
    sync_s: float
    least_s: float = 0.0
    memory_byte_s: float = 0.0
    rest_s: float = 0.0

    def memory_s(self, received: Any) -> Any:
        """Seconds in which operands pass the memories; `received` bytes by all tiles."""
        return np.maximum(self.least_s, received * self.memory_byte_s + self.rest_s)


class ElementSizes(NamedTuple):
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
    least_s
        In which the operands pass the memories, under the arithmetic.
    """

    parts: tuple[int, int, int, int]
    turns: tuple[int, int, int]
    supersteps: int
    compute_s: float
    exchange_s: float
    sync_s: float
    received_bytes: float
    tile_bytes: float
    least_s: float = 0.0

    @property
    def time_s(self) -> float:
        """Of all supersteps: w + h g + l, which is what the op is reported to take."""
        return max(self.compute_s, self.least_s) + self.exchange_s + self.sync_s

    @property
    def tiles(self) -> int:
        """Tiles in use."""
        return math.prod(self.parts)


class _Counts(NamedTuple):
    """What ways to cut a product take: numbers of one way, or arrays of many.

    Attributes
    ----------
    supersteps, compute_s
        Of all supersteps.
    received, held
        Bytes that one tile receives, and that its memory holds at most.
    parts
        Tiles in use.
    """

    supersteps: Any
    compute_s: Any
    received: Any
    held: Any
    parts: Any

    def time_s(self, tiles: EqualTiles) -> Any:
        """Of all supersteps: w + h g + l."""
        busy_s = np.maximum(self.compute_s, tiles.memory_s(self.received * self.parts))
        return busy_s + self.received * tiles.byte_s + self.supersteps * tiles.sync_s


def planned(
    gemm: Gemm, parts: tuple[int, int, int, int], turns: tuple[int, int, int], sizes: ElementSizes,
    tiles: EqualTiles,
) -> TilePlan:  # fmt: skip
    """Count one way to cut a product."""
    counts = _counted(gemm, parts, turns, sizes, tiles)
    return TilePlan(
        parts=parts,
        turns=turns,
        supersteps=int(counts.supersteps),
        compute_s=float(counts.compute_s),
        exchange_s=float(counts.received) * tiles.byte_s,
        sync_s=int(counts.supersteps) * tiles.sync_s,
        received_bytes=float(counts.received) * math.prod(parts),
        tile_bytes=float(counts.held),
        least_s=float(tiles.memory_s(float(counts.received) * math.prod(parts))),
    )


def _counted(
    gemm: Gemm, parts: Sequence[Any], turns: Sequence[Any], sizes: ElementSizes, tiles: EqualTiles
) -> _Counts:
    """Count one way to cut a product, or many at once."""
    batch, m, n, k = map(_part, (gemm.batch, gemm.m, gemm.n, gemm.k), parts)
    (m_turns, n_turns, k_turns), k_parts = turns, parts[3]
    sub_m, sub_n, sub_k = (1.0 * _part(*both) for both in zip((m, n, k), turns, strict=True))
    rounds = batch * m_turns * n_turns
    compute = _padded_flops(batch, (m, n, k), turns, tiles) / tiles.flop_per_s
    # Every sub-block of the result needs its rows of A and its columns of B anew. If sums are not
    # cut, either the rows or the columns stay while the sub-blocks go through the others.
    a_once, b_once = 1.0 * batch * m * k * sizes.a, 1.0 * batch * k * n * sizes.b
    a_again, b_again = a_once * n_turns, b_once * m_turns
    rows_stay = a_once + b_again < a_again + b_once
    a_bytes = np.where((k_turns == 1) & rows_stay, a_once, a_again)
    b_bytes = np.where((k_turns == 1) & np.logical_not(rows_stay), b_once, b_again)
    # Where k is cut, the turns of a sub-block are over: its sums go to those that add them up.
    is_cut = k_parts > 1
    mine = np.ceil(sub_m * sub_n / k_parts)
    others = rounds * (k_parts - 1) * mine
    held = sub_m * sub_k * sizes.a + sub_k * sub_n * sizes.b + sub_m * sub_n * sizes.sum
    return _Counts(
        parts=parts[0] * parts[1] * parts[2] * parts[3],
        supersteps=rounds * (k_turns + is_cut),
        compute_s=compute + others / (tiles.flop_per_s / _MATRIX_TO_ADD),
        received=a_bytes + b_bytes + others * sizes.sum,
        held=np.maximum(held, is_cut * (sub_m * sub_n + (k_parts - 1) * mine) * sizes.sum),
    )


_MATRIX_TO_ADD = 16  # a matrix unit's FLOP for each addition outside of it, as on the IPU


def _part(size: Any, parts: Any) -> Any:
    """Length of the longest of so many parts."""
    return -(-size // parts)


def _padded_flops(batch: Any, block: Sequence[Any], turns: Sequence[Any], tiles: EqualTiles) -> Any:
    """FLOP of a block with each of its sub-blocks rounded up to the granule."""
    work = 2.0 * batch
    for size, count, granule in zip(block, turns, tiles.granule, strict=True):
        sub = _part(size, count)
        whole, rest = size // sub, size % sub
        work = work * (whole * _part(sub, granule) * granule + _part(rest, granule) * granule)
    return work


@lru_cache(maxsize=8192)
def best_plan(gemm: Gemm, sizes: ElementSizes, tiles: EqualTiles) -> TilePlan:
    """Find the fastest way to cut a product among tiles.

    All numbers of parts are looked at that differ in the length of the longest part. Arithmetic and
    exchange of a cut that is too large for the memory are not less than those without turns, so
    that what they take is a bound. A tile may idle: where a block needs turns, wider blocks on
    fewer tiles are looked at too, as their turns may come out rounder. More tiles or more memory
    therefore leave all plans of the smaller machine.

    Raises
    ------
    RidgelineError
        If a tile's memory does not hold one element of each operand.
    """
    if (needed := sizes.a + sizes.b + sizes.sum) > tiles.room_bytes:
        raise RidgelineError(
            f"a tile's memory of {tiles.room_bytes} bytes does not hold one element of each "
            f"operand: A takes {sizes.a:g}, B {sizes.b:g}, a sum {sizes.sum:g}, "
            f"{needed - tiles.room_bytes:g} bytes too many"
        )
    cuts = list(_cuts(gemm, tiles.number))
    counts = _counted(gemm, list(np.array(cuts, np.int64).T), (1, 1, 1), sizes, tiles)
    bounds_s = counts.time_s(tiles)
    best: TilePlan | None = None
    for i in np.argsort(bounds_s, kind="stable").tolist():
        if best is not None and bounds_s[i] >= best.time_s:
            break
        if counts.held[i] <= tiles.room_bytes:
            plan = planned(gemm, cuts[i], (1, 1, 1), sizes, tiles)
            if best is None or plan.time_s < best.time_s:
                best = plan
            continue
        b, m_parts, most, k_parts = cuts[i]
        fewer = reversed(_numbers(gemm.n, most)) if tiles.granule[1] > 1 else (most,)
        for n_parts in fewer:
            cut = b, m_parts, n_parts, k_parts
            least = planned(gemm, cut, (1, 1, 1), sizes, tiles)
            if best is not None and least.time_s >= best.time_s:
                break  # as fewer parts take at least as long
            turns = _turns(gemm, cut, sizes, tiles)
            if turns is not None:
                plan = planned(gemm, cut, turns, sizes, tiles)
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


def _turns(
    gemm: Gemm, parts: tuple[int, int, int, int], sizes: ElementSizes, tiles: EqualTiles
) -> tuple[int, int, int] | None:
    """Return in which turns a block is done the fastest: any halving of its results.

    Of the sum all numbers of pieces are looked at that differ in the longest one: fewer need not be
    faster, as each is rounded up to the granule. None if the partial sums of other tiles do not
    fit.
    """
    m, n, k = map(_part, (gemm.m, gemm.n, gemm.k), parts[1:])
    grid = np.meshgrid(_doublings(m), _doublings(n), indexing="ij")
    m_turns, n_turns = (axis.reshape(-1, 1) for axis in grid)
    k_turns = np.array(_numbers(k, k), np.int64)
    counts = _counted(gemm, parts, (m_turns, n_turns, k_turns), sizes, tiles)
    times_s = np.where(counts.held <= tiles.room_bytes, counts.time_s(tiles), np.inf)
    best, pieces = divmod(int(times_s.argmin()), len(k_turns))
    if not math.isfinite(times_s[best, pieces]):
        return None
    return int(m_turns[best, 0]), int(n_turns[best, 0]), int(k_turns[pieces])


def _doublings(size: int) -> list[int]:
    """1, 2, 4, ... and the size itself."""
    return [*(2**i for i in range(size.bit_length()) if 2**i < size), size]
