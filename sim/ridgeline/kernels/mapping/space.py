"""All combinations of tilings that fit, with bounds of their time.

A combination is bounded from below by

    time >= max(first load + least computing + last store, bytes moved / bandwidth)

where the bytes follow in closed form from which loop is innermost. With nearer levels of buffers
what these need for the tiles bounds the computing too.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ridgeline._jit import kernel, kernel_call
from ridgeline.kernels.mapping.choices import (
    FIRST_POINTS,
    FIRST_TOUCHED,
    LAST_NEW,
    LAST_POINTS,
    MAX_POINTS,
    SUM_POINTS,
    SUM_TOUCHED,
    TILES,
    WHOLE_NEW,
    tilings,
)
from ridgeline.kernels.mapping.compute import Engine, least_s, write_turns
from ridgeline.kernels.mapping.footprint import Floats, Ints
from ridgeline.kernels.mapping.pipeline import HAS, A, C, K, Level, M, N, Shape, fits


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
    chosen, moved
        [axis] and [4], for a combination and its bytes.
    """

    starts: Ints
    n: Ints
    table: Ints
    sums: Floats
    turns: Floats
    chosen: Ints
    moved: Floats


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


@kernel_call
def _sum(operand: int, chosen: Ints, sums: Floats, shape: Shape, whole: bool) -> float:
    """Elements of all tiles of an operand, or those that it has."""
    product = shape.elements[operand]
    for axis in range(4):
        if HAS[operand, axis]:
            kind = SUM_POINTS
            if shape.touches[operand, axis]:
                kind = WHOLE_NEW if whole else SUM_TOUCHED
            product *= sums[chosen[axis], kind]
    return float(product)


@kernel_call
def _end(operand: int, chosen: Ints, sums: Floats, shape: Shape) -> float:
    """Elements of an operand's first tile; of a result's last one, those that are in no other."""
    product = shape.elements[operand]
    for axis in range(4):
        if HAS[operand, axis]:
            if operand == C:
                kind = LAST_NEW if shape.touches[operand, axis] else LAST_POINTS
            else:
                kind = FIRST_TOUCHED if shape.touches[operand, axis] else FIRST_POINTS
            product *= sums[chosen[axis], kind]
    return float(product)


@kernel_call
def _moved(chosen: Ints, table: Ints, sums: Floats, shape: Shape, moved: Floats) -> None:
    """Write the bytes loaded and stored if m, n or k is innermost of what takes several turns.

    The fourth number is what they are if no tile stays in place from one turn to the next.
    """
    new = _sum(C, chosen, sums, shape, True)
    saved = 0.0 if shape.begun else new * shape.width[3]  # nothing to be read yet
    if shape.ended:  # and results instead of sums to be written
        saved += new * (shape.width[3] - shape.width[2])
    moved[:] = -saved
    for operand in range(3):
        words = _sum(operand, chosen, sums, shape, False)
        width = 2.0 * shape.width[3] if operand == C else shape.width[operand]
        absent = N if operand == A else (K if operand == C else M)
        for innermost in range(1, 5):
            turns = 1 if absent == innermost else table[chosen[absent], TILES]
            moved[innermost - 1] += words * turns * width


@kernel_call
def _ends(chosen: Ints, sums: Floats, shape: Shape, level: Level) -> float:
    """Seconds of the first load and the last store, at least."""
    first = 0.0
    for operand in range(2):
        first += _end(operand, chosen, sums, shape) * shape.width[operand]
    last = _end(C, chosen, sums, shape) * min(shape.width[2], shape.width[3])
    # A tile that touches padding alone moves nothing, and waits for nothing.
    accesses = (1 if first > 0 else 0) + (1 if last > 0 else 0)
    return float((first + last) * level.byte_s + accesses * level.latency_s)


@kernel_call
def nearer_s(chosen: Ints, sums: Floats, moved: float, shape: Shape, nearer: Floats) -> float:
    """Seconds that nearer buffers need at least for what all tiles move.

    Every tile passes a nearer level once at least. Of matrix products more is known: tiles of
    extents m, n, k there, with c in place while k passes, have m n s <= S, where s is the width of
    a sum, doubled if c changes and so has two buffers, and S is the capacity. Then a tile of M, N,
    K moves at least M N K (a / n + b / m) >= 2 M N K sqrt(a b s / S) bytes of elements of a and b
    bytes; where another operand stays in place it is more, sums being written and read.

    Parameters
    ----------
    moved
        Bytes of the tiles.
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
            new = _sum(C, chosen, sums, shape, True) * 2.0 * shape.width[3]
            bytes_ = max(bytes_, 2.0 * macs * np.sqrt(copies * widths / capacity) - new)
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
    starts, n, table, sums, turns, chosen, moved = space
    count, most = 0, 1
    for i in range(len(table)):
        write_turns(sums[i], engine, turns[i])
    for i in range(engine.fastest):
        parts = engine.divisions[i]
        most = max(most, parts[0] * parts[1] * parts[2] * parts[3])
    for name in range(n[0] * n[1] * n[2] * n[3]):
        named(name, starts, n, chosen)
        if not fits(chosen, table, sums, shape, level):
            continue
        ends = _ends(chosen, sums, shape, level)
        _moved(chosen, table, sums, shape, moved)
        computing = least_s(chosen, sums, turns, engine, most)
        if len(nearer):
            computing = max(computing, nearer_s(chosen, sums, moved[3], shape, nearer))
        least = ends + computing
        for innermost in range(1, 4):
            alone = True  # a loop of one turn is innermost only where all are
            for axis in range(1, 4):
                alone = alone and table[chosen[axis], TILES] == 1
            if table[chosen[innermost], TILES] == 1 and not (alone and innermost == K):
                continue
            port = moved[innermost - 1] * level.byte_s
            bound = max(least, port if level.shared_port else 0.5 * port)
            if for_energy:
                bound = moved[innermost - 1] * (level.byte_j[0] + level.byte_j[1]) + (
                    bound * level.byte_j[2]
                )
            bounds[count], names[count] = bound, 3 * name + innermost - 1
            count += 1
    return count
