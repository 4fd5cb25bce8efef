"""One tiling and loop order of a matrix product: its time, stalls, traffic and energy.

The tiles of the outer level run through the buffers of the inner one in closed form; the sum over
tiles runs over representatives (`tilings`), each as often as it stands for a tile, so that its cost
does not grow with the number of tiles.

A level's tiles i = 1..n are loaded from the level behind, computed, and their results stored.
With `inputs` buffers for what is loaded and `outputs` for what is stored (1: single, 2: double),

    loaded_i   = max(port, done_{i - inputs}) + load_i
    done_i     = max(loaded_i, done_{i-1}, stored_{i - outputs}) + compute_i
    stored_i   = max(port, done_i) + store_i

where `port` is when the last transfer of the same direction ended or, if loads and stores share one
port, the last transfer of either. A shared port takes them in the order in which they are asked
for: when tile i is done, its input buffer becomes free for load i + inputs, and store i follows
that load. This is a recurrence in maxima and sums. With two buffers each and one shared port it has
a closed form. Let start_i be when tile i begins to be computed: everything asked for before has
left the port by then, so

    start_{i+1} = start_i + max(compute_i, load_{i+1} + store_{i-1})

and the whole takes load_1 + sum_i max(compute_i, load_{i+1} + store_{i-1}) + store_n. What exceeds
the computing, less the first load and the last store, is the steady stall: it is zero if and only
if the load of each tile's successor and the store of its predecessor fit under its computing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray

from ridgeline._jit import kernel_call, kernel_inside, kernel_part
from ridgeline.kernels.mapping.compute import (
    COST_FIELDS,
    CYCLES_S,
    PASSES,
    PHASE_S,
    PORTS,
    SECONDS,
    WAY_USED,
    Ports,
    TileEngine,
    tile_cost,
)
from ridgeline.kernels.mapping.footprint import Floats, Ints
from ridgeline.kernels.mapping.mapping import FAR
from ridgeline.kernels.mapping.tilings import (
    BEFORE,
    BEGIN,
    END,
    FIRST,
    LAST,
    NEW,
    NEXT,
    POINTS,
    SELF,
    SPAN,
    TILES,
    TOUCHED,
    WEIGHT,
)

Bools = NDArray[np.bool_]

BATCH, M, N, K = range(4)
A, B, C = range(3)
HAS = np.array([[1, 1, 0, 1], [1, 0, 1, 1], [1, 1, 1, 0]], np.int64)
"""[operand, axis]: whether the operand has the axis."""
AXES = np.array([[0, 1, 3], [0, 2, 3], [0, 1, 2]], np.int64)
"""[operand, 3]: the axes that it has."""

# What `evaluate` finds: seconds, joules of moving data and of waiting, bytes behind the level; then
# words loaded and stored, and results among them; bytes between the arrays and the level before
# them; how the first tile is computed; seconds of the arrays and the ports that they wait for, and
# of the arrays alone. Then, of every nearer border, words loaded and stored, and results among
# them.
TIME, COMPUTE, FIRST_LOAD, LAST_STORE, ENERGY, TRAFFIC = range(6)
LOAD_A, LOAD_B, LOAD_C, STORED, RESULTS, NEAR_A, NEAR_B, NEAR_C, WAY, ENGINE, CYCLES = range(6, 17)
FOUND_FIELDS = 17
BORDER_FIELDS = 5
"""LOAD_A to RESULTS of a nearer border."""


class BufferLevel(NamedTuple):
    """The buffers that tiles stay in, and the way between them and the level behind.

    Attributes
    ----------
    capacity
        Bytes for a, b, c alone, then of each buffer that operands share (by its port); inf where
        there is no limit.
    double
        Whether a tile can be loaded, and one stored, while another one is computed.
    shared_port
        Whether loads and stores take turns.
    byte_s, latency_s
        Of a transfer from or to the level behind.
    ports
        Of the level's own buffers. Transfers from and to the level behind pass them, and what the
        arrays or nearer buffers read and write. Operands with the port `FAR` are not kept here.
    held
        [operand], 1 for what an op before has left here, or one behind will find here: it is not
        loaded or stored.
    behind_j, near_j
        [operand], joules per byte at the level behind, and at this one.
    idle_w
        Watts that time costs.
    byte_j, slowest_s
        What a byte costs in joules over the border at least, and what it takes of the ports at
        least where all operands share one.
    """

    capacity: Floats
    double: bool
    shared_port: bool
    byte_s: float
    latency_s: float
    ports: Ports
    held: Ints
    behind_j: Floats
    near_j: Floats
    idle_w: float
    byte_j: float
    slowest_s: float


class Goal(NamedTuple):
    """What is searched for: `TIME`, `ENERGY`, or their product `EDP`.

    Attributes
    ----------
    time_s, energy_j
        That come on top of what a mapping takes, whichever it is: they count for the product.
    """

    of: int
    time_s: float
    energy_j: float


EDP = -1
FASTEST = Goal(TIME, 0.0, 0.0)


def key_of(time_s: float, energy_j: float, goal: Goal) -> float:
    """Return what is to be least: seconds, joules, or joule-seconds."""
    if goal.of == TIME:
        return time_s
    if goal.of == ENERGY:
        return energy_j
    return (time_s + goal.time_s) * (energy_j + goal.energy_j)


register_jitable(key_of)  # kernels call it, and Python does


def weights_of(goal: Goal) -> Floats:
    """Return the weights of seconds and joules that tiles are computed by; a product's first."""
    return np.array([0.0, 1.0]) if goal.of == ENERGY else np.array([1.0, 0.0])


