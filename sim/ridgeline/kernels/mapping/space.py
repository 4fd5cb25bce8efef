"""All combinations of tilings that fit, with bounds of their time.

A combination is bounded from below by

    time >= max(first load + least computing + stalls + last store, bytes moved / bandwidth)

where the bytes follow in closed form from which loop is innermost. They, and what fits, are
products of one factor for each axis (`TilingSpace.factors`). While the innermost loop turns, tiles
are computed and others moved: what moving them takes longer is stalls. `time_bounds` has the
bounds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ridgeline._jit import kernel_call, kernel_inside, kernel_part
from ridgeline.kernels.mapping.footprint import Floats, Ints
from ridgeline.kernels.mapping.mapping import FAR
from ridgeline.kernels.mapping.pipeline import HAS, A, B, BufferLevel, C, K, M, N, Shape
from ridgeline.kernels.mapping.tilings import (
    FIRST_POINTS,
    FIRST_TOUCHED,
    LAST_NEW,
    LAST_POINTS,
    MAX_POINTS,
    MAX_TOUCHED,
    SUM_FIELDS,
    SUM_POINTS,
    SUM_TOUCHED,
    TILES,
    TILING_FIELDS,
    WHOLE_NEW,
    tilings,
)

# Columns of the factors of a tiling, each for a, b and c: elements of the largest tile, of all
# tiles, of the first one (of c: new ones of the last), and of all but the first (of c: at least, of
# all but the first and the last); and new elements of all of c.
LARGEST, ALL, END, INNER = 0, 3, 6, 9
NEW_OF_C = 12
FACTOR_FIELDS = 13


class TilingSpace(NamedTuple):
    """All combinations of tilings.

    Attributes
    ----------
    starts, table, sums
        Tilings, as `listed` gives them.
    bits
        [axis], of a number for each of them.
    factors
        [tilings, FACTOR_FIELDS], what each contributes to the elements of an operand.
    """

    starts: Ints
    bits: Ints
    table: Ints
    sums: Floats
    factors: Floats


PASSING = -1.0
"""Stands for `Bounded.between` where operands pass the buffers by."""


class Bounded(NamedTuple):
    """Combinations that fit, each as often as it has axes that may be the innermost loop.

    Attributes
    ----------
    names
        The numbers of the tilings of the four axes beside each other, `TilingSpace.bits` each, the
        last one lowest; below them two bits for the axis (m, n, k) of the innermost loop.
    ends_s
        First load and last store, at least.
    moved
        Bytes behind the buffers.
    turning, between
        Those of them, at least, that move while the innermost loop turns, and between such loops.
        Or those that pass the buffers by, and `PASSING`.
    bounds
        Seconds, or joules.
    """

    names: Ints
    ends_s: Floats
    moved: Floats
    turning: Floats
    between: Floats
    bounds: Floats


@kernel_inside
def listed(axes: Ints, density: int) -> tuple[Ints, Ints, Floats]:
    """List the tilings of all axes in one table; `starts` tells where those of each axis begin."""
    each = [tilings(axes[axis], density) for axis in range(4)]
    starts = np.zeros(5, np.int64)
    for axis in range(4):
        starts[axis + 1] = starts[axis] + len(each[axis][0])
    table = np.empty((starts[4], TILING_FIELDS), np.int64)
    sums = np.empty((starts[4], SUM_FIELDS))
    for axis in range(4):  # concatenating would take seconds to compile
        of_table, of_sums = each[axis]
        for i in range(len(of_table)):
            for field in range(TILING_FIELDS):
                table[starts[axis] + i, field] = of_table[i, field]
            for field in range(SUM_FIELDS):
                sums[starts[axis] + i, field] = of_sums[i, field]
    return starts, table, sums


@kernel_inside
def space_of(
    starts: Ints, table: Ints, sums: Floats, shape: Shape
) -> tuple[TilingSpace, Bounded]:  # fmt: skip
    """Make room for all combinations of the tilings that `listed` gives."""
    bits, factors = np.zeros(4, np.int64), np.empty((len(table), FACTOR_FIELDS))
    factors[:], most = 1.0, 3
    for axis in range(4):
        n = starts[axis + 1] - starts[axis]
        most *= n
        while 1 << bits[axis] < n:
            bits[axis] += 1
        for i in range(starts[axis], starts[axis + 1]):
            _factors(axis, sums[i], shape, factors[i])
    room = Bounded(
        np.empty(most, np.int64), np.empty(most), np.empty(most), np.empty(most), np.empty(most),
        np.empty(most),
    )  # fmt: skip
    return TilingSpace(starts, bits, table, sums, factors), room


@kernel_call
def _factors(axis: int, sums: Floats, shape: Shape, factors: Floats) -> None:
    for operand in range(3):
        if not HAS[operand, axis]:
            continue
        touched = shape.touches[operand, axis] > 0
        factors[LARGEST + operand] = sums[MAX_TOUCHED if touched else MAX_POINTS]
        factors[ALL + operand] = sums[SUM_TOUCHED if touched else SUM_POINTS]
        if operand < C:
            factors[END + operand] = sums[FIRST_TOUCHED if touched else FIRST_POINTS]
            factors[INNER + operand] = factors[ALL + operand] - factors[END + operand]
        else:
            factors[INNER + C] = max(0.0, factors[ALL + C] - 2.0 * factors[LARGEST + C])
            factors[END + C] = sums[LAST_NEW if touched else LAST_POINTS]
            factors[NEW_OF_C] = sums[WHOLE_NEW if touched else SUM_POINTS]


@kernel_call
def _size(
    operand: int, kind: int, chosen: tuple[int, int, int], factors: Floats, shape: Shape
) -> float:
    """Elements of an operand: its factors along the three axes that it has."""
    product = shape.elements[operand]
    for i in range(3):
        product *= factors[chosen[i], kind]
    return float(product)


@kernel_part
def _inner(operand: int, i: int, factors: Floats) -> float:
    """Share of the elements along an axis that are not of the first tile (nor the last, of c)."""
    if factors[i, ALL + operand] == 0.0:  # padding alone
        return 0.0
    return float(factors[i, INNER + operand] / factors[i, ALL + operand])


@kernel_part
def _room(size: float, changes: bool, level: BufferLevel, operand: int) -> float:
    """Bytes that the buffers of an operand take, two if it changes; inf if they do not fit."""
    if level.ports.of[operand] == FAR:
        return 0.0
    room = size * 2.0 if changes and level.double else size
    return room if room <= level.capacity[operand] else np.inf


@kernel_part
def _fits(room_a: float, room_b: float, room_c: float, level: BufferLevel) -> bool:
    """Tell whether operands that share a buffer fit into it together."""
    fits = True
    for port in range(FAR):
        room = room_a if level.ports.of[A] == port else 0.0
        room += room_b if level.ports.of[B] == port else 0.0
        room += room_c if level.ports.of[C] == port else 0.0
        fits = fits and room <= level.capacity[3 + port]
    return fits


@kernel_call
def list_fitting(  # noqa: PLR0915 - one loop with much state
    space: TilingSpace, shape: Shape, level: BufferLevel, room: Bounded
) -> int:
    """Write all combinations that fit, and what they move; return how many.

    Bounds are not written.
    """
    starts, table, factors, bits = space.starts, space.table, space.factors, space.bits
    names, ends_s, moved = room.names, room.ends_s, room.moved
    turning, between = room.turning, room.between
    width_a, width_b, width_c, width_sum = shape.width
    # What passes the buffers by is read, and sums are written, once in every tile at least. Such
    # bytes count as if they took the way through the buffers, if that is slower as fewer of them.
    past_a, past_b, past_c = (
        level.ports.of[A] == FAR, level.ports.of[B] == FAR, level.ports.of[C] == FAR,
    )  # fmt: skip
    past = 1.0
    if level.byte_s > 0.0:
        past = min(1.0, level.ports.byte_s[FAR] / level.byte_s)
    moves_a, moves_b, moves_c = 1.0 - level.held[A], 1.0 - level.held[B], 1.0 - level.held[C]
    count = 0
    for b in range(starts[0], starts[1]):
        for m in range(starts[1], starts[2]):
            for n in range(starts[2], starts[3]):
                of_c = (b, m, n)
                many = table[b, TILES] > 1
                many_m, many_n = table[m, TILES] > 1, table[n, TILES] > 1
                room_c = _room(
                    _size(C, LARGEST + C, of_c, factors, shape) * width_sum,
                    many or many_m or many_n, level, C,
                )  # fmt: skip
                if not _fits(0.0, 0.0, room_c, level):
                    continue
                name = ((b - starts[0]) << bits[M] | m - starts[1]) << bits[N] | n - starts[2]
                name <<= bits[K]
                new = _size(C, NEW_OF_C, of_c, factors, shape)
                saved = 0.0 if shape.begun else new * width_sum  # nothing to be read yet
                if shape.ended:  # and results instead of sums to be written
                    saved += new * (width_sum - width_c)
                c_words, saved = moves_c * _size(C, ALL + C, of_c, factors, shape), moves_c * saved
                c_once = c_words * 2.0 * width_sum - saved
                c_stored = c_words * width_sum
                if shape.ended:
                    c_stored -= moves_c * new * (width_sum - width_c)
                c_largest = moves_c * _size(C, LARGEST + C, of_c, factors, shape)
                c_largest *= max(width_c, width_sum)
                c_ends = min(width_c, width_sum) if shape.ended else width_sum
                c_ends += width_sum if shape.begun else 0.0
                last = _size(C, END + C, of_c, factors, shape) * min(width_c, width_sum)
                last = 0.0 if past_c else moves_c * last
                inner_a_m, inner_c_m = _inner(A, m, factors), _inner(C, m, factors)
                inner_b_n, inner_c_n = _inner(B, n, factors), _inner(C, n, factors)
                for k in range(starts[3], starts[4]):
                    of_a, of_b, many_k = (b, m, k), (b, n, k), table[k, TILES] > 1
                    room_a = _room(
                        _size(A, LARGEST + A, of_a, factors, shape) * width_a,
                        many or many_m or many_k, level, A,
                    )  # fmt: skip
                    room_b = _room(
                        _size(B, LARGEST + B, of_b, factors, shape) * width_b,
                        many or many_n or many_k, level, B,
                    )  # fmt: skip
                    if not _fits(room_a, room_b, room_c, level):
                        continue
                    first = 0.0
                    if not past_a:
                        first += moves_a * _size(A, END + A, of_a, factors, shape) * width_a
                    if not past_b:
                        first += moves_b * _size(B, END + B, of_b, factors, shape) * width_b
                    # A tile that touches padding alone moves nothing, and waits for nothing.
                    accesses = (1 if first > 0 else 0) + (1 if last > 0 else 0)
                    ends = (first + last) * level.byte_s + accesses * level.latency_s
                    a_once = moves_a * _size(A, ALL + A, of_a, factors, shape) * width_a
                    b_once = moves_b * _size(B, ALL + B, of_b, factors, shape) * width_b
                    a_again, b_again = a_once * table[n, TILES], b_once * table[m, TILES]
                    c_again = (c_once + saved) * table[k, TILES] - saved
                    c_turning = c_words * (c_ends + 2.0 * (table[k, TILES] - 1) * width_sum)
                    if past_a or past_b or past_c:
                        for innermost in range(M, K + 1):
                            turns = (many_m, many_n, many_k or not (many_m or many_n))
                            if not turns[innermost - 1]:
                                continue
                            passing = a_again * past if past_a else 0.0
                            passing += b_again * past if past_b else 0.0
                            passing += c_again * past if past_c else 0.0
                            bytes_ = 0.0 if past_a else a_once if innermost == N else a_again
                            bytes_ += 0.0 if past_b else b_once if innermost == M else b_again
                            bytes_ += 0.0 if past_c else c_once if innermost == K else c_again
                            names[count] = (name | k - starts[3]) << 2 | innermost - 1
                            ends_s[count], moved[count] = ends, bytes_ + passing
                            turning[count], between[count] = passing, PASSING
                            count += 1
                        continue
                    for innermost in range(M, K + 1):
                        if innermost == M:
                            if not many_m:
                                continue
                            bytes_ = a_again + b_once + c_again
                            during = a_again * inner_a_m + c_turning * inner_c_m
                            rest = bytes_ - a_again * inner_a_m - c_turning
                        elif innermost == N:
                            if not many_n:
                                continue
                            bytes_ = a_once + b_again + c_again
                            during = b_again * inner_b_n + c_turning * inner_c_n
                            rest = bytes_ - b_again * inner_b_n - c_turning
                        else:  # a loop of one turn is innermost only where all are
                            if not many_k and (many_m or many_n):
                                continue
                            bytes_ = a_again + b_again + c_once
                            during = a_again * _inner(A, k, factors)
                            during += b_again * _inner(B, k, factors)
                            # A sum goes out while the first part of the next one is computed, the
                            # last one of all at the end.
                            during += max(0.0, c_stored - c_largest)
                            rest = bytes_ - during - min(c_stored, c_largest) + last
                        names[count] = (name | k - starts[3]) << 2 | innermost - 1
                        ends_s[count], moved[count], turning[count] = ends, bytes_, during
                        between[count] = rest - first - last
                        count += 1
    return count


@kernel_part
def named(name: int, space: TilingSpace, chosen: Ints) -> None:
    """Write the tilings of a combination; see `Bounded.names`."""
    name >>= 2
    for axis in range(3, -1, -1):
        chosen[axis] = space.starts[axis] + (name & (1 << space.bits[axis]) - 1)
        name >>= space.bits[axis]
