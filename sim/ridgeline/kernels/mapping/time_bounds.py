"""Lower bounds on the time of tilings, from the quickest to the closest.

Computing is bounded in three ways, each closer and dearer than the one before: all
multiply-accumulates at the peak (`peak_s`), the folds of all tiles (`compute.least_s`), and every
kind of tile in its own fastest way (`write_tiles_s`). With nearer levels of buffers a tile is cut
further, so that the last of them is no bound; what nearer levels need for the tiles is one instead.
"""

from __future__ import annotations

import numpy as np

from ridgeline._jit import kernel_call, kernel_part
from ridgeline.kernels.mapping.compute import PHASE_S, TileEngine, tile_cost
from ridgeline.kernels.mapping.footprint import Floats, Ints
from ridgeline.kernels.mapping.mapping import FAR
from ridgeline.kernels.mapping.pipeline import (
    BATCH,
    HAS,
    TIME,
    A,
    B,
    BufferLevel,
    C,
    Goal,
    K,
    M,
    N,
    Shape,
    key_of,
)
from ridgeline.kernels.mapping.space import ALL, LARGEST, NEW_OF_C, PASSING, Bounded, TilingSpace
from ridgeline.kernels.mapping.tilings import (
    LEFT_TILES,
    SUM_POINTS,
    TILES,
    WHOLE_POINTS,
    WHOLE_SPAN,
    WHOLE_TILES,
)

# What computing takes: of all tiles, then of those that are followed by a turn of m, n or k if that
# is the innermost loop.
OF_ALL, BEFORE_TURN = 0, 1
COMPUTING_FIELDS = 4


@kernel_part
def bound_of(i: int, fitting: Bounded, computing: Floats, level: BufferLevel, goal: Goal) -> float:
    """Least time of combination `i`, least energy, that of moving data and of that time, or both.

    Parameters
    ----------
    computing
        [COMPUTING_FIELDS], seconds; 0 for those before turns where they are not known.
    """
    port_s = fitting.moved[i] * level.byte_s
    if fitting.between[i] == PASSING:  # the arrays read those bytes while they compute
        if level.double:
            share = 1.0 if level.shared_port else 0.5
            bound = max(fitting.ends_s[i] + computing[OF_ALL], share * port_s)
        else:
            kept_s = (fitting.moved[i] - fitting.turning[i]) * level.byte_s
            bound = max(computing[OF_ALL] + kept_s, port_s)
    elif not level.double:
        bound = computing[OF_ALL] + port_s
    else:
        share = 1.0 if level.shared_port else 0.5
        byte_s, turned_s = share * level.byte_s, computing[BEFORE_TURN + (fitting.names[i] & 3)]
        bound = max(fitting.ends_s[i] + computing[OF_ALL], share * port_s)
        if turned_s > 0.0:
            stalled = max(0.0, fitting.turning[i] * byte_s - turned_s)
            stalled += max(0.0, fitting.between[i] * byte_s - (computing[OF_ALL] - turned_s))
            bound = max(bound, fitting.ends_s[i] + computing[OF_ALL] + stalled)
    # All that comes from behind passes the level's ports, and the arrays read it there again.
    bound = max(bound, fitting.moved[i] * level.slowest_s)
    if goal.of == TIME:
        return float(bound)
    return key_of(bound, fitting.moved[i] * level.byte_j + bound * level.idle_w, goal)


@kernel_call
def peak_s(macs: float, engine: TileEngine) -> float:
    """Seconds that multiply-accumulates take if no cell of any array ever waits."""
    if len(engine.ways) == 0:
        return float(macs * engine.mac_s)
    cells = engine.rows * engine.columns * most_arrays(engine)
    return float(macs / cells * engine.cycle_s + engine.drain_s)


@kernel_call
def most_arrays(engine: TileEngine) -> int:
    """Arrays that a tile can use."""
    most = 1
    for i in range(engine.fastest):
        parts = engine.divisions[i]
        most = max(most, parts[0] * parts[1] * parts[2] * parts[3])
    return int(most)


@kernel_call
def write_tiles_s(
    chosen: Ints, sums: Floats, shape: Shape, level: BufferLevel, engine: TileEngine, cost: Floats,
    busy_s: Floats, computing: Floats,
) -> None:  # fmt: skip
    """Write the seconds of tiles, each in its own fastest way.

    Besides what the arrays read and write, only results count that share a port with what they
    read from behind the level. Near padding a tile of an image reads less: all count as the one
    that reads least.

    Parameters
    ----------
    cost, busy_s
        [COST_FIELDS] and [PORTS], room to work in.
    computing
        [COMPUTING_FIELDS], the result.
    """
    computing[:] = 0.0
    final = 0  # the kind that the last tile is of
    for axis in range(4):
        if sums[chosen[axis], LEFT_TILES] > 0.0:
            final += 1 << axis
    store_s = _store_s(final, chosen, sums, shape, level)
    for kind in range(16):
        if kind & ~final:  # nothing is left over along some axis
            continue
        tiles = 1.0
        for axis in range(4):
            tiles *= sums[chosen[axis], WHOLE_TILES + 2 * (kind >> axis & 1)]
        if tiles == 0.0:
            continue
        busy_s[FAR] = 0.0
        alone_s = _tile_s(kind, chosen, sums, False, shape, level, engine, cost, busy_s)
        computing[OF_ALL] += tiles * alone_s
        for axis in range(M, K + 1):
            part = sums[chosen[axis], WHOLE_TILES + 2 * (kind >> axis & 1)]
            followed = part - (1.0 if (kind ^ final) >> axis & 1 == 0 else 0.0)
            computing[BEFORE_TURN + axis - M] += tiles / part * followed * alone_s
        if kind == final:
            last_s = _tile_s(kind, chosen, sums, True, shape, level, engine, cost, busy_s)
            computing[OF_ALL] += last_s - alone_s
        if store_s > 0.0 and not kind >> K & 1:
            # While the first part of a sum is computed the sum before it goes out; not during the
            # first tile of all, and the last one is counted above.
            storing = tiles / sums[chosen[K], WHOLE_TILES]
            storing -= (1.0 if kind == 0 else 0.0) + (1.0 if kind == final else 0.0)
            if storing > 0.0:
                busy_s[FAR] = store_s
                both_s = _tile_s(kind, chosen, sums, False, shape, level, engine, cost, busy_s)
                computing[OF_ALL] += storing * (both_s - alone_s)


