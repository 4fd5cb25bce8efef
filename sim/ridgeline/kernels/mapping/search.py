"""Search for the best tiling and loop order: branch and bound, complete in its space.

The space is every combination of the tilings that `tilings` lists for m, n, k and the batch, times
every order of the loops over m, n and k; the loop over the batch, which every operand depends on,
is outermost. Combinations are played exactly in the order of their bounds (`space`), until the next
bound is above the best found.

`chosen` says which of those that take the least time is taken.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ridgeline._jit import kernel, kernel_call, kernel_inside, kernel_part
from ridgeline.kernels.mapping.compute import (
    COST_FIELDS,
    PORTS,
    TileEngine,
    least_s,
    write_turns,
)
from ridgeline.kernels.mapping.footprint import Floats, Ints
from ridgeline.kernels.mapping.pipeline import (
    EDP,
    ENERGY,
    FOUND_FIELDS,
    TIME,
    BufferLevel,
    Goal,
    K,
    Shape,
    evaluate,
    key_of,
    weights_of,
)
from ridgeline.kernels.mapping.selection import TIED, best_of, twice, winnow
from ridgeline.kernels.mapping.space import (
    Bounded,
    TilingSpace,
    list_fitting,
    listed,
    named,
    space_of,
)
from ridgeline.kernels.mapping.tilings import (
    BEGIN,
    REPRESENTATIVE_FIELDS,
    TILES,
    WHOLE_SPAN,
    WHOLE_TILES,
    represent,
    room,
)
from ridgeline.kernels.mapping.time_bounds import (
    COMPUTING_FIELDS,
    OF_ALL,
    bound_of,
    most_arrays,
    nearer_s,
    peak_s,
    write_tiles_s,
)

ORDERS = np.array(
    [(0, 1, 2, 3), (0, 2, 1, 3), (0, 1, 3, 2), (0, 3, 1, 2), (0, 2, 3, 1), (0, 3, 2, 1)], np.int64
)
"""Axes from the outermost loop to the innermost."""
MOST_CORNERS = 64
"""Sides of a hull of seconds and joules that may wait to be looked at."""
EXACT = 1e-12
"""Bounds are sums in another order than what they bound: so much they may be above it."""


@kernel
def candidates(
    axes: Ints, shape: Shape, level: BufferLevel, engine: TileEngine, nearer: Floats, density: int,
    goal: Goal,
) -> tuple[Ints, Ints, Floats, Ints]:  # fmt: skip
    """List what fits in the order of its bounds, for a search that goes on into nearer levels.

    Returns
    -------
    starts, table, bounds, names
        Tilings as `space.listed` gives them, bounds and names as in `space.Bounded`.
    """
    starts, table, sums = listed(axes, density)
    space, fitting = space_of(starts, table, sums, shape)
    count = list_fitting(space, shape, level, fitting)
    work, bounds = _work(space, engine), fitting.bounds
    for i in range(count):
        named(fitting.names[i], space, work.chosen)
        work.folded[OF_ALL] = max(
            least_s(work.chosen, space.sums, work.turns, engine, work.most),
            nearer_s(work.chosen, space, shape, nearer),
        )
        bounds[i] = bound_of(i, fitting, work.folded, level, goal)
    _sort(bounds, fitting.names, 0, count)
    return space.starts, space.table, bounds[:count], fitting.names[:count]


class SearchWorkspace(NamedTuple):
    """Room to work in, and what is known of the combination that was looked at last.

    Attributes
    ----------
    chosen
        [axis], its tilings.
    names
        [2], its number, and that of the last one whose tiles were looked at.
    turns
        [tilings, 4], see `compute.write_turns`.
    most
        Arrays that a tile can use.
    folded, computing
        [COMPUTING_FIELDS], computing at least, by the folds of the tiles and by the tiles.
    cost, busy_s
        [COST_FIELDS] and [PORTS].
    """

    chosen: Ints
    names: Ints
    turns: Floats
    most: int
    folded: Floats
    computing: Floats
    cost: Floats
    busy_s: Floats


@kernel_inside
def _work(space: TilingSpace, engine: TileEngine) -> SearchWorkspace:
    turns = np.empty((len(space.table), 4))
    for i in range(len(turns)):
        write_turns(space.sums[i], engine, turns[i])
    names, folded = np.empty(2, np.int64), np.empty(COMPUTING_FIELDS)
    names[:], folded[:] = -1, 0.0
    return SearchWorkspace(
        np.empty(4, np.int64), names, turns, most_arrays(engine), folded,
        np.empty(COMPUTING_FIELDS), np.empty(COST_FIELDS), np.zeros(PORTS),
    )  # fmt: skip


@kernel_call
def _innermost(order: Ints, chosen: Ints, table: Ints) -> int:
    """Axis of the innermost loop that takes several turns; K if there is none."""
    for i in range(3, 0, -1):
        if table[chosen[order[i]], TILES] > 1:
            return int(order[i])
    return K


@kernel
def best(
    axes: Ints, shape: Shape, level: BufferLevel, engine: TileEngine, density: int, goal: Goal,
    orders: Ints, pruned: bool, cutoff: float = np.inf,
) -> tuple[Ints, Ints, Floats, int]:  # fmt: skip
    """Find the best tiling and order.

    Parameters
    ----------
    axes
        [4, AXIS_FIELDS], see `tilings`.
    density
        How many tilings of each axis, see `tilings`.
    goal
        What is to be least.
    pruned
        False: play everything that fits (for tests).
    cutoff
        What is above this (seconds, joules or joule-seconds) need not be found.

    Returns
    -------
    chosen, order, found, played
        Extents [axis, 3] of the tile, axes of the loops from outside in, what `pipeline.evaluate`
        finds, and how many combinations were played; found[TIME] is inf if nothing fits.
    """
    starts, table, sums = listed(axes, density)
    return best_listed(
        axes, starts, table, sums, shape, level, engine, goal, orders, pruned, cutoff
    )


@kernel_inside
def best_listed(
    axes: Ints, starts: Ints, table: Ints, sums: Floats, shape: Shape, level: BufferLevel,
    engine: TileEngine, goal: Goal, orders: Ints, pruned: bool, cutoff: float,
) -> tuple[Ints, Ints, Floats, int]:  # fmt: skip
    """Find the best of the tilings that `space.listed` gives, as `best`; `table` is written to."""
    space, fitting = space_of(starts, table, sums, shape)
    tiles = np.empty((room(axes, table, space.starts), REPRESENTATIVE_FIELDS))
    none, chosen = np.empty((0, 3)), np.empty(4, np.int64)
    # What may be the best so far: what was found, and the number and the order that it is of.
    found, whose, kept = np.empty((16, FOUND_FIELDS)), np.empty((16, 2), np.int64), 0
    least, used, played, step = np.inf, 0, 0, 0
    limit = min(least, cutoff) * (1 + EXACT) if pruned else np.inf
    hull = np.empty((MOST_CORNERS, 4))
    work = _work(space, engine)
    left = _lowest_first(space, fitting, shape, level, engine, goal, limit, work)
    while step < left:
        if step == 1:  # the first one tells which of the others are worth a closer bound
            left = _in_order(space, fitting, left, shape, level, engine, goal, limit, work)
            if left == 1:
                break
        if fitting.bounds[step] > limit:
            break
        name = fitting.names[step]
        named(name, space, chosen)
        for axis in range(4):
            if table[chosen[axis], BEGIN] < 0:
                used = represent(axes[axis], table[chosen[axis]], tiles, used)
        for i in range(len(orders)):
            if _innermost(orders[i], chosen, table) != (name & 3) + 1:
                continue
            if pruned and _seen(i, orders, chosen, table):
                continue
            weights, waiting = weights_of(goal), -1
            while waiting != 0:
                if kept == len(found):
                    kept = winnow(found, whose, kept, goal, least)
                    if 2 * kept > len(found):
                        found, whose = twice(found, whose)
                evaluate(
                    chosen, orders[i], table, tiles, shape, level, engine, weights, none,
                    found[kept],
                )  # fmt: skip
                played += 1
                key = key_of(found[kept, TIME], found[kept, ENERGY], goal)
                least = min(least, key)
                limit = min(least, cutoff) * (1 + EXACT) if pruned else np.inf
                waiting = _next_weights(
                    found[kept, TIME], found[kept, ENERGY], goal, limit, waiting, hull, weights
                )
                if key <= least * (1 + TIED):
                    whose[kept, 0], whose[kept, 1] = name & ~3, i
                    kept += 1
        step += 1
    extents = np.zeros((4, 3), np.int64)
    if kept == 0:
        found[0] = np.inf
        return extents, orders[0], found[0], played
    top = best_of(found[:kept], whose[:kept], goal)
    named(whose[top, 0], space, chosen)
    for axis in range(4):
        for part in range(3):
            extents[axis, part] = table[chosen[axis], part]
    if goal.of != EDP:
        found[top, goal.of] = least
    return extents, orders[whose[top, 1]], found[top], played


@kernel_call
def _next_weights(
    time_s: float, energy_j: float, goal: Goal, limit: float, waiting: int, hull: Floats,
    weights: Floats,
) -> int:  # fmt: skip
    """Choose the weights by which the tiles of one tiling and order are computed next.

    The product of sums of seconds and joules is least at a corner of the convex hull of all ways to
    compute the tiles: it grows with both, and is quasi-concave. A corner has the least weighted sum
    for some weights, which each tile minimises by itself. Corners are found from the two outermost
    ones, the fastest and that of least energy, by the weights for which two neighbours are equal.

    Parameters
    ----------
    time_s, energy_j
        What the last weights gave.
    waiting
        -1 after the first weights; else the sides of the hull that wait, the last of which the last
        weights are of; where only one waits that is not known yet, it is marked by NaN.
    hull
        [MOST_CORNERS, 4], seconds and joules of both ends of a side.

    Returns
    -------
    waiting
        0: nothing is left to be looked at.
    """
    if goal.of != EDP:
        return 0
    if waiting < 0:
        hull[0, 0], hull[0, 1], hull[0, 2] = time_s, energy_j, np.nan
        weights[0], weights[1] = 0.0, 1.0
        return 1
    top = waiting - 1
    if np.isnan(hull[top, 2]):
        hull[top, 2], hull[top, 3] = time_s, energy_j
    else:
        at = weights[0] * time_s + weights[1] * energy_j
        between = at < (weights[0] * hull[top, 0] + weights[1] * hull[top, 1]) * (1 - EXACT)
        if between and top + 1 < len(hull):
            hull[top + 1, 0], hull[top + 1, 1] = time_s, energy_j
            hull[top + 1, 2], hull[top + 1, 3] = hull[top, 2], hull[top, 3]
            hull[top, 2], hull[top, 3] = time_s, energy_j
            top += 1
        else:
            top -= 1
    while top >= 0:
        slower, saved = hull[top, 2] - hull[top, 0], hull[top, 1] - hull[top, 3]
        if slower > 0.0 and saved > 0.0 and key_of(hull[top, 0], hull[top, 3], goal) <= limit:
            weights[0], weights[1] = saved, slower
            return top + 1
        top -= 1
    return 0


@kernel_inside
def _lowest_first(
    space: TilingSpace, fitting: Bounded, shape: Shape, level: BufferLevel, engine: TileEngine,
    goal: Goal,
    limit: float, work: SearchWorkspace,
) -> int:  # fmt: skip
    """List what may be below the limit; what has the lowest bound comes first.

    The others have quick bounds, which `_in_order` makes closer for those that are worth it.
    """
    bounds = fitting.bounds
    count = list_fitting(space, shape, level, fitting)
    macs = 1.0
    for axis in range(4):
        sums, points = space.sums[space.starts[axis]], 0.0
        for i in (0, 2):
            points += sums[WHOLE_TILES + i] * sums[WHOLE_SPAN + i]
        macs *= points
    quick = np.zeros(COMPUTING_FIELDS)
    quick[OF_ALL] = peak_s(macs, engine)
    kept = 0
    for i in range(count):
        bounds[i] = bound_of(i, fitting, quick, level, goal)
        if bounds[i] <= limit:
            _move(fitting, i, kept)
            kept += 1
    lowest, at = np.inf, 0
    for i in range(kept):
        if bounds[i] < lowest:
            bounds[i] = _closer(i, space, fitting, shape, level, engine, goal, lowest, work)
            if bounds[i] < lowest:
                lowest, at = bounds[i], i
    if kept > 0:
        _swap(fitting, 0, at)
    return kept


@kernel_part
def _closer(
    i: int, space: TilingSpace, fitting: Bounded, shape: Shape, level: BufferLevel,
    engine: TileEngine, goal: Goal,
    limit: float, work: SearchWorkspace,
) -> float:  # fmt: skip
    """Return a closer bound, and if it is still below the limit the closest."""
    name = fitting.names[i] >> 2
    if work.names[0] != name:
        named(fitting.names[i], space, work.chosen)
        work.names[0] = name
        work.folded[OF_ALL] = least_s(work.chosen, space.sums, work.turns, engine, work.most)
    bound = bound_of(i, fitting, work.folded, level, goal)
    if bound >= limit:
        return bound
    if work.names[1] != name:
        work.names[1] = name
        write_tiles_s(
            work.chosen, space.sums, shape, level, engine, work.cost, work.busy_s, work.computing
        )
    return bound_of(i, fitting, work.computing, level, goal)


@kernel_part
def _move(fitting: Bounded, i: int, to: int) -> None:
    fitting.names[to] = fitting.names[i]
    fitting.ends_s[to], fitting.moved[to] = fitting.ends_s[i], fitting.moved[i]
    fitting.turning[to], fitting.between[to] = fitting.turning[i], fitting.between[i]
    fitting.bounds[to] = fitting.bounds[i]


@kernel_call
def _swap(fitting: Bounded, i: int, j: int) -> None:
    fitting.names[i], fitting.names[j] = fitting.names[j], fitting.names[i]
    for column in (
        fitting.ends_s, fitting.moved, fitting.turning, fitting.between, fitting.bounds
    ):  # fmt: skip
        column[i], column[j] = column[j], column[i]


@kernel_inside
def _in_order(
    space: TilingSpace, fitting: Bounded, left: int, shape: Shape, level: BufferLevel,
    engine: TileEngine,
    goal: Goal, limit: float, work: SearchWorkspace,
) -> int:  # fmt: skip
    """Give closer bounds to all but the first; keep what is below the limit, in order of bounds."""
    names, bounds = fitting.names, fitting.bounds
    kept = 1
    for i in range(1, left):
        if bounds[i] > limit:
            continue
        bounds[kept] = _closer(i, space, fitting, shape, level, engine, goal, limit, work)
        if bounds[kept] <= limit:
            names[kept] = names[i]
            kept += 1
    _sort(bounds, names, 1, kept)
    return kept


@kernel_call
def _sort(bounds: Floats, names: Ints, begin: int, end: int) -> None:
    """Sort combinations in place by their bounds, then by their names: a heap is taken apart.

    NumPy's sorts take seconds to compile.
    """
    count = end - begin
    heads, left = count // 2, count  # heads of the heap that are still to be put in order
    while left > 1:
        if heads > 0:
            heads -= 1
        else:
            left -= 1
            bounds[begin], bounds[begin + left] = bounds[begin + left], bounds[begin]
            names[begin], names[begin + left] = names[begin + left], names[begin]
        i = heads
        while 2 * i + 1 < left:
            low = 2 * i + 1
            if low + 1 < left and _before(bounds, names, begin + low, begin + low + 1):
                low += 1
            if not _before(bounds, names, begin + i, begin + low):
                break
            a, b = begin + i, begin + low
            bounds[a], bounds[b] = bounds[b], bounds[a]
            names[a], names[b] = names[b], names[a]
            i = low


@kernel_part
def _before(bounds: Floats, names: Ints, i: int, j: int) -> bool:
    return bool(bounds[i] < bounds[j] or (bounds[i] == bounds[j] and names[i] < names[j]))


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


@kernel
def innermost_of(order: Ints, chosen: Ints, table: Ints) -> int:
    """Axis of the innermost loop that takes several turns; see `_innermost`."""
    return _innermost(order, chosen, table)


@kernel
def seen(i: int, orders: Ints, chosen: Ints, table: Ints) -> bool:
    """Tell whether an earlier order has the same loops; see `_seen`."""
    return _seen(i, orders, chosen, table)