register_jitable(weights_of)


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
    begun, ended
        Whether all of c are partial sums before, and whether they are results afterwards.
    """

    touches: Ints
    elements: Floats
    width: Floats
    begun: bool
    ended: bool


@kernel_inside
def evaluate(  # noqa: PLR0915 - calls with arrays cost more than what they would do
    chosen: Ints, order: Ints, table: Ints, tiles: Floats, shape: Shape, level: BufferLevel,
    engine: TileEngine, weights: Floats, inner: Floats, found: Floats,
) -> None:  # fmt: skip
    """Play a tiling and loop order: the one evaluator of all mappings.

    While a tile is computed the next one is loaded and the one before is stored. That phase takes
    the longest of the arrays, the transfers from and to the level behind, and each port of the
    level, which passes those transfers as well as what the arrays read and write. Where nearer
    buffers read and write instead, shares of the port are set aside for both (`device`).

    Parameters
    ----------
    chosen
        [axis], rows of `table`.
    order
        [4], axes of the loops from the outermost to the innermost.
    weights
        [2], of seconds and of joules: each tile is computed in the way with the least of both
        together; of joules 0: in the fastest.
    inner
        What the tiles find in turn, where there are nearer buffers: a row for each combination of
        their representatives, the last axis innermost. Without rows the engine computes them.
    found
        [FOUND_FIELDS + BORDER_FIELDS * nearer borders], the result.
    """
    changed = np.zeros((3, 4), np.bool_)
    turn_of_k = _changes(order, chosen, table, changed)
    columns = np.empty((4, 3), np.int64)
    _columns(shape, columns)
    costs, size = np.empty((17, COST_FIELDS + 3 + PORTS)), np.empty((3, 4))
    moved, busy_s = np.empty(3), np.zeros(PORTS)  # of a phase: bytes by operand, seconds by port
    limit = level.ports.limit
    price = (0.0, 0.0, 0.0, 0.0)
    if weights[1] > 0.0:
        near_j = (_near_j(A, level), _near_j(B, level), _near_j(C, level))
        price = (
            weights[1] * near_j[0], weights[1] * near_j[1], weights[1] * near_j[2],
            weights[0] + weights[1] * level.idle_w,
        )  # fmt: skip
    costs[:, SECONDS] = np.nan
    # Rows of `tiles` for each axis, and shift of the column: of the tile before, itself, the next.
    row, shift = np.empty((3, 4), np.int64), np.empty((3, 4), np.int64)
    begin, last = np.empty(4, np.int64), np.empty(4, np.int64)
    for axis in range(4):
        begin[axis], last[axis] = table[chosen[axis], BEGIN], table[chosen[axis], END] - 1
        row[SELF, axis] = begin[axis]
    found[:] = 0.0
    while True:
        weight = 1.0
        after = before = -1  # the loops whose turn leads to the next tile, and led to this one
        for i in range(4):
            axis = order[i]
            weight *= tiles[row[SELF, axis], WEIGHT]
            after = after if tiles[row[SELF, axis], LAST] else i
            before = before if tiles[row[SELF, axis], FIRST] else i
        for i in range(4):
            axis = order[i]
            row[BEFORE, axis] = last[axis] if i > before else row[SELF, axis]
            row[NEXT, axis] = begin[axis] if i > after else row[SELF, axis]
            shift[BEFORE, axis] = BEFORE if i == before else SELF
            shift[SELF, axis] = SELF
            shift[NEXT, axis] = NEXT if i == after else SELF
        for part in range(4):
            size[SELF, part] = _words(part, row[SELF], shift[SELF], columns, tiles, shape)
            operand = min(part, C)
            if after >= 0 and changed[operand, after]:
                size[NEXT, part] = _words(part, row[NEXT], shift[NEXT], columns, tiles, shape)
            if before >= 0 and operand == C and changed[C, before]:
                size[BEFORE, part] = _words(part, row[BEFORE], shift[BEFORE], columns, tiles, shape)
        if before < 0:
            _load(size[SELF], True, changed[:, 0], shape.begun, 1.0, shape, level, moved, found)
            found[TIME] += found[FIRST_LOAD]
        load_s = store_s = 0.0
        moved[:] = 0.0
        if after >= 0:
            again = turn_of_k == after or (turn_of_k < after and not tiles[row[SELF, K], FIRST])
            again = again or shape.begun
            load_s = _load(
                size[NEXT], False, changed[:, after], again, weight, shape, level, moved, found
            )
        if before >= 0 and changed[C, before]:
            whole = turn_of_k > before or (turn_of_k < before and tiles[row[SELF, K], LAST] > 0)
            whole = whole and shape.ended
            store_s = _store(size[BEFORE], whole, weight, shape, level, moved, found)
        if limit and level.double:
            busy_s[:] = 0.0
            for operand in range(3):
                port = level.ports.of[operand]
                busy_s[port] += moved[operand] * level.ports.byte_s[port]
        if level.double:
            busy_s[FAR] = load_s + store_s if level.shared_port else max(load_s, store_s)
        if len(inner):
            at = 0
            for axis in range(4):
                at = at * (last[axis] + 1 - begin[axis]) + row[SELF, axis] - begin[axis]
            compute_s = phase_s = _descend(inner[at], weight, level, found)
        else:
            kind = 16
            if after >= 0:
                kind = 0
                for axis in range(4):
                    kind = 2 * kind + (tiles[row[SELF, axis], SPAN] != tiles[begin[axis], SPAN])
            cost = costs[kind]
            if _is_new(cost, size[SELF], busy_s, limit, weights[1] > 0.0):
                _compute(
                    after < 0, row[SELF], tiles, size[SELF], shape, level, engine, busy_s, price,
                    cost,
                )  # fmt: skip
            if before < 0:
                found[WAY] = cost[WAY_USED]
            for operand in range(3):
                wide = 2.0 * shape.width[3] if operand == C else shape.width[operand]
                found[NEAR_A + operand] += (
                    weight * size[SELF, operand] * wide * cost[PASSES + operand]
                )
            compute_s, phase_s = cost[SECONDS], cost[PHASE_S]
            found[CYCLES] += weight * cost[CYCLES_S]
        found[COMPUTE] += weight * compute_s
        if not level.double:
            found[TIME] += weight * (compute_s + load_s + store_s)
        elif level.shared_port:
            found[TIME] += weight * max(phase_s, load_s + store_s)
        else:
            found[TIME] += weight * max(phase_s, load_s, store_s)
        if after < 0:
            found[LAST_STORE] = _store(size[SELF], shape.ended, 1.0, shape, level, moved, found)
            found[TIME] += found[LAST_STORE]
        i = 3
        while i >= 0:
            axis = order[i]
            row[SELF, axis] += 1
            if row[SELF, axis] <= last[axis]:
                break
            row[SELF, axis] = begin[axis]
            i -= 1
        if i < 0:
            break
    if not level.shared_port:  # each has the level's bandwidth, both together no more than it
        found[TIME] = max(found[TIME], found[TRAFFIC] * level.byte_s)
    if len(inner) == 0:
        # The first of the updates of a new sum reads nothing, and the last one writes a result.
        new = found[STORED] - found[LOAD_C]
        found[NEAR_C] -= new * shape.width[3] + found[RESULTS] * (shape.width[3] - shape.width[2])
        found[ENGINE] = found[COMPUTE]
        for operand in range(3):
            found[ENERGY] += found[NEAR_A + operand] * _near_j(operand, level)
    if not _moves(C, level):
        found[LOAD_C] = found[STORED] = 0.0  # the words of the arrays are all that move
    for operand in range(3):
        if not _moves(operand, level):
            continue
        bytes_ = _border_bytes(operand, found, LOAD_A, shape)
        found[ENERGY] += bytes_ * (level.behind_j[operand] + level.near_j[operand])
    found[ENERGY] += found[TIME] * level.idle_w


@kernel_part
def _moves(operand: int, level: BufferLevel) -> bool:
    """Tell whether tiles of an operand come from the level behind and go there."""
    return bool(level.ports.of[operand] != FAR and level.held[operand] == 0)


@kernel_part
def _near_j(operand: int, level: BufferLevel) -> float:
    """Joules per byte that the arrays read or write: where the operand is kept, or behind."""
    passes_by = level.ports.of[operand] == FAR
    return float(level.behind_j[operand] if passes_by else level.near_j[operand])


@kernel_part
def _border_bytes(operand: int, words: Floats, at: int, shape: Shape) -> float:
    """Bytes of an operand over a border whose words stand from `at` on."""
    if operand < C:
        return float(words[at + operand] * shape.width[operand])
    results = words[at + RESULTS - LOAD_A]
    sums = words[at + C] + words[at + STORED - LOAD_A] - results
    return float(sums * shape.width[3] + results * shape.width[2])


@kernel_part
def _words(part: int, row: Ints, shift: Ints, columns: Ints, tiles: Floats, shape: Shape) -> float:
    """Elements of one part of a tile: of a, b, c, or those that are new of c."""
    operand = min(part, C)
    product = shape.elements[operand]
    for i in range(3):
        axis = AXES[operand, i]
        product *= tiles[row[axis], columns[part, i] + shift[axis]]
    return float(product)


@kernel_call
def _descend(tile: Floats, weight: float, level: BufferLevel, found: Floats) -> float:
    """Add up what a tile finds in nearer buffers; return its seconds."""
    found[ENERGY] += weight * (tile[ENERGY] - tile[TIME] * level.idle_w)
    found[ENGINE] += weight * tile[ENGINE]
    found[CYCLES] += weight * tile[CYCLES]
    for i in range(3):
        found[NEAR_A + i] += weight * tile[NEAR_A + i]
    for i in range(BORDER_FIELDS):
        found[FOUND_FIELDS + i] += weight * tile[LOAD_A + i]
    for i in range(FOUND_FIELDS, len(tile)):
        found[BORDER_FIELDS + i] += weight * tile[i]
    return float(tile[TIME])


@kernel_call
def _changes(order: Ints, chosen: Ints, table: Ints, changed: Bools) -> int:
    """Write whether a tile changes when loop i takes a turn; return where k's loop is."""
    for operand in range(3):
        does = False
        for i in range(3, -1, -1):
            does = does or (HAS[operand, order[i]] and table[chosen[order[i]], TILES] > 1)
            changed[operand, i] = does
    at = 0
    for i in range(4):
        at = i if order[i] == K else at
    return at


