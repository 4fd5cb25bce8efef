"""Search for the best tiling and loop order: branch and bound, complete in its space.

The space is every combination of the tilings that `choices` lists for m, n, k and the batch, times
every order of the loops over m, n and k; the loop over the batch, which every operand depends on,
is outermost. A combination of tilings is bounded from below by

    time >= max(first load + least computing + last store, bytes moved / bandwidth)

where the bytes follow in closed form from which loop is innermost. Combinations are played exactly
in the order of their bounds, until the next bound is above the best found. Ties in time are broken
by energy, then by traffic, then by the order of listing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ridgeline._jit import kernel, kernel_call
from ridgeline.kernels.mapping.choices import (
    BEGIN,
    FIRST_POINTS,
    FIRST_TOUCHED,
    LAST_NEW,
    LAST_POINTS,
    MAX_POINTS,
    REPRESENTATIVE_FIELDS,
    SUM_POINTS,
    SUM_TOUCHED,
    TILES,
    WHOLE_NEW,
    represent,
    room,
    tilings,
)
from ridgeline.kernels.mapping.compute import Engine, least_s, write_turns
from ridgeline.kernels.mapping.footprint import Floats, Ints
from ridgeline.kernels.mapping.pipeline import (
    ENERGY,
    FOUND_FIELDS,
    HAS,
    TIME,
    TRAFFIC,
    A,
    C,
    K,
    Level,
    M,
    N,
    Shape,
    evaluate,
    fits,
)

ORDERS = np.array(
    [(0, 1, 2, 3), (0, 2, 1, 3), (0, 1, 3, 2), (0, 3, 1, 2), (0, 2, 3, 1), (0, 3, 2, 1)], np.int64
)
"""Axes from the outermost loop to the innermost."""
EXACT = 1e-12
"""Bounds are sums in another order than what they bound: so much they may be above it."""


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
def listed(axes: Ints, dense: bool) -> tuple[Ints, Ints, Floats]:
    """List the tilings of all axes in one table; `starts` tells where those of each axis begin."""
    starts = np.zeros(5, np.int64)
    table0, sums0 = tilings(axes[0], dense)
    table1, sums1 = tilings(axes[1], dense)
    table2, sums2 = tilings(axes[2], dense)
    table3, sums3 = tilings(axes[3], dense)
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


@kernel
def candidates(
    axes: Ints, shape: Shape, level: Level, engine: Engine, nearer: Floats, dense: bool,
    for_energy: bool,
) -> tuple[Ints, Ints, Floats, Floats, Ints]:  # fmt: skip
    """List what fits in the order of its bounds, for a search that goes on into nearer levels.

    Returns
    -------
    starts, table, sums, bounds, names
        Tilings as `listed` gives them, bounds, and numbers of combinations: three times that of
        the tilings, the last axis running fastest, and the innermost loop's (m, n, k).
    """
    starts, table, sums = listed(axes, dense)
    n = starts[1:] - starts[:-1]
    most = 3 * n[0] * n[1] * n[2] * n[3]
    bounds, names = np.empty(most), np.empty(most, np.int64)
    chosen = np.empty(4, np.int64)
    space = Space(starts, n, table, sums, np.empty((len(table), 4)), chosen, np.empty(4))
    count = _list(space, shape, level, engine, nearer, for_energy, bounds, names)
    by_bound = np.argsort(bounds[:count], kind="mergesort")
    return starts, table, sums, bounds[by_bound], names[by_bound]


@kernel_call
def _innermost(order: Ints, chosen: Ints, table: Ints) -> int:
    """Axis of the innermost loop that takes several turns; K if there is none."""
    for i in range(3, 0, -1):
        if table[chosen[order[i]], TILES] > 1:
            return int(order[i])
    return K


@kernel_call
def _list(
    space: Space, shape: Shape, level: Level, engine: Engine, nearer: Floats, for_energy: bool,
    bounds: Floats, names: Ints,
) -> int:  # fmt: skip
    """Write the bounds of all combinations that fit, and their numbers; return how many."""
    starts, n, table, sums, turns, chosen, moved = space
    count, most = 0, np.int64(1)
    for i in range(len(table)):
        write_turns(sums[i], engine, turns[i])
    for i in range(engine.fastest):
        parts = engine.divisions[i]
        most = max(most, parts[0] * parts[1] * parts[2] * parts[3])
    for name in range(n[0] * n[1] * n[2] * n[3]):
        _named(name, starts, n, chosen)
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


@kernel
def best(  # noqa: PLR0915 - one loop with much state
    axes: Ints, shape: Shape, level: Level, engine: Engine, dense: bool, for_energy: bool,
    orders: Ints, pruned: bool, cutoff: float = np.inf,
) -> tuple[Ints, Ints, Floats, int]:  # fmt: skip
    """Find the best tiling and order.

    Parameters
    ----------
    axes
        [4, AXIS_FIELDS], see `choices`.
    dense
        Many tilings of each axis, or few.
    for_energy
        Whether energy comes before time.
    pruned
        False: play everything that fits (for tests).
    cutoff
        What is above this (seconds, or joules) need not be found.

    Returns
    -------
    chosen, order, found, played
        Extents [axis, 3] of the tile, axes of the loops from outside in, what `pipeline.evaluate`
        finds, and how many combinations were played; found[TIME] is inf if nothing fits.
    """
    starts, table, sums = listed(axes, dense)
    tiles = np.empty((room(axes, table, starts), REPRESENTATIVE_FIELDS))
    used = 0
    n = starts[1:] - starts[:-1]
    names_ = 3 * n[0] * n[1] * n[2] * n[3]
    bounds, names = np.empty(names_), np.empty(names_, np.int64)
    none, chosen = np.empty((0, 3)), np.empty(4, np.int64)
    space = Space(starts, n, table, sums, np.empty((len(table), 4)), chosen, np.empty(4))
    left = _list(space, shape, level, engine, none, for_energy, bounds, names)
    found, trial = np.full(FOUND_FIELDS, np.inf), np.empty(FOUND_FIELDS)
    top, top_order, played = np.zeros(4, np.int64), 0, 0
    key = ENERGY if for_energy else TIME
    sorted_ = False
    step = 0
    while step < left:
        at = step
        if not sorted_ and step < 2:  # most searches are over before it pays to sort
            for i in range(step, left):
                if bounds[i] < bounds[at] or (bounds[i] == bounds[at] and names[i] < names[at]):
                    at = i
            bounds[step], bounds[at] = bounds[at], bounds[step]
            names[step], names[at] = names[at], names[step]
        elif not sorted_:
            kept = step
            for i in range(step, left):
                if not pruned or bounds[i] <= min(found[key], cutoff) * (1 + EXACT):
                    bounds[kept], names[kept] = bounds[i], names[i]
                    kept += 1
            left = kept
            by_bound = np.argsort(bounds[step:left], kind="mergesort")
            bounds[step:left] = bounds[step:left][by_bound]
            names[step:left] = names[step:left][by_bound]
            sorted_ = True
            continue
        if pruned and bounds[step] > min(found[key], cutoff) * (1 + EXACT):
            break
        _named(names[step] // 3, starts, n, chosen)
        for axis in range(4):
            if table[chosen[axis], BEGIN] < 0:
                used = represent(axes[axis], table[chosen[axis]], tiles, used)
        for i in range(len(orders)):
            if _innermost(orders[i], chosen, table) != names[step] % 3 + 1:
                continue
            if pruned and _seen(i, orders, chosen, table):
                continue
            evaluate(chosen, orders[i], table, tiles, shape, level, engine, none, trial)
            played += 1
            if _better(trial, found, key, (names[step] // 3, i), _name(top, starts, n), top_order):
                found[:] = trial
                top[:] = chosen
                top_order = i
        step += 1
    extents = np.zeros((4, 3), np.int64)
    for axis in range(4):
        extents[axis] = table[top[axis], :3]
    return extents, orders[top_order], found, played


@kernel_call
def _named(name: int, starts: Ints, n: Ints, chosen: Ints) -> None:
    """Write the tilings of combination number `name`."""
    for axis in range(3, -1, -1):
        chosen[axis] = starts[axis] + name % n[axis]
        name //= n[axis]


@kernel_call
def _name(chosen: Ints, starts: Ints, n: Ints) -> int:
    name = 0
    for axis in range(4):
        name = name * n[axis] + chosen[axis] - starts[axis]
    return name


@kernel_call
def _seen(i: int, orders: Ints, chosen: Ints, table: Ints) -> bool:
    """Tell whether an earlier order has the same loops, but for those of one turn."""
    for j in range(i):
        same = True
        p = q = 0
        for _ in range(4):
            while p < 4 and table[chosen[orders[i, p]], TILES] == 1:
                p += 1
            while q < 4 and table[chosen[orders[j, q]], TILES] == 1:
                q += 1
            if p < 4 and q < 4 and orders[i, p] != orders[j, q]:
                same = False
                break
            p += 1
            q += 1
        if same:
            return True
    return False


@kernel_call
def _better(
    trial: Floats, found: Floats, key: int, name: tuple[int, int], best_name: int, best_order: int
) -> bool:
    """Compare by time, energy and traffic, or by energy first; then by the order of listing."""
    other = TIME if key == ENERGY else ENERGY
    for field in (key, other, TRAFFIC):
        if trial[field] != found[field]:
            return bool(trial[field] < found[field])
    return name < (best_name, best_order)


@kernel
def innermost_of(order: Ints, chosen: Ints, table: Ints) -> int:
    """Axis of the innermost loop that takes several turns; see `_innermost`."""
    return _innermost(order, chosen, table)


@kernel
def seen(i: int, orders: Ints, chosen: Ints, table: Ints) -> bool:
    """Tell whether an earlier order has the same loops; see `_seen`."""
    return _seen(i, orders, chosen, table)
