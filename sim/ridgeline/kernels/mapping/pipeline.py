"""One tiling and loop order of a matrix product: its time, stalls, traffic and energy.

The tiles of the outer level run through the buffers of the inner one by the closed form of
`stalls`; the sum over tiles runs over representatives (`choices`), each as often as it stands for
a tile, so that its cost does not grow with the number of tiles.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ridgeline._jit import kernel, kernel_call
from ridgeline.kernels.mapping.choices import (
    BEFORE,
    BEGIN,
    END,
    FIRST,
    LAST,
    MAX_POINTS,
    MAX_TOUCHED,
    NEW,
    NEXT,
    POINTS,
    SELF,
    SPAN,
    TILES,
    TOUCHED,
    WEIGHT,
)
from ridgeline.kernels.mapping.compute import (
    COST_FIELDS,
    PASSES,
    SECONDS,
    WAY_USED,
    Engine,
    tile_cost,
)
from ridgeline.kernels.mapping.footprint import Floats, Ints

BATCH, M, N, K = range(4)
A, B, C = range(3)
HAS = np.array([[1, 1, 0, 1], [1, 0, 1, 1], [1, 1, 1, 0]], np.int64)
"""[operand, axis]: whether the operand has the axis."""

# What `evaluate` finds: seconds, joules of moving data and of waiting, bytes behind the level; then
# words loaded and stored, bytes at the nearest level, and how the first tile is computed.
TIME, COMPUTE, FIRST_LOAD, LAST_STORE, ENERGY, TRAFFIC = range(6)
LOAD_A, LOAD_B, LOAD_C, STORED, NEAR, WAY = range(6, 12)
FOUND_FIELDS = 12


class Level(NamedTuple):
    """The buffers that tiles stay in, and the way between them and the level behind.

    Attributes
    ----------
    capacity
        Bytes for a, b, c and for all together; inf where there is no limit.
    double
        Whether a tile can be loaded, and one stored, while another one is computed.
    shared_port
        Whether loads and stores take turns.
    byte_s, latency_s
        Of a transfer.
    byte_j
        Joules per byte at the level behind, at this one; and watts that time costs.
    """

    capacity: Floats
    double: bool
    shared_port: bool
    byte_s: float
    latency_s: float
    byte_j: Floats


class Shape(NamedTuple):
    """The operands of a contraction.

    Attributes
    ----------
    touches
        [operand, axis], 1 where an operand is counted in touched elements, 0 where in points.
    elements
        [operand], elements per point of all axes: those of the filter, for weights.
    width
        Bytes of an element of a, b, of c as a result, of c as a partial sum.
    """

    touches: Ints
    elements: Floats
    width: Floats


@kernel_call
def _elements(
    operand: int, new: bool, row: Ints, which: Ints, tiles: Floats, shape: Shape
) -> float:
    """Elements of an operand's tile, or those of them that are touched for the first time.

    Parameters
    ----------
    row, which
        [axis], a representative, and whether the tile before or after it is meant.
    """
    product = shape.elements[operand]
    for axis in range(4):
        if HAS[operand, axis]:
            kind = POINTS
            if shape.touches[operand, axis]:
                kind = NEW if new else TOUCHED
            product *= tiles[row[axis], kind + which[axis]]
    return product


@kernel_call
def fits(chosen: Ints, table: Ints, sums: Floats, shape: Shape, level: Level) -> bool:
    """Tell whether the tiles have room: two of each operand that changes, if buffers are double."""
    total = 0.0
    for operand in range(3):
        size = shape.elements[operand] * shape.width[3 if operand == C else operand]
        changes = False
        for axis in range(4):
            if HAS[operand, axis]:
                kind = MAX_TOUCHED if shape.touches[operand, axis] else MAX_POINTS
                size *= sums[chosen[axis], kind]
                changes = changes or table[chosen[axis], TILES] > 1
        if changes and level.double:
            size *= 2.0
        if size > level.capacity[operand]:
            return False
        total += size
    return total <= level.capacity[3]


@kernel
def evaluate(
    chosen: Ints, order: Ints, table: Ints, tiles: Floats, shape: Shape, level: Level,
    engine: Engine, found: Floats,
) -> None:  # fmt: skip
    """Play a tiling and loop order.

    Parameters
    ----------
    chosen
        [axis], rows of `table`.
    order
        [4], axes of the loops from the outermost to the innermost.
    found
        [FOUND_FIELDS], the result.
    """
    position = np.empty(4, np.int64)
    for i in range(4):
        position[order[i]] = i
    # changed[operand, i]: whether the operand's tile changes when loop i takes its next turn.
    changed = np.zeros((3, 4), np.bool_)
    for operand in range(3):
        does = False
        for i in range(3, -1, -1):
            does = does or (HAS[operand, order[i]] and table[chosen[order[i]], TILES] > 1)
            changed[operand, i] = does
    costs, size = np.full((17, COST_FIELDS), np.nan), np.empty(3)
    found[:] = 0.0
    row, which = np.empty(4, np.int64), np.full(4, SELF, np.int64)
    begin, end = np.empty(4, np.int64), np.empty(4, np.int64)
    for i in range(4):
        begin[i], end[i] = table[chosen[i], BEGIN], table[chosen[i], END]
        row[i] = begin[i]
    beside_row, beside = np.empty(4, np.int64), np.empty(4, np.int64)
    while True:
        weight = 1.0
        after = before = -1  # the loops whose turn leads to the next tile, and led to this one
        for i in range(4):
            axis = order[i]
            weight *= tiles[row[axis], WEIGHT]
            after = after if tiles[row[axis], LAST] else i
            before = before if tiles[row[axis], FIRST] else i
        move_s = store_s = 0.0
        if after >= 0:
            for i in range(4):
                axis = order[i]
                beside_row[axis] = begin[axis] if i > after else row[axis]
                beside[axis] = NEXT if i == after else SELF
            load = 0.0
            for operand in range(2):
                if changed[operand, after]:
                    words = _elements(operand, False, beside_row, beside, tiles, shape)
                    found[LOAD_A + operand] += weight * words
                    load += words * shape.width[operand]
            if changed[C, after]:
                words = _elements(C, False, beside_row, beside, tiles, shape)
                at = position[K]
                if at > after or (at < after and tiles[row[K], FIRST]):
                    words -= _elements(C, True, beside_row, beside, tiles, shape)
                found[LOAD_C] += weight * words
                load += words * shape.width[3]
            if load > 0.0:
                found[TRAFFIC] += weight * load
                move_s = load * level.byte_s + level.latency_s
        if before >= 0 and changed[C, before]:
            for i in range(4):
                axis = order[i]
                beside_row[axis] = end[axis] - 1 if i > before else row[axis]
                beside[axis] = BEFORE if i == before else SELF
            at = position[K]
            whole = at > before or (at < before and tiles[row[K], LAST])
            store = _store(whole, beside_row, beside, tiles, shape, weight, found)
            store_s = store * level.byte_s + level.latency_s
        compute_s = _compute(
            after < 0, weight, row, which, begin, tiles, shape, engine, size, costs, found
        )
        found[COMPUTE] += weight * compute_s
        if not level.double:
            found[TIME] += weight * (compute_s + move_s + store_s)
        elif level.shared_port:
            found[TIME] += weight * max(compute_s, move_s + store_s)
        else:
            found[TIME] += weight * max(compute_s, move_s, store_s)
        i = 3
        while i >= 0:
            axis = order[i]
            row[axis] += 1
            if row[axis] < end[axis]:
                break
            row[axis] = begin[axis]
            i -= 1
        if i < 0:
            break
    _ends(begin, end - 1, which, tiles, shape, level, found)


@kernel_call
def _store(
    whole: bool, row: Ints, which: Ints, tiles: Floats, shape: Shape, weight: float, found: Floats
) -> float:
    """Bytes of a tile of results that goes out; those that are complete have their own width.

    Of tiles that overlap, each element is complete once; that the first tile with it counts for
    this and not the last one makes no difference to the sum.
    """
    words = _elements(C, False, row, which, tiles, shape)
    final = _elements(C, True, row, which, tiles, shape) if whole else 0.0
    size = final * shape.width[2] + (words - final) * shape.width[3]
    found[STORED] += weight * words
    found[TRAFFIC] += weight * size
    return size


@kernel_call
def _compute(
    last: bool, weight: float, row: Ints, which: Ints, begin: Ints, tiles: Floats,
    shape: Shape, engine: Engine, size: Floats, costs: Floats, found: Floats,
) -> float:  # fmt: skip
    """Seconds of a tile; tiles of equal extents are worked out once."""
    kind = 16
    if not last:
        kind = 0
        for axis in range(4):
            kind = 2 * kind + (tiles[row[axis], SPAN] != tiles[begin[axis], SPAN])
    cost = costs[kind]
    if np.isnan(cost[SECONDS]):
        for operand in range(3):
            size[operand] = _elements(operand, False, row, which, tiles, shape)
            size[operand] *= shape.width[3 if operand == C else operand]
        tile_cost(
            int(tiles[row[BATCH], SPAN]), int(tiles[row[M], SPAN]), int(tiles[row[N], SPAN]),
            int(tiles[row[K], SPAN]), size, last, engine, cost,
        )  # fmt: skip
        if np.isnan(found[WAY]) or found[NEAR] == 0.0:
            found[WAY] = cost[WAY_USED]
    near = 0.0
    for operand in range(3):
        words = _elements(operand, False, row, which, tiles, shape)
        wide = 2.0 * shape.width[3] if operand == C else shape.width[operand]
        near += words * wide * cost[PASSES + operand]
    found[NEAR] += weight * near
    return float(cost[SECONDS])


@kernel_call
def _ends(
    begin: Ints, last: Ints, at: Ints, tiles: Floats, shape: Shape, level: Level, found: Floats
) -> None:
    """Add the first load and the last store, and what follows from the sums."""
    load = 0.0
    for operand in range(2):
        words = _elements(operand, False, begin, at, tiles, shape)
        found[LOAD_A + operand] += words
        load += words * shape.width[operand]
    found[TRAFFIC] += load
    if load > 0.0:
        found[FIRST_LOAD] = load * level.byte_s + level.latency_s
    store = _store(True, last, at, tiles, shape, 1.0, found)
    found[LAST_STORE] = store * level.byte_s + level.latency_s
    found[TIME] += found[FIRST_LOAD] + found[LAST_STORE]
    # The first of the updates of a partial sum reads nothing, and the last one writes a result.
    results = found[STORED] - found[LOAD_C]
    found[NEAR] -= results * (2.0 * shape.width[3] - shape.width[2])
    found[ENERGY] = (
        found[TRAFFIC] * (level.byte_j[0] + level.byte_j[1])
        + found[NEAR] * level.byte_j[1]
        + found[TIME] * level.byte_j[2]
    )
