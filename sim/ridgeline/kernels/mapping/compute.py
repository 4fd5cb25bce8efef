"""How long the arrays of a device compute one tile, and what they read and write meanwhile.

Tiles follow each other on the arrays as the products of a batch do: every tile but the last hands
the array on, so that it costs what one more product in a batch costs; the last one costs what it
costs alone, fill and drain included. Each tile is divided among the arrays, and laid out on them,
in the fastest way that the device can do. The formulas are those of `systolic.closed_form`, here
compiled.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numba.extending import register_jitable

from ridgeline._jit import kernel_call, kernel_part
from ridgeline.kernels.mapping.footprint import Floats, Ints
from ridgeline.kernels.mapping.mapping import FAR
from ridgeline.kernels.mapping.tilings import LEFT_TILES, WHOLE_SPAN, WHOLE_TILES
from ridgeline.kernels.systolic import closed_form
from ridgeline.kernels.systolic.closed_form import folds, following, layout, serial
from ridgeline.kernels.systolic.partition import Arrays, divisions, splits

for _formula in (folds, following, serial, closed_form._shift, closed_form._join):
    register_jitable(_formula)

# Columns of a way to work: axes (of m, n, k) along rows, columns and time; flags; latencies.
DOWN, ACROSS, TIME, STATIONARY, SERIAL, OVERLAPPED, FULL, HOP_ROW, HOP_COLUMN, MAC = range(10)


class TileEngine(NamedTuple):
    """What computes tiles.

    Attributes
    ----------
    ways
        [ways, 10], see the columns above; none if `mac_s` counts.
    divisions
        [divisions, 4], parts along batch, m, n, k.
    fastest
        How many of them, the first ones, can take the fewest cycles.
    rows, columns
        Of one array.
    cycle_s
        Time of a cycle, longer for formats that take several.
    hop_cycles, words_per_cycle
        Between arrays; for divisions of k.
    multicast
        Whether what several arrays want is read from the nearest memory once for all of them.
    mac_s
        Without ways: a tile takes this for each of its multiply-accumulates.
    drain_s
        What the last tile takes more than the others, at least.
    """

    ways: Ints
    divisions: Ints
    fastest: int
    rows: int
    columns: int
    cycle_s: float
    hop_cycles: int
    words_per_cycle: float
    multicast: bool
    mac_s: float
    drain_s: float


class Ports(NamedTuple):
    """The ports through which the arrays read a and b, and write and read c.

    Attributes
    ----------
    of
        [operand], the port of each: a buffer of its own, one that it shares, or `FAR`, where it
        passes the buffers by.
    byte_s
        [PORTS], seconds per byte; 0 if a port never is the limit.
    limit
        Whether any of them can be the limit.
    """

    of: Ints
    byte_s: Floats
    limit: bool


PORTS = FAR + 1
NO_J = np.zeros(3)


@lru_cache(maxsize=256)
def _ways(arrays: Arrays) -> tuple[Ints, Ints, int, int]:
    """Ways, divisions, how many of these can be fastest, and the least cycles to fill and drain."""
    ways, drains = [], []
    for how in arrays.schedules:
        position = dict(zip(layout(how.dataflow, 0, 1, 2), range(3), strict=True))
        ways.append(
            (
                *position, how.dataflow == "os", how.fold == "serial", how.fold == "overlapped",
                how.edge == "full", how.hop_row, how.hop_col, how.mac_latency,
            )
        )  # fmt: skip
        one, two = (
            closed_form.spans(1, 1, 1, batch, arrays.rows, arrays.columns, how, max).total()
            for batch in (1, 2)
        )
        drains.append(one - (two - one))
    of = arrays.number, arrays.network is not None
    table = np.array(divisions(*of), np.int64)
    return np.array(ways, np.int64), table, len(splits(*of)), min(drains)


def systolic_engine(arrays: Arrays, cycle_s: float) -> TileEngine:
    """Describe systolic arrays."""
    ways, divisions_, fastest, drain = _ways(arrays)
    hop, words = (0, 1.0) if arrays.network is None else arrays.network
    return TileEngine(
        ways, divisions_, fastest, arrays.rows, arrays.columns, cycle_s, hop, words,
        arrays.multicast, 0.0, drain * cycle_s,
    )  # fmt: skip


def even_engine(mac_s: float) -> TileEngine:
    """Describe an engine of which only the time per multiply-accumulate is known."""
    return TileEngine(
        np.zeros((0, 10), np.int64), np.zeros((0, 4), np.int64), 0, 1, 1, 0.0, 0, 1.0,
        False, mac_s, 0.0,
    )  # fmt: skip


# What `tile_cost` finds: seconds of the arrays and of the ports that they wait for; how often the
# tile's elements of a and b enter the arrays and those of c leave them; way * divisions + division,
# or -1 if the engine has no ways; seconds of the cycles alone; seconds with all that passes the
# ports meanwhile.
SECONDS, PASSES, WAY_USED, CYCLES_S, PHASE_S = 0, 1, 4, 5, 6
COST_FIELDS = 7


@kernel_call
def tile_cost(
    batch: int,
    m: int,
    n: int,
    k: int,
    bytes_: tuple[float, float, float],
    last: bool,
    engine: TileEngine,
    ports: Ports,
    busy_s: Floats,
    price: tuple[float, float, float, float],
    found: Floats,
) -> None:
    """Find the best way to compute one tile; `found` has the fields above.

    Parameters
    ----------
    bytes_
        Of the tile's operands: a, b, and c as partial sums. A pass of the last ones is a write and
        a read.
    last
        Whether the array runs empty after it.
    busy_s
        [PORTS], seconds of other transfers through each port while the tile is computed.
    price
        Joules per byte of a, b, c and watts of time: the best way takes the least energy. All 0: it
        takes the least time, and of equal ones the fewest bytes.
    """
    if len(engine.ways) == 0:
        macs = float(batch) * m * n * k
        found[PASSES : PASSES + 3] = 1.0
        found[WAY_USED] = -1
        found[CYCLES_S] = macs * engine.mac_s
        near = (bytes_[0], bytes_[1], 2.0 * bytes_[2])
        found[SECONDS], found[PHASE_S] = _waits(found[CYCLES_S], near, ports, busy_s)
        return
    found[SECONDS] = found[PHASE_S] = np.inf
    best, fewest = (np.inf, np.inf), np.inf
    best, fewest = _best_way(
        batch, m, n, k, bytes_, last, engine, 0, engine.fastest, ports, busy_s, price, best,
        fewest, found,
    )  # fmt: skip
    # The other divisions take no fewer cycles: they are faster only where reading is the limit.
    if fewest * engine.cycle_s < found[PHASE_S] or price[0] + price[1] + price[2] + price[3] > 0.0:
        _best_way(
            batch, m, n, k, bytes_, last, engine, engine.fastest, len(engine.divisions), ports,
            busy_s, price, best, fewest, found,
        )  # fmt: skip


@kernel_part
def _waits(
    cycles_s: float, near: tuple[float, float, float], ports: Ports, busy_s: Floats
) -> tuple[float, float]:
    """Seconds of cycles and of the ports, without and with what else passes them."""
    alone_s = phase_s = cycles_s
    if ports.limit:
        for port in range(PORTS):
            bytes_ = 0.0
            for operand in range(3):
                if ports.of[operand] == port:
                    bytes_ += near[operand]
            port_s = bytes_ * ports.byte_s[port]
            alone_s, phase_s = max(alone_s, port_s), max(phase_s, port_s + busy_s[port])
    return alone_s, phase_s


@kernel_call
def _best_way(
    batch: int, m: int, n: int, k: int, bytes_: tuple[float, float, float], last: bool,
    engine: TileEngine, begin: int, end: int, ports: Ports, busy_s: Floats,
    price: tuple[float, float, float, float], best: tuple[float, float], fewest: float,
    found: Floats,
) -> tuple[tuple[float, float], float]:  # fmt: skip
    """Look through some of the divisions; `found` is kept where it is as good.

    Returns
    -------
    best, fewest
        What is least first and then, of the best way; and the fewest cycles of all.
    """
    for_energy = price[0] + price[1] + price[2] + price[3] > 0.0
    first, then = best
    n_divisions = len(engine.divisions)
    for i in range(len(engine.ways)):
        way = engine.ways[i]
        latencies = (way[HOP_ROW], way[HOP_COLUMN], way[MAC])
        for j in range(begin, end):
            parts = engine.divisions[j]
            each = (folds(batch, parts[0]), folds(m, parts[1]), folds(n, parts[2]),
                    folds(k, parts[3]))  # fmt: skip
            used_m, used_n, used_k = folds(m, each[1]), folds(n, each[2]), folds(k, each[3])
            height, width, t = each[1 + way[DOWN]], each[1 + way[ACROSS]], each[1 + way[TIME]]
            cycles = _cycles(height, width, t, each[0], way, engine, latencies)
            if not last:
                cycles = _cycles(height, width, t, 2 * each[0], way, engine, latencies) - cycles
            if used_k > 1:
                words = folds(each[0] * each[1] * each[2], used_k)
                sending = np.ceil(words / engine.words_per_cycle)
                cycles += (used_k - 1) * (engine.hop_cycles + int(sending))
            fewest = min(fewest, float(cycles))
            down, across = folds(height, engine.rows), folds(width, engine.columns)
            # An operand passes once for every fold along an axis of the array that it has not.
            a_passes, b_passes = _passes(1, way, down, across), _passes(0, way, down, across)
            c_passes = _passes(2, way, down, across) * used_k
            if not engine.multicast:  # and for every array that has a part of that axis
                a_passes, b_passes = a_passes * used_n, b_passes * used_m
            near = (bytes_[0] * a_passes, bytes_[1] * b_passes, 2.0 * bytes_[2] * c_passes)
            cycles_s = cycles * engine.cycle_s
            alone_s, phase_s = _waits(cycles_s, near, ports, busy_s)
            if for_energy:
                one = near[0] * price[0] + near[1] * price[1] + near[2] * price[2]
                one, two = one + price[3] * max(phase_s, busy_s[FAR]), phase_s
            else:
                one, two = phase_s, near[0] + near[1] + near[2]
            tied = one == first and two == then and alone_s < found[SECONDS]
            if one < first or (one == first and two < then) or tied:
                first, then = one, two
                found[SECONDS], found[CYCLES_S], found[PHASE_S] = alone_s, cycles_s, phase_s
                found[PASSES], found[PASSES + 1], found[PASSES + 2] = a_passes, b_passes, c_passes
                found[WAY_USED] = i * n_divisions + j
    return (first, then), fewest


@kernel_call
def _cycles(
    height: int, width: int, t: int, batch: int, way: Ints, engine: TileEngine,
    latencies: tuple[int, int, int],
) -> int:  # fmt: skip
    rows, columns = engine.rows, engine.columns
    stationary, full = way[STATIONARY] == 1, way[FULL] == 1
    if way[SERIAL]:
        spans = serial(height, width, t, batch, rows, columns, stationary, full, latencies)
    else:
        spans = following(
            height, width, t, batch, rows, columns, stationary, full, way[OVERLAPPED] == 1,
            latencies, max,
        )  # fmt: skip
    return spans[0] + spans[1] + spans[2] + spans[3]


@kernel_call
def _passes(absent: int, way: Ints, down: int, across: int) -> int:
    """Folds along those axes of the array that are the one (of m, n, k) an operand has not."""
    return (down if way[DOWN] == absent else 1) * (across if way[ACROSS] == absent else 1)


@kernel_call
def write_turns(sums: Floats, engine: TileEngine, turns: Floats) -> None:
    """Write the folds of a tiling's whole tiles, and of those left over: down, then across."""
    for i in range(2):
        span = sums[WHOLE_SPAN + 2 * i]
        turns[i], turns[2 + i] = np.ceil(span / engine.rows), np.ceil(span / engine.columns)


