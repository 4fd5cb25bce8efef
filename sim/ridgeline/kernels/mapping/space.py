"""All combinations of tilings that fit, with bounds of their time.

A combination is bounded from below by

    time >= max(first load + least computing + last store, bytes moved / bandwidth)

where the bytes follow in closed form from which loop is innermost. With nearer levels of buffers
what these need for the tiles bounds the computing too.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ridgeline._jit import kernel, kernel_call, kernel_part
from ridgeline.kernels.mapping.choices import (
    FIRST_POINTS,
    FIRST_TOUCHED,
    LAST_NEW,
    LAST_POINTS,
    MAX_POINTS,
    MAX_TOUCHED,
    SUM_POINTS,
    SUM_TOUCHED,
    TILES,
    WHOLE_NEW,
    tilings,
)
from ridgeline.kernels.mapping.compute import Engine, least_s, write_turns
from ridgeline.kernels.mapping.footprint import Floats, Ints
from ridgeline.kernels.mapping.pipeline import HAS, A, B, C, K, Level, M, N, Shape


class Space(NamedTuple):
    """All combinations of tilings, and room to work in.

    Attributes
    ----------
    starts, table, sums
        Tilings, as `listed` gives them.
    n
        [axis], how many there are.
    turns
        [tilings, 4], see `compute.write_turns`.
    factors
        [tilings, FACTORS], see the columns below.
    chosen
        [axis], for a combination.
    """

    starts: Ints
    n: Ints
    table: Ints
    sums: Floats
    turns: Floats
    factors: Floats
    chosen: Ints


@kernel
def listed(axes: Ints, density: int) -> tuple[Ints, Ints, Floats]:
    """List the tilings of all axes in one table; `starts` tells where those of each axis begin."""
    starts = np.zeros(5, np.int64)
    table0, sums0 = tilings(axes[0], density)
    table1, sums1 = tilings(axes[1], density)
    table2, sums2 = tilings(axes[2], density)
    table3, sums3 = tilings(axes[3], density)
    starts[1:] = len(table0), len(table1), len(table2), len(table3)
    return (
        np.cumsum(starts),
        np.concatenate((table0, table1, table2, table3)),
        np.concatenate((sums0, sums1, sums2, sums3)),
    )


# Columns of a tiling's factors, three for each operand: of the largest tile, of all tiles, and of
# the first tile (of a result's last one: what is in no other); then of all elements of the result.
MOST, ALL, END = range(3)
WHOLE = 9
FACTORS = 10


@kernel_call
def _write_factors(space: Space, shape: Shape) -> None:
    """Write what a tiling contributes to products over the axes; 1 where an operand has not it."""
    starts, sums, factors = space.starts, space.sums, space.factors
    factors[:] = 1.0
    for axis in range(4):
        for i in range(starts[axis], starts[axis + 1]):
            for operand in range(3):
                if not HAS[operand, axis]:
                    continue
                touched, at = shape.touches[operand, axis], 3 * operand
                factors[i, at + MOST] = sums[i, MAX_TOUCHED if touched else MAX_POINTS]
                factors[i, at + ALL] = sums[i, SUM_TOUCHED if touched else SUM_POINTS]
                if operand == C:
                    factors[i, at + END] = sums[i, LAST_NEW if touched else LAST_POINTS]
                    factors[i, WHOLE] = sums[i, WHOLE_NEW if touched else SUM_POINTS]
                else:
                    factors[i, at + END] = sums[i, FIRST_TOUCHED if touched else FIRST_POINTS]


@kernel_part
def _product(
    size: float, column: int, first: int, second: int, third: int, factors: Floats
) -> float:
    """Multiply by what three tilings contribute."""
    return size * factors[first, column] * factors[second, column] * factors[third, column]


@kernel_call
def nearer_s(
    chosen: Ints, sums: Floats, moved: float, new: float, shape: Shape, nearer: Floats
) -> float:
    """Seconds that nearer buffers need at least for what all tiles move.

    Every tile passes a nearer level once at least. Of matrix products more is known: tiles of
    extents m, n, k there, with c in place while k passes, have m n s <= S, where s is the width of
    a sum, doubled if c changes and so has two buffers, and S is the capacity. Then a tile of M, N,
    K moves at least M N K (a / n + b / m) >= 2 M N K sqrt(a b s / S) bytes of elements of a and b
    bytes; where another operand stays in place it is more, sums being written and read.

    Parameters
    ----------
    moved, new
        Bytes of the tiles, and elements of the result.
    nearer
        [levels, 3], seconds per byte, capacity, 1 if buffers are double.
    """
    least = 0.0
    product = True
    for operand in range(3):
        product = product and shape.elements[operand] == 1.0
        for axis in range(4):
            product = product and shape.touches[operand, axis] == 0
    for i in range(len(nearer)):
        byte_s, capacity = nearer[i, 0], nearer[i, 1]
        bytes_ = moved
        if product:
            macs, copies = 1.0, 2.0
            for axis in range(4):
                macs *= sums[chosen[axis], SUM_POINTS]
            for operand in range(3):
                size = shape.width[3 if operand == C else operand]
                for axis in range(4):
                    if HAS[operand, axis]:
                        size *= sums[chosen[axis], MAX_POINTS]
                if size <= capacity or nearer[i, 2] == 0.0:
                    copies = 1.0
            widths = shape.width[0] * shape.width[1] * shape.width[3]
            written = new * 2.0 * shape.width[3]
            bytes_ = max(bytes_, 2.0 * macs * np.sqrt(copies * widths / capacity) - written)
        least = max(least, bytes_ * byte_s)
    return float(least)


@kernel_call
def named(name: int, starts: Ints, n: Ints, chosen: Ints) -> None:
    """Write the tilings of combination number `name`."""
    for axis in range(3, -1, -1):
        chosen[axis] = starts[axis] + name % n[axis]
        name //= n[axis]


@kernel_call
def list_bounds(
    space: Space, shape: Shape, level: Level, engine: Engine, nearer: Floats, for_energy: bool,
    bounds: Floats, names: Ints,
) -> int:  # fmt: skip
    """Write the bounds of all combinations that fit, and their numbers; return how many."""
    starts, n, table, sums, turns, _, chosen = space
    most = 1
    for i in range(len(table)):
        write_turns(sums[i], engine, turns[i])
    _write_factors(space, shape)
    for i in range(engine.fastest):
        parts = engine.divisions[i]
        most = max(most, parts[0] * parts[1] * parts[2] * parts[3])
    count = 0
    for batch in range(starts[0], starts[1]):
        for m in range(starts[1], starts[2]):
            for n_ in range(starts[2], starts[3]):
                chosen[0], chosen[1], chosen[2] = batch, m, n_
                name = (((batch - starts[0]) * n[1] + m - starts[1]) * n[2] + n_ - starts[2]) * n[3]
                count = _bound_all(
                    name, space, shape, level, engine, most, nearer, for_energy, bounds, names,
                    count,
                )  # fmt: skip
    return count


@kernel_call
def _bound_all(
    name: int, space: Space, shape: Shape, level: Level, engine: Engine, most: int, nearer: Floats,
    for_energy: bool, bounds: Floats, names: Ints, count: int,
) -> int:  # fmt: skip
    """Bound the combinations of all tilings of k with the chosen ones of the other axes."""
    starts, _, table, sums, turns, factors, chosen = space
    batch, m, n = chosen[0], chosen[1], chosen[2]
    # Tiles of the result do not depend on k.
    c_width, elements = shape.width[3], shape.elements[C]
    turns_m, turns_n = table[m, TILES], table[n, TILES]
    double = 2.0 if level.double else 1.0
    c_changes = table[batch, TILES] > 1 or turns_m > 1 or turns_n > 1
    c_room = _product(elements * c_width, 3 * C + MOST, batch, m, n, factors)
    c_room *= double if c_changes else 1.0
    if c_room > min(level.capacity[C], level.capacity[3]):
        return count
    c_bytes = _product(elements, 3 * C + ALL, batch, m, n, factors) * 2.0 * c_width
    new = _product(elements, WHOLE, batch, m, n, factors)
    c_end = _product(elements, 3 * C + END, batch, m, n, factors) * min(shape.width[2], c_width)
    saved = 0.0 if shape.begun else new * c_width  # nothing to be read yet
    if shape.ended:  # and results instead of sums to be written
        saved += new * (c_width - shape.width[2])
    for k in range(starts[3], starts[4]):
        chosen[3], turns_k = k, table[k, TILES]
        if not _have_room(batch, m, n, k, c_room, table, factors, shape, level):
            continue
        a_bytes = _product(shape.elements[A], 3 * A + ALL, batch, m, k, factors) * shape.width[A]
        b_bytes = _product(shape.elements[B], 3 * B + ALL, batch, n, k, factors) * shape.width[B]
        first = _product(shape.elements[A], 3 * A + END, batch, m, k, factors) * shape.width[A]
        first += _product(shape.elements[B], 3 * B + END, batch, n, k, factors) * shape.width[B]
        # A tile that touches padding alone moves nothing, and waits for nothing.
        accesses = (1 if first > 0 else 0) + (1 if c_end > 0 else 0)
        least = (first + c_end) * level.byte_s + accesses * level.latency_s
        computing = least_s(chosen, sums, turns, engine, most)
        if len(nearer):
            # What is moved if no tile stays in place from one turn to the next.
            moved = a_bytes * turns_n + b_bytes * turns_m + c_bytes * turns_k - saved
            computing = max(computing, nearer_s(chosen, sums, moved, new, shape, nearer))
        least += computing
        alone = turns_m == 1 and turns_n == 1 and turns_k == 1
        for innermost in range(1, 4):  # a loop of one turn is innermost only where all are
            if table[chosen[innermost], TILES] == 1 and not (alone and innermost == K):
                continue
            moved = a_bytes * (1 if innermost == N else turns_n) - saved
            moved += b_bytes * (1 if innermost == M else turns_m)
            moved += c_bytes * (1 if innermost == K else turns_k)
            port = moved * level.byte_s
            bound = max(least, port if level.shared_port else 0.5 * port)
            if for_energy:
                bound = moved * (level.byte_j[0] + level.byte_j[1]) + bound * level.byte_j[2]
            bounds[count], names[count] = bound, 3 * (name + k - starts[3]) + innermost - 1
            count += 1
    return count


@kernel_part
def _have_room(
    batch: int, m: int, n: int, k: int, c_room: float, table: Ints, factors: Floats, shape: Shape,
    level: Level,
) -> bool:  # fmt: skip
    """Tell whether the tiles have room: two of each operand that changes, if buffers are double."""
    double = 2.0 if level.double else 1.0
    inner = table[batch, TILES] > 1 or table[k, TILES] > 1
    a_room = _product(shape.elements[A] * shape.width[A], 3 * A + MOST, batch, m, k, factors)
    a_room *= double if inner or table[m, TILES] > 1 else 1.0
    b_room = _product(shape.elements[B] * shape.width[B], 3 * B + MOST, batch, n, k, factors)
    b_room *= double if inner or table[n, TILES] > 1 else 1.0
    return bool(
        a_room <= level.capacity[A]
        and b_room <= level.capacity[B]
        and a_room + b_room + c_room <= level.capacity[3]
    )
