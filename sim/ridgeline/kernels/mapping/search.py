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

import numpy as np

from ridgeline._jit import kernel, kernel_call
from ridgeline.kernels.mapping.choices import (
    BEGIN,
    FIRST_POINTS,
    FIRST_TOUCHED,
    LAST_NEW,
    LAST_POINTS,
    REPRESENTATIVE_FIELDS,
    SUM_POINTS,
    SUM_TOUCHED,
    TILES,
    WHOLE_TOUCHED,
    represent,
    room,
    tilings,
)
from ridgeline.kernels.mapping.compute import Engine, least_s
from ridgeline.kernels.mapping.footprint import Floats, Ints
from ridgeline.kernels.mapping.pipeline import (
    ENERGY,
    FOUND_FIELDS,
    HAS,
    TIME,
    TRAFFIC,
    A,
    B,
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
                kind = WHOLE_TOUCHED if whole else SUM_TOUCHED
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
def _words(chosen: Ints, sums: Floats, shape: Shape) -> tuple[float, float, float, float]:
    """Elements of all tiles of a, b and c, and those that c has."""
    return (
        _sum(A, chosen, sums, shape, False),
        _sum(B, chosen, sums, shape, False),
        _sum(C, chosen, sums, shape, False),
        _sum(C, chosen, sums, shape, True),
    )


@kernel_call
def _moved(
    innermost: int, words: tuple[float, float, float, float], chosen: Ints, table: Ints,
    shape: Shape,
) -> float:  # fmt: skip
    """Bytes loaded and stored if this loop is the innermost of those that take several turns."""
    a, b, c, results = words
    if innermost != N:
        a *= table[chosen[N], TILES]
    if innermost != M:
        b *= table[chosen[M], TILES]
    if innermost != K:
        c *= table[chosen[K], TILES]
    total = a * shape.width[A] + b * shape.width[B]
    return float(total + results * shape.width[2] + 2.0 * (c - results) * shape.width[3])


@kernel_call
def _ends_s(chosen: Ints, sums: Floats, shape: Shape, level: Level) -> float:
    """Seconds of the first load and the last store."""
    first = 0.0
    for operand in range(2):
        first += _end(operand, chosen, sums, shape) * shape.width[operand]
    last = _end(C, chosen, sums, shape) * min(shape.width[2], shape.width[3])
    # A tile that touches padding alone moves nothing, and waits for nothing.
    accesses = (1 if first > 0 else 0) + (1 if last > 0 else 0)
    return float((first + last) * level.byte_s + accesses * level.latency_s)


@kernel_call
def _bound(moved: float, ends_s: float, computing: float, level: Level) -> float:
    """Time that no order of these loops with this traffic is below."""
    port = moved * level.byte_s
    return float(max(ends_s + computing, port if level.shared_port else 0.5 * port))


@kernel_call
def _innermost(order: Ints, chosen: Ints, table: Ints) -> int:
    """Axis of the innermost loop that takes several turns; K if there is none."""
    for i in range(3, 0, -1):
        if table[chosen[order[i]], TILES] > 1:
            return int(order[i])
    return K


@kernel
def best(  # noqa: PLR0915 - one loop with much state
    axes: Ints, shape: Shape, level: Level, engine: Engine, dense: bool, for_energy: bool,
    orders: Ints, pruned: bool,
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
    count = 0
    chosen = np.empty(4, np.int64)
    for name in range(names_ // 3):
        _named(name, starts, n, chosen)
        if not fits(chosen, table, sums, shape, level):
            continue
        computing = least_s(
            sums[chosen[0]], sums[chosen[1]], sums[chosen[2]], sums[chosen[3]], engine
        )
        words, ends_s = _words(chosen, sums, shape), _ends_s(chosen, sums, shape, level)
        alone = True  # a loop of one turn is innermost only where all are
        for axis in range(1, 4):
            alone = alone and table[chosen[axis], TILES] == 1
        for innermost in range(1, 4):
            if table[chosen[innermost], TILES] == 1 and not (alone and innermost == K):
                continue
            moved = _moved(innermost, words, chosen, table, shape)
            bound = _bound(moved, ends_s, computing, level)
            if for_energy:
                bound = moved * (level.byte_j[0] + level.byte_j[1]) + bound * level.byte_j[2]
            bounds[count], names[count] = bound, 3 * name + innermost - 1
            count += 1
    found, trial = np.full(FOUND_FIELDS, np.inf), np.empty(FOUND_FIELDS)
    top, top_order, played = np.zeros(4, np.int64), 0, 0
    left = count
    key = ENERGY if for_energy else TIME
    sorted_ = False
    step = 0
    while step < left:
        at = step
        if not sorted_ and step < 8:  # most searches are over before it pays to sort
            for i in range(step, left):
                if bounds[i] < bounds[at] or (bounds[i] == bounds[at] and names[i] < names[at]):
                    at = i
            bounds[step], bounds[at] = bounds[at], bounds[step]
            names[step], names[at] = names[at], names[step]
        elif not sorted_:
            kept = step
            for i in range(step, left):
                if not pruned or bounds[i] <= found[key] * (1 + EXACT):
                    bounds[kept], names[kept] = bounds[i], names[i]
                    kept += 1
            left = kept
            by_bound = np.argsort(bounds[step:left], kind="mergesort")
            bounds[step:left] = bounds[step:left][by_bound]
            names[step:left] = names[step:left][by_bound]
            sorted_ = True
            continue
        if pruned and bounds[step] > found[key] * (1 + EXACT):
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
            evaluate(chosen, orders[i], table, tiles, shape, level, engine, trial)
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