@kernel_call
def least_s(chosen: Ints, sums: Floats, turns: Floats, engine: TileEngine, most: int) -> float:
    """Time that all tiles are computed in at least.

    In the time of a tile every array streams T steps for each of its folds, and loads (or drains)
    the rows of each, in parallel at best; and no division has fewer folds than the undivided tile.

    Parameters
    ----------
    chosen
        [axis], rows of `sums` and `turns`.
    sums, turns
        Sums over the tiles of each tiling, see `tilings`; their folds, see `write_turns`.
    most
        Arrays that a tile can use.
    """
    total, left = 0.0, 0
    for i in range(3):
        left |= (1 << i) if sums[chosen[1 + i], LEFT_TILES] > 0.0 else 0
    for kind in range(8):
        if kind & ~left:
            continue
        tiles = 1.0
        for i in range(3):
            tiles *= sums[chosen[1 + i], WHOLE_TILES + 2 * (kind >> i & 1)]
        if tiles > 0.0:
            total += tiles * _least_of(kind, chosen, sums, turns, engine)
    batch = 0.0
    for i in (0, 2):
        batch += sums[chosen[0], WHOLE_TILES + i] * sums[chosen[0], WHOLE_SPAN + i]
    if len(engine.ways) == 0:
        return float(batch * total * engine.mac_s)
    return float(batch * total / most * engine.cycle_s + engine.drain_s)


@kernel_call
def _least_of(kind: int, chosen: Ints, sums: Floats, turns: Floats, engine: TileEngine) -> float:
    """Cycles of one tile on one array at least; its multiply-accumulates if there is no array."""
    if len(engine.ways) == 0:
        macs = 1.0
        for i in range(3):
            macs *= sums[chosen[1 + i], WHOLE_SPAN + 2 * (kind >> i & 1)]
        return macs
    least = np.inf
    for i in range(len(engine.ways)):
        way = engine.ways[i]
        row, column, time = way[DOWN], way[ACROSS], way[TIME]
        down = turns[chosen[1 + row], kind >> row & 1]
        across = turns[chosen[1 + column], 2 + (kind >> column & 1)]
        stream = down * across * sums[chosen[1 + time], WHOLE_SPAN + 2 * (kind >> time & 1)]
        if way[FULL]:
            shift = across * engine.rows * down
        else:
            shift = across * sums[chosen[1 + row], WHOLE_SPAN + 2 * (kind >> row & 1)]
        if way[OVERLAPPED]:
            least = min(least, max(stream, shift))
        else:
            least = min(least, stream + shift - down * across)
    return float(least)
