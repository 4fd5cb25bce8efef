"""Search for the best tiling and loop order: branch and bound, complete in its space.

The space is every combination of the tilings that `choices` lists for m, n, k and the batch, times
every order of the loops over m, n and k; the loop over the batch, which every operand depends on,
is outermost. Combinations are played exactly in the order of their bounds (`space`), until the next
bound is above the best found. Ties in time are broken by energy, then by traffic, then by the order
of listing.
"""

from __future__ import annotations

import numpy as np

from ridgeline._jit import kernel, kernel_call
from ridgeline.kernels.mapping.choices import (
    BEGIN,
    REPRESENTATIVE_FIELDS,
    TILES,
    represent,
    room,
)
from ridgeline.kernels.mapping.compute import Engine
from ridgeline.kernels.mapping.footprint import Floats, Ints
from ridgeline.kernels.mapping.pipeline import (
    ENERGY,
    FOUND_FIELDS,
    TIME,
    TRAFFIC,
    K,
    Level,
    Shape,
    evaluate,
)
from ridgeline.kernels.mapping.space import FACTORS, Space, list_bounds, listed, named

ORDERS = np.array(
    [(0, 1, 2, 3), (0, 2, 1, 3), (0, 1, 3, 2), (0, 3, 1, 2), (0, 2, 3, 1), (0, 3, 2, 1)], np.int64
)
"""Axes from the outermost loop to the innermost."""
EXACT = 1e-12
"""Bounds are sums in another order than what they bound: so much they may be above it."""


@kernel
def _space(starts: Ints, n: Ints, table: Ints, sums: Floats) -> Space:
    turns, factors = np.empty((len(table), 4)), np.empty((len(table), FACTORS))
    return Space(starts, n, table, sums, turns, factors, np.empty(4, np.int64))


@kernel
def candidates(
    axes: Ints, shape: Shape, level: Level, engine: Engine, nearer: Floats, density: int,
    for_energy: bool,
) -> tuple[Ints, Ints, Floats, Ints]:  # fmt: skip
    """List what fits in the order of its bounds, for a search that goes on into nearer levels.

    Returns
    -------
    starts, table, bounds, names
        Tilings as `listed` gives them, bounds, and numbers of combinations: three times that of
        the tilings, the last axis running fastest, and the innermost loop's (m, n, k).
    """
    starts, table, sums = listed(axes, density)
    n = starts[1:] - starts[:-1]
    most = 3 * n[0] * n[1] * n[2] * n[3]
    bounds, names = np.empty(most), np.empty(most, np.int64)
    space = _space(starts, n, table, sums)
    count = list_bounds(space, shape, level, engine, nearer, for_energy, bounds, names)
    by_bound = np.argsort(bounds[:count], kind="mergesort")
    return starts, table, bounds[by_bound], names[by_bound]


@kernel_call
def _innermost(order: Ints, chosen: Ints, table: Ints) -> int:
    """Axis of the innermost loop that takes several turns; K if there is none."""
    for i in range(3, 0, -1):
        if table[chosen[order[i]], TILES] > 1:
            return int(order[i])
    return K


@kernel
def best(  # noqa: PLR0915 - one loop with much state
    axes: Ints, shape: Shape, level: Level, engine: Engine, density: int, for_energy: bool,
    orders: Ints, pruned: bool, cutoff: float = np.inf,
) -> tuple[Ints, Ints, Floats, int]:  # fmt: skip
    """Find the best tiling and order.

    Parameters
    ----------
    axes
        [4, AXIS_FIELDS], see `choices`.
    density
        How many tilings of each axis, see `choices`.
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
    starts, table, sums = listed(axes, density)
    tiles = np.empty((room(axes, table, starts), REPRESENTATIVE_FIELDS))
    used = 0
    n = starts[1:] - starts[:-1]
    names_ = 3 * n[0] * n[1] * n[2] * n[3]
    bounds, names = np.empty(names_), np.empty(names_, np.int64)
    none, chosen = np.empty((0, 3)), np.empty(4, np.int64)
    space = _space(starts, n, table, sums)
    left = list_bounds(space, shape, level, engine, none, for_energy, bounds, names)
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
        named(names[step] // 3, starts, n, chosen)
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
