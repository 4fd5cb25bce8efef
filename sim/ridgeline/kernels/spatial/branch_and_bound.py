"""Branch and bound over spatial layouts: what no bound excludes is evaluated.

A *leaf* is a tile of one element with the numbers of parts in which loops are spread over the
array; on which axis they lie matters for the hops of sums alone. A leaf is bounded by what it
multiplies, by what its operands take on their networks with the best loop inside, and by the words
that must come from memory; with an order of its loops over tiles the words are exact.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline._jit import kernel, kernel_call, kernel_inside, kernel_part
from ridgeline.kernels.spatial.cycle_model import (
    C,
    CycleMachine,
    G,
    Ints,
    K,
    LayoutArrays,
    N,
    P,
    Q,
    R,
    S,
    Scratch,
    play,
)
from ridgeline.kernels.spatial.word_counts import (
    ALL,
    IN,
    O_AGAIN,
    O_FIRST,
    OT_AGAIN,
    OT_FIRST,
    OUT,
    T_AGAIN,
    T_FIRST,
    TO_AGAIN,
    TO_FIRST,
    W,
    WindowAxis,
    X,
    window_sums,
    words_of,
)

Floats = NDArray[np.float64]
TIME, ENERGY, PRODUCT = range(3)


class Charges(NamedTuple):
    """What a layout is ranked by: `machine.LayoutPrices`, of words."""

    near_cycles: float
    far_cycles: float
    least_cycles: float
    near_j: float
    far_j: float
    idle_j: float
    fixed_j: float
    objective: int
    buffer_words: int
    x_held: bool
    w_held: bool
    y_held: bool


class LayoutSpace(NamedTuple):
    """The leaves and orders of one nest under one dataflow.

    Attributes
    ----------
    sizes
        [8].
    tiles, tile_at
        [tiles, 8]: lengths in an element; the number of each in its loop's list.
    parts, parts_at, hops, least
        [spreads, 8] likewise; hops of a chain of sums; [spreads], cycles of the multiplications at
        least, in ascending order.
    busy
        [8, lengths, parts], factors of the cycles; 0: no layout is so.
    orders
        [orders, loops].
    height, width
        [lengths, parts, lengths, parts, 9], sums of windows; -1: not yet counted.
    far_height, far_width
        [tile, tile, 9], likewise, of one element that has the whole tile.
    """

    sizes: Ints
    tiles: Ints
    tile_at: Ints
    parts: Ints
    parts_at: Ints
    hops: Ints
    least: Ints
    busy: Ints
    orders: Ints
    height: Ints
    width: Ints
    far_height: Ints
    far_width: Ints


class Leaves(NamedTuple):
    """Leaves that are not excluded: [leaves, 3], their rank at least; their tile and spread."""

    rank: Floats
    tile: Ints
    spread: Ints


class Best(NamedTuple):
    """The best layout yet.

    Attributes
    ----------
    rank
        [3]: the objective, the first tie-break, words from memory.
    chosen
        [5]: tile, spread, order; the loop that the buffer splits, by its place in the order, and
        how often it goes on inside.
    played
        [2]: layouts that were played, orders that were bounded.
    """

    rank: Floats
    chosen: Ints
    played: Ints


@kernel_part
def _rank(cycles: float, near: float, far: float, charges: Charges, rank: Floats) -> None:
    time = max(cycles, near * charges.near_cycles, far * charges.far_cycles, charges.least_cycles)
    energy = near * charges.near_j + far * charges.far_j
    energy = energy + time * charges.idle_j + charges.fixed_j
    if charges.objective == TIME:
        rank[0], rank[1] = time, energy
    elif charges.objective == ENERGY:
        rank[0], rank[1] = energy, time
    else:
        rank[0], rank[1] = energy * time, time
    rank[2] = far


@kernel_part
def _less(rank: Floats, other: Floats) -> bool:
    for i in range(3):
        if rank[i] != other[i]:
            return bool(rank[i] < other[i])
    return False


@kernel
def spread_pairs(
    rows: Ints, columns: Ints, row_at: Ints, column_at: Ints, joint: Ints, radix: Ints,
    sizes: Ints, longest: float, found: Ints,
) -> int:  # fmt: skip
    """List pairs of spreads along rows and columns that multiply in at most `longest` cycles.

    Parameters
    ----------
    joint
        [8, row factors, column factors], the number of the product in its loop's list.
    found
        [room, 5]: the spread's key, hops, cycles, and the pair.

    Returns
    -------
    How many there are; where `found` has too little room, the rest is only counted.
    """
    count = 0
    macs = 1.0
    for d in range(8):
        macs *= sizes[d]
    for i in range(len(rows)):
        down = 1
        for d in range(8):
            down *= rows[i, d]
        for j in range(len(columns)):
            used = down
            for d in range(8):
                used *= columns[j, d]
            if macs > longest * used:
                break
            cycles, key, row_sums, column_sums, is_one = 1, 0, 1, 1, True
            for d in range(8):
                both = rows[i, d] * columns[j, d]
                cycles *= -(-sizes[d] // both)
                key = key * radix[d] + joint[d, row_at[i, d], column_at[j, d]]
                if d in (C, R, S):
                    row_sums *= rows[i, d]
                    column_sums *= columns[j, d]
                    is_one = is_one and (rows[i, d] == 1 or columns[j, d] == 1)
            if is_one and cycles <= longest:
                if count < len(found):
                    found[count, 0], found[count, 1] = key, row_sums + column_sums - 2
                    found[count, 2], found[count, 3], found[count, 4] = cycles, i, j
                count += 1
    return count


@kernel_call
def _count_sums(axis: int, found: Ints, tile: Ints, parts: Ints, at: WindowAxis) -> None:
    """Count the sums of an axis, at the first time."""
    if found[0] < 0:
        o, t = P + axis, R + axis
        at.room.trip[0], at.room.trip[1] = tile[o], tile[t]
        at.room.turn[0], at.room.turn[1] = parts[o], parts[t]
        window_sums(axis, at.room.trip, at.room.turn, at, found)


@kernel_call
def _count_far(axis: int, found: Ints, tile: Ints, at: WindowAxis) -> None:
    if found[0] < 0:
        o, t = P + axis, R + axis
        at.room.trip[0], at.room.trip[1] = tile[o], tile[t]
        at.room.turn[0], at.room.turn[1] = 1, 1
        window_sums(axis, at.room.trip, at.room.turn, at, found)


@kernel_part
def _first(sums: Ints) -> int:
    return int(min(sums[ALL], sums[O_FIRST], sums[T_FIRST], sums[OT_FIRST], sums[TO_FIRST]))


@kernel_part
def _again(sums: Ints) -> int:
    return int(min(sums[ALL], sums[O_AGAIN], sums[T_AGAIN], sums[OT_AGAIN], sums[TO_AGAIN]))


@kernel_call
def _transfers(
    filters: bool, tile: Ints, parts: Ints, sizes: Ints, spread: float, width: int
) -> float:
    """Cycles in which all tiles of w, or of sums, cross a network of some width once."""
    found = 0.0
    for case in range(32):
        words, often, bit = spread, 1.0, 1
        for d in range(8):
            if d in (G, K) or (d in (C, R, S) if filters else d in (N, P, Q)):
                reach = min(tile[d] * parts[d], sizes[d])
                whole = sizes[d] // reach
                rest = sizes[d] - whole * reach
                words *= rest if case & bit else reach
                often *= (1.0 if rest > 0 else 0.0) if case & bit else whole
                bit *= 2
        if often > 0.0:
            found += often * np.ceil(words / width)
    return found


@kernel_part
def _cycles(
    busy: float, x: float, w_cycles: float, y_cycles: float, x_times: float, w_times: float,
    y_times: float, hops: int, beside: float, machine: CycleMachine,
) -> float:  # fmt: skip
    """Bound the cycles from below.

    Parameters
    ----------
    x
        Words.
    w_cycles, y_cycles
        Of the networks.
    x_times, w_times, y_times
        Exchanges at least.
    beside
        Cycles of x that no exchange of w hides, where w has a single buffer.
    """
    x_cycles = x / machine.x_words  # a window may slide without new words
    waits = 0.0  # of the elements, for operands that nothing hides
    if not machine.w_double:
        waits = max(waits, w_cycles + beside + w_times * machine.setup)
    if not machine.x_double:
        waits = max(waits, x_cycles + x_times * machine.setup)
    # A tile of sums begins when the last one, or the last but one, has hopped and left.
    chain = busy + y_times * hops * machine.hop + y_cycles
    if machine.y_double:
        chain /= 2
    # The last sums leave after the last multiplication.
    return max(busy + waits + 1.0, x_cycles + 1.0, w_cycles + 1.0, y_cycles, chain)


@kernel_call
def _leaf_rank(
    space: LayoutSpace, charges: Charges, machine: CycleMachine, axis: WindowAxis, t: int, v: int,
    busy: int,
    x_least: float, trips: Ints, one: Floats, rank: Floats,
) -> None:  # fmt: skip
    """Bound the rank of a leaf, whatever the order of its loops is.

    Parameters
    ----------
    busy
        Cycles of its multiplications.
    x_least
        Words of images from memory at least.
    trips, one, rank
        Room for loops over tiles and a rank; the bound.
    """
    sizes = space.sizes
    x_all = float(sizes[N] * sizes[G] * sizes[C])
    at, of = space.tile_at[t], space.parts_at[v]
    high = space.height[at[P], of[P], at[R], of[R]]
    wide = space.width[at[Q], of[Q], at[S], of[S]]
    _count_sums(0, high, space.tiles[t], space.parts[v], axis)
    _count_sums(1, wide, space.tiles[t], space.parts[v], axis)
    for d in range(8):
        trips[d] = -(-sizes[d] // (space.tiles[t, d] * space.parts[v, d]))
    x_once = x_all * min(_first(high) * wide[ALL], high[ALL] * _first(wide))
    x_more = x_all * min(_again(high) * wide[ALL], high[ALL] * _again(wide))
    _rank_of_trips(
        space, charges, machine, v, busy, x_least, x_once, x_more, False, trips, one, rank
    )


@kernel_call
def _rank_of_trips(
    space: LayoutSpace, charges: Charges, machine: CycleMachine, v: int, busy: int, x_least: float,
    x_once: float, x_more: float, fewer: bool, trips: Ints, one: Floats, rank: Floats,
) -> None:  # fmt: skip
    """Bound the rank of layouts with so many trips, or with some more.

    Parameters
    ----------
    x_once, x_more
        Words of images for the first of the loops over filters, and for each other one.
    fewer
        Whether layouts may have more trips than these.
    """
    sizes = space.sizes
    w_all = float(sizes[G] * sizes[K] * sizes[C] * sizes[R] * sizes[S])
    y_all = float(sizes[N] * sizes[G] * sizes[K] * sizes[P] * sizes[Q])
    x_spread, w_spread = 1.0, 1.0
    if not machine.x_multicast:
        x_spread = float(space.parts[v, K])
    if not machine.w_multicast:
        w_spread = float(space.parts[v, N] * space.parts[v, P] * space.parts[v, Q])
    inner = float(trips[N] * trips[P] * trips[Q])
    summed = float(trips[C] * trips[R] * trips[S])
    filters = float(trips[K])
    first = True
    for case in range(4):
        # Which loop is innermost: over filters, images or pixels, sums, or there is none.
        if case == 0 and filters == 1.0 and not fewer:
            continue
        if case == 1 and inner == 1.0 and not fewer:
            continue
        if case == 2 and summed == 1.0 and not fewer:
            continue
        if case == 3 and filters * inner * summed > 1.0:
            continue
        x = x_once if case in (0, 3) else x_once + (filters - 1.0) * x_more
        w = w_all if case in (1, 3) else w_all * inner
        again = 1.0 if case in (2, 3) else summed
        out = y_all * again
        x, w = x * x_spread, w * w_spread
        near = x + w + out + out - y_all
        far = x_least if charges.x_held else x
        far += w_all if charges.w_held else w
        far += y_all if charges.y_held else out + out - y_all
        w_times = filters * summed * trips[G] * (1.0 if case in (1, 3) else inner)
        x_times = float(trips[G]) * inner * summed
        y_times = float(trips[G]) * inner * filters * again
        cycles = _cycles(
            float(busy), x, max(w / machine.w_words, w_times),
            max(out / machine.out_words, (out - y_all) / machine.in_words, y_times),
            x_times, w_times, y_times, space.hops[v], 0.0, machine,
        )  # fmt: skip
        _rank(cycles, near, far, charges, one)
        for i in range(3):
            rank[i] = one[i] if first else min(rank[i], one[i])
        first = False


@kernel
def leaves_of(
    space: LayoutSpace, charges: Charges, machine: CycleMachine, axis: WindowAxis, lowest: float,
    highest: float,
    longest: float, best: Best, resume: Ints, found: Leaves,
) -> int:  # fmt: skip
    """List leaves whose bound is above `lowest` and at most `highest`, until there is no more room.

    Parameters
    ----------
    longest
        Cycles that their multiplications take at most.
    resume
        [2], the spread and the tile to go on with; the spreads' number when all are listed.

    Returns
    -------
    How many.
    """
    sizes = space.sizes
    x_all = float(sizes[N] * sizes[G] * sizes[C])
    high, wide = space.far_height[sizes[P], sizes[R]], space.far_width[sizes[Q], sizes[S]]
    _count_far(0, high, sizes, axis)
    _count_far(1, wide, sizes, axis)
    x_least = x_all * high[ALL] * wide[ALL]
    count = 0
    trips = np.ones(8, np.int64)
    rank, one = np.zeros(3), np.zeros(3)
    largest = np.ones(8, np.int64)  # an element has no more of a loop
    for t in range(len(space.tiles)):
        for d in range(8):
            largest[d] = max(largest[d], space.tiles[t, d])
    for v in range(resume[0], len(space.parts)):
        if space.least[v] > longest:
            break
        for d in range(8):
            trips[d] = -(-sizes[d] // (largest[d] * space.parts[v, d]))
        _rank_of_trips(
            space, charges, machine, v, space.least[v], x_least, x_least, 0.0, True, trips, one,
            rank,
        )  # fmt: skip
        if rank[0] > highest or not _less(rank, best.rank):
            continue
        start = resume[1] if v == resume[0] else 0
        for t in range(start, len(space.tiles)):
            busy = 1
            for d in range(8):
                busy *= space.busy[d, space.tile_at[t, d], space.parts_at[v, d]]
            if busy == 0 or busy > longest:
                continue
            if count == len(found.tile):
                resume[0], resume[1] = v, t
                return count
            _leaf_rank(space, charges, machine, axis, t, v, busy, x_least, trips, one, rank)
            if rank[0] > lowest and rank[0] <= highest and _less(rank, best.rank):
                found.rank[count] = rank
                found.tile[count], found.spread[count] = t, v
                count += 1
    resume[0] = len(space.parts)
    return count


@kernel_part
def _held(tile: Ints, sizes: Ints, axis: WindowAxis, space: LayoutSpace, charges: Charges) -> int:
    """Count the words that a tile takes in the buffer."""
    words = 0
    if charges.x_held:
        high = _spanned(tile[P], tile[R], axis.work.window[0], axis.work.window[2], axis)
        wide = _spanned(tile[Q], tile[S], axis.work.window[1], axis.work.window[3], axis)
        words += tile[N] * tile[G] * tile[C] * high * wide
    if charges.w_held:
        words += tile[G] * tile[K] * tile[C] * tile[R] * tile[S]
    if charges.y_held:
        words += tile[N] * tile[G] * tile[K] * tile[P] * tile[Q]
    return int(words)


@kernel_call
def _spanned(outputs: int, taps: int, stride: int, dilation: int, axis: WindowAxis) -> int:
    """Count the distinct places i stride + j dilation of outputs and taps."""
    if outputs == 1 or taps == 1:
        return outputs * taps
    if stride == 1 and dilation <= outputs:
        return outputs + (taps - 1) * dilation
    if dilation == 1 and stride <= taps:
        return (outputs - 1) * stride + taps
    marks = axis.room.marks
    marks[:] = 0
    found = 0
    for i in range(outputs):
        for j in range(taps):
            place = i * stride + j * dilation
            if marks[place] == 0:
                marks[place] = 1
                found += 1
    return found


@kernel_call
def _split(
    space: LayoutSpace, order: Ints, trips: Ints, near: Ints, tile: Ints, outside: Ints, far: Ints,
    charges: Charges, axis: WindowAxis, chosen: Ints,
) -> int:  # fmt: skip
    """Let the buffer hold the loops inside some place: the fewest words from memory; -1: no room.

    Parameters
    ----------
    near
        Words of the networks.
    tile, outside, far
        Room for what is held, loops outside the buffer, words.
    chosen
        The place in the order of the loop that is split, and how often it goes on inside.
    """
    sizes = space.sizes
    fewest = -1
    for d in range(8):
        outside[d] = trips[d]
    place = len(order)
    whole = True  # the loop at `place` and those inside are held whole
    while place >= 0:
        # First nothing but the array's tile; then each loop, from the inside, in growing parts.
        most = 1
        while True:
            base = 1
            if place < len(order):
                d = order[place]
                rest = -(-trips[d] // most)
                base = tile[d]
                tile[d] = min(sizes[d], base * most)
                outside[d] = rest
            if _held(tile, sizes, axis, space, charges) > charges.buffer_words:
                whole = False
            else:
                high, wide = space.far_height[tile[P], tile[R]], space.far_width[tile[Q], tile[S]]
                _count_far(0, high, tile, axis)
                _count_far(1, wide, tile, axis)
                words_of(order, outside, high, wide, sizes, far)
                words = far[X] if charges.x_held else near[X]
                words += far[W] if charges.w_held else near[W]
                words += far[OUT] + far[IN] if charges.y_held else near[OUT] + near[IN]
                if fewest < 0 or words <= fewest:
                    fewest = words
                    chosen[0], chosen[1] = place, most
            if place == len(order):
                break
            done = rest == 1
            if done and whole:
                break
            tile[d] = base
            if done or not whole:
                break
            most = -(-trips[d] // (rest - 1))
        if not whole:
            break
        place -= 1
    return int(fewest)


@kernel_inside
def _played(
    space: LayoutSpace, machine: CycleMachine, room: Scratch, window: Ints, ones: Ints, order: Ints,
    trips: Ints, t: int, v: int, of: Ints, times: Ints, reach: Ints,
) -> int:  # fmt: skip
    """Play the steps of a layout and return its cycles."""
    sizes, n = space.sizes, 0
    for place in range(len(order)):
        d = order[place]
        if trips[d] > 1:
            of[n], times[n], reach[n] = d, trips[d], space.tiles[t, d] * space.parts[v, d]
            n += 1
    x, w, y, everywhere = 1, 1, 1, 1
    for d in range(8):
        everywhere *= space.parts[v, d]
        whole = min(sizes[d], space.tiles[t, d] * space.parts[v, d])
        if d != K:
            x *= whole
        if d not in (N, P, Q):
            w *= whole
        if d not in (C, R, S):
            y *= whole
    if not machine.x_multicast:
        x *= everywhere
    if not machine.w_multicast:
        w *= everywhere
    # No transfer takes longer.
    longest = max(
        -(-x // machine.x_words), -(-w // machine.w_words), -(-y // machine.in_words),
        -(-y // machine.out_words),
    )  # fmt: skip
    work = LayoutArrays(
        sizes, space.tiles[t], space.parts[v], ones, window, of[:n], times[:n], reach[:n],
        space.hops[v],
    )  # fmt: skip
    room.state[:] = 0
    room.counted[:] = 0
    room.again[0] = False
    return int(play(work, machine, room, 1 + longest + machine.setup, True))


@kernel_call
def _different(space: LayoutSpace, trips: Ints, seen: Ints, codes: Ints) -> int:
    """Return the set of loops with several trips, as bits; mark the orders that differ in them.

    Parameters
    ----------
    seen
        [256, orders], by set: 1 for the first of equal orders, 0 for others; -1: not yet looked at.
    codes
        [orders], room.
    """
    loops, several = space.orders.shape[1], 0
    for d in range(8):
        several += (1 << d) if trips[d] > 1 else 0
    if seen[several, 0] < 0:
        for o in range(len(space.orders)):
            code = 0
            for place in range(loops):
                if trips[space.orders[o, place]] > 1:
                    code = code * 9 + space.orders[o, place] + 1
            codes[o] = code
            seen[several, o] = 1
            for other in range(o):
                if codes[other] == code:
                    seen[several, o] = 0
                    break
    return several


@kernel_call
def _bound_orders(
    space: LayoutSpace, charges: Charges, machine: CycleMachine, best: Best, t: int, v: int,
    busy: int,
    trips: Ints, high: Ints, wide: Ints, near: Ints, seen: Ints, steps: Floats, ranks: Floats,
) -> int:  # fmt: skip
    """Bound the rank and the cycles of each order; return how many may be better than the best.

    Parameters
    ----------
    seen
        [orders], 1 for orders that differ (`_different`).
    """
    sizes = space.sizes
    y_all = sizes[N] * sizes[G] * sizes[K] * sizes[P] * sizes[Q]
    w_all = sizes[G] * sizes[K] * sizes[C] * sizes[R] * sizes[S]
    spread = 1.0
    if not machine.w_multicast:
        spread = float(space.parts[v, N] * space.parts[v, P] * space.parts[v, Q])
    # Words over the width at first; whole transfers of tiles where that does not exclude an order.
    w_once, y_once = w_all * spread / machine.w_words, y_all / machine.out_words
    whole = False
    open_ = 0
    for o in range(len(space.orders)):
        ranks[o, 0] = np.inf
        if seen[o] == 0:
            continue
        best.played[1] += 1
        _near_words(space.orders[o], trips, high, wide, v, space, machine, near)
        while True:
            steps[o] = _least(
                busy, trips, near, y_all, machine, space, v, t, w_once, y_once, space.orders[o]
            )
            _bound(steps[o], near, y_all, space, charges, ranks[o])
            if whole or not _less(ranks[o], best.rank):
                break
            whole = True
            w_once = _transfers(
                True, space.tiles[t], space.parts[v], sizes, spread, machine.w_words
            )
            y_once = _transfers(
                False, space.tiles[t], space.parts[v], sizes, 1.0, machine.out_words
            )
        if _less(ranks[o], best.rank):
            open_ += 1
        else:
            ranks[o, 0] = np.inf
    return open_


@kernel
def examine(
    space: LayoutSpace, charges: Charges, machine: CycleMachine, axis: WindowAxis, room: Scratch,
    window: Ints,
    ranks: Floats, leaves: Leaves, order: Ints, best: Best,
) -> None:  # fmt: skip
    """Play what the bounds of leaves, the lowest first, do not exclude.

    Parameters
    ----------
    order
        Of the leaves.
    ranks
        [orders, 3], room.
    """
    sizes = space.sizes
    trips, tile, outside = np.ones(8, np.int64), np.ones(8, np.int64), np.ones(8, np.int64)
    ones, reach = np.ones(8, np.int64), np.ones(8, np.int64)
    near, far, chosen = np.zeros(4, np.int64), np.zeros(4, np.int64), np.zeros(2, np.int64)
    of, times = np.zeros(8, np.int64), np.zeros(8, np.int64)
    codes, steps = np.zeros(len(space.orders), np.int64), np.zeros(len(space.orders))
    seen = np.full((256, len(space.orders)), -1, np.int64)
    rank = np.zeros(3)
    for leaf in order:
        t, v = leaves.tile[leaf], leaves.spread[leaf]
        rank[:] = leaves.rank[leaf]
        if rank[0] > best.rank[0]:
            break
        if not _less(rank, best.rank):
            continue
        at, own = space.tile_at[t], space.parts_at[v]
        high = space.height[at[P], own[P], at[R], own[R]]
        wide = space.width[at[Q], own[Q], at[S], own[S]]
        _count_sums(0, high, space.tiles[t], space.parts[v], axis)
        _count_sums(1, wide, space.tiles[t], space.parts[v], axis)
        busy = 1
        for d in range(8):
            busy *= space.busy[d, space.tile_at[t, d], space.parts_at[v, d]]
            trips[d] = -(-sizes[d] // (space.tiles[t, d] * space.parts[v, d]))
            tile[d] = min(sizes[d], space.tiles[t, d] * space.parts[v, d])
        if _held(tile, sizes, axis, space, charges) > charges.buffer_words:
            continue
        open_ = _bound_orders(
            space, charges, machine, best, t, v, busy, trips, high, wide, near,
            seen[_different(space, trips, seen, codes)], steps, ranks,
        )  # fmt: skip
        for _ in range(open_):
            o = 0
            for other in range(1, len(space.orders)):
                if _less(ranks[other], ranks[o]):
                    o = other
            if not _less(ranks[o], best.rank):
                break
            rank[:] = ranks[o]
            ranks[o, 0] = np.inf
            _near_words(space.orders[o], trips, high, wide, v, space, machine, near)
            for d in range(8):
                tile[d] = min(sizes[d], space.tiles[t, d] * space.parts[v, d])
            words = _split(
                space, space.orders[o], trips, near, tile, outside, far, charges, axis, chosen
            )
            if words < 0:
                continue
            near_words = near[X] + near[W] + near[OUT] + near[IN]
            _rank(steps[o], near_words, words, charges, rank)
            if not _less(rank, best.rank):
                continue
            cycles = _played(
                space, machine, room, window, ones, space.orders[o], trips, t, v, of, times, reach
            )
            best.played[0] += 1
            _rank(float(cycles), near_words, words, charges, rank)
            if _less(rank, best.rank):
                best.rank[:] = rank
                best.chosen[0], best.chosen[1], best.chosen[2] = t, v, o
                best.chosen[3], best.chosen[4] = chosen[0], chosen[1]


@kernel_call
def _near_words(
    order: Ints, trips: Ints, high: Ints, wide: Ints, v: int, space: LayoutSpace,
    machine: CycleMachine,
    near: Ints,
) -> None:  # fmt: skip
    words_of(order, trips, high, wide, space.sizes, near)
    if not machine.x_multicast:
        near[X] *= space.parts[v, K]
    if not machine.w_multicast:
        near[W] *= space.parts[v, N] * space.parts[v, P] * space.parts[v, Q]


@kernel_call
def _least(
    busy: int, trips: Ints, near: Ints, y_all: int, machine: CycleMachine, space: LayoutSpace,
    v: int, t: int,
    w_once: float, y_once: float, order: Ints,
) -> float:  # fmt: skip
    """Bound the cycles with an order of the loops.

    Parameters
    ----------
    w_once, y_once
        Cycles of the networks for each tile once.
    """
    sizes = space.sizes
    w_all = sizes[G] * sizes[K] * sizes[C] * sizes[R] * sizes[S]
    w_tile = 1.0
    for d in (G, K, C, R, S):
        w_tile *= min(sizes[d], space.tiles[t, d] * space.parts[v, d])
    if not machine.w_multicast:
        spread = space.parts[v, N] * space.parts[v, P] * space.parts[v, Q]
        w_all *= spread
        w_tile *= spread
    w_again, y_again = near[W] // w_all, near[OUT] // y_all
    w_times = float(trips[G] * trips[K] * trips[C] * trips[R] * trips[S] * w_again)
    x_times = float(trips[N] * trips[G] * trips[C] * trips[P] * trips[Q] * trips[R] * trips[S])
    y_times = float(trips[N] * trips[G] * trips[K] * trips[P] * trips[Q] * y_again)
    # Where x moves on with w alone, what it takes beyond w is not hidden either.
    together, w_inside, x_inside, x_again = True, False, False, 1
    for place in range(len(order) - 1, -1, -1):
        d = order[place]
        if trips[d] > 1:
            if d in (N, P, Q):
                together = together and w_inside
            else:
                w_inside = True
            if d == K:
                x_again = trips[K] if x_inside else 1
            else:
                x_inside = True
    x_times *= x_again
    beside = 0.0
    if together:
        w_most = np.ceil(w_tile / machine.w_words)
        beside = max(0.0, near[X] / machine.x_words - x_times * w_most)
    return _cycles(
        float(busy), float(near[X]), w_once * w_again,
        max(y_once * y_again, near[IN] / machine.in_words), x_times, w_times, y_times,
        space.hops[v], beside, machine,
    )  # fmt: skip


@kernel_part
def _bound(
    cycles: float, near: Ints, y_all: int, space: LayoutSpace, charges: Charges, rank: Floats
) -> None:
    sizes = space.sizes
    far = 0.0
    if not charges.x_held:
        far += near[X]
    if charges.w_held:
        far += sizes[G] * sizes[K] * sizes[C] * sizes[R] * sizes[S]
    else:
        far += near[W]
    far += y_all if charges.y_held else near[OUT] + near[IN]
    _rank(cycles, near[X] + near[W] + near[OUT] + near[IN], far, charges, rank)