@kernel_call
def _columns(shape: Shape, columns: Ints) -> None:
    """Write the columns of `tiles` that make up a, b, c, and what is new of c."""
    for part in range(4):
        operand = min(part, C)
        for i in range(3):
            columns[part, i] = POINTS
            if shape.touches[operand, AXES[operand, i]]:
                columns[part, i] = NEW if part > C else TOUCHED


@kernel_call
def _load(
    size: Floats, first: bool, changed: Bools, again: bool, weight: float, shape: Shape,
    level: BufferLevel, moved: Floats, found: Floats,
) -> float:  # fmt: skip
    """Seconds of a load; `again`: all elements of c have partial sums, not only those of others."""
    load = 0.0
    for operand in range(2):
        if (changed[operand] or first) and _moves(operand, level):
            found[LOAD_A + operand] += weight * size[operand]
            moved[operand] += size[operand] * shape.width[operand]
            load += size[operand] * shape.width[operand]
    if changed[C] or first:
        words = size[C] if again else size[C] - size[C + 1]
        found[LOAD_C] += weight * words
        if _moves(C, level):
            moved[C] += words * shape.width[3]
            load += words * shape.width[3]
    found[TRAFFIC] += weight * load
    seconds = load * level.byte_s + level.latency_s if load > 0.0 else 0.0
    if first:
        found[FIRST_LOAD] = seconds
    return seconds