@kernel_part
def _store_s(final: int, chosen: Ints, sums: Floats, shape: Shape, level: BufferLevel) -> float:
    """Seconds in which a tile of results goes out at least, if the arrays read there meanwhile."""
    ports = level.ports
    if (
        not level.double
        or ports.of[C] == FAR
        or level.held[C]
        or FAR not in (ports.of[A], ports.of[B])
    ):
        return 0.0
    least = np.inf
    for kind in range(8):
        if not kind & ~final:
            least = min(least, _read(C, kind, chosen, sums, shape))
    width = min(shape.width[2], shape.width[3]) / shape.width[3]
    return float(least * width * level.byte_s)


@kernel_call
def _tile_s(
    kind: int, chosen: Ints, sums: Floats, last: bool, shape: Shape, level: BufferLevel,
    engine: TileEngine,
    cost: Floats, busy_s: Floats,
) -> float:  # fmt: skip
    """Seconds of a tile that is whole (bit 0) or what is left over (bit 1) along each axis."""
    tile_cost(
        int(sums[chosen[BATCH], WHOLE_SPAN + 2 * (kind & 1)]),
        int(sums[chosen[M], WHOLE_SPAN + 2 * (kind >> 1 & 1)]),
        int(sums[chosen[N], WHOLE_SPAN + 2 * (kind >> 2 & 1)]),
        int(sums[chosen[K], WHOLE_SPAN + 2 * (kind >> 3 & 1)]),
        (
            _read(A, kind, chosen, sums, shape), _read(B, kind, chosen, sums, shape),
            _read(C, kind, chosen, sums, shape),
        ),
        last, engine, level.ports, busy_s, (0.0, 0.0, 0.0, 0.0), cost,
    )  # fmt: skip
    return float(cost[PHASE_S])


@kernel_part
def _read(operand: int, kind: int, chosen: Ints, sums: Floats, shape: Shape) -> float:
    """Bytes of a tile's operand at least; of c as partial sums."""
    bytes_ = shape.elements[operand] * shape.width[3 if operand == C else operand]
    for axis in range(4):
        if HAS[operand, axis]:
            part = WHOLE_POINTS + 2 * (kind >> axis & 1) + (shape.touches[operand, axis] > 0)
            bytes_ *= sums[chosen[axis], part]
    return float(bytes_)


@kernel_call
def _bytes_once(chosen: Ints, space: TilingSpace, shape: Shape) -> float:
    """Bytes of all tiles if none stays in place from one turn to the next."""
    once, new = 0.0, shape.elements[C]
    for axis in range(4):
        new *= space.factors[chosen[axis], NEW_OF_C]
    for operand in range(3):
        words = shape.elements[operand]
        for axis in range(4):
            words *= space.factors[chosen[axis], ALL + operand]
            if not HAS[operand, axis]:
                words *= space.table[chosen[axis], TILES]
        once += words * (2.0 * shape.width[3] if operand == C else shape.width[operand])
    once -= 0.0 if shape.begun else new * shape.width[3]
    return float(once - new * (shape.width[3] - shape.width[2]) if shape.ended else once)


@kernel_call
def nearer_s(chosen: Ints, space: TilingSpace, shape: Shape, nearer: Floats) -> float:
    """Seconds that nearer buffers need at least for what all tiles move.

    Every tile passes a nearer level once at least. Of matrix products more is known: tiles of
    extents m, n, k there, with c in place while k passes, have m n s <= S, where s is the width of
    a sum, doubled if c changes and so has two buffers, and S is the capacity. Then a tile of M, N,
    K moves at least M N K (a / n + b / m) >= 2 M N K sqrt(a b s / S) bytes of elements of a and b
    bytes; where another operand stays in place it is more, sums being written and read.

    Parameters
    ----------
    nearer
        [levels, 3], seconds per byte, capacity, 1 if buffers are double.
    """
    least, once = 0.0, _bytes_once(chosen, space, shape)
    product = True
    for operand in range(3):
        product = product and shape.elements[operand] == 1.0
        for axis in range(4):
            product = product and shape.touches[operand, axis] == 0
    for i in range(len(nearer)):
        byte_s, capacity = nearer[i, 0], nearer[i, 1]
        bytes_ = once
        if product:
            macs, copies, new = 1.0, 2.0, 2.0 * shape.width[3]
            for axis in range(4):
                macs *= space.sums[chosen[axis], SUM_POINTS]
                new *= space.factors[chosen[axis], NEW_OF_C]
            for operand in range(3):
                size = shape.width[3 if operand == C else operand]
                for axis in range(4):
                    size *= space.factors[chosen[axis], LARGEST + operand]
                if size <= capacity or nearer[i, 2] == 0.0:
                    copies = 1.0
            widths = shape.width[0] * shape.width[1] * shape.width[3]
            bytes_ = max(bytes_, 2.0 * macs * np.sqrt(copies * widths / capacity) - new)
        least = max(least, bytes_ * byte_s)
    return float(least)