@kernel_call
def _store(
    size: Floats, whole: bool, weight: float, shape: Shape, level: BufferLevel, moved: Floats,
    found: Floats,
) -> float:  # fmt: skip
    """Seconds in which a tile of results goes out; those that are complete have their own width.

    Of tiles that overlap, each element is complete once; that the first tile with it counts for
    this and not the last one makes no difference to the sum.
    """
    final = size[C + 1] if whole else 0.0
    store = final * shape.width[2] + (size[C] - final) * shape.width[3]
    found[STORED] += weight * size[C]
    found[RESULTS] += weight * final
    if not _moves(C, level):  # the arrays write it there themselves, or it stays
        return 0.0
    moved[C] += store
    found[TRAFFIC] += weight * store
    return store * level.byte_s + level.latency_s if store > 0.0 else 0.0


@kernel_call
def _is_new(cost: Floats, size: Floats, busy_s: Floats, limit: bool, priced: bool) -> bool:
    """Tell whether a tile of this kind costs something else than the last one, or is the first.

    Tiles of equal extents differ where padding leaves less to be read, or where more passes the
    ports meanwhile, if that can be the limit.
    """
    if np.isnan(cost[SECONDS]):
        return True
    different = False
    if limit:
        for operand in range(3):
            different = different or cost[COST_FIELDS + operand] != size[operand]
    if limit or priced:
        for port in range(PORTS):
            different = different or cost[COST_FIELDS + 3 + port] != busy_s[port]
    return bool(different)


@kernel_call
def _compute(
    last: bool, row: Ints, tiles: Floats, size: Floats, shape: Shape, level: BufferLevel,
    engine: TileEngine,
    busy_s: Floats, price: tuple[float, float, float, float], cost: Floats,
) -> None:  # fmt: skip
    """Find the best way to compute a tile."""
    for operand in range(3):
        cost[COST_FIELDS + operand] = size[operand]
    for port in range(PORTS):
        cost[COST_FIELDS + 3 + port] = busy_s[port]
    moved = (size[A] * shape.width[A], size[B] * shape.width[B], size[C] * shape.width[3])
    tile_cost(
        int(tiles[row[BATCH], SPAN]), int(tiles[row[M], SPAN]), int(tiles[row[N], SPAN]),
        int(tiles[row[K], SPAN]), moved, last, engine, level.ports, busy_s, price, cost,
    )  # fmt: skip
