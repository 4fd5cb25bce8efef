"""A mapping on one level of buffers, tile by tile and element by element, timed on SimPy.

What each tile loads and stores is found by comparing sets of elements with those of the tile
before; how long it is computed is counted by the systolic closed forms, one division at a time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from oracles.mapping_trace import Index, Ranges, elements
from oracles.tile_events import makespan
from ridgeline.kernels.mapping.machine import MappingMachine
from ridgeline.kernels.mapping.nest import ContractionNest
from ridgeline.kernels.systolic.closed_form import folds, layout, passes, spans
from ridgeline.kernels.systolic.partition import Arrays, divisions, reduction_cycles

Extents = dict[str, int]


class Way(NamedTuple):
    """A way to compute a tile: seconds with and without what else passes the ports, and bytes."""

    phase_s: float
    near: tuple[float, float, float]
    alone_s: float


class TileWays(NamedTuple):
    """All ways to compute a tile, and the seconds of the transfers beside it."""

    ways: tuple[Way, ...]
    beside_s: float


class Played(NamedTuple):
    """Time, largest need of room, and words (loads of a, b, c; stores of c).

    `tiles` has every way to compute each tile, `fixed_s` and `fixed_j` what is the same with all.
    """

    time_s: float
    compute_s: float
    first_load_s: float
    last_store_s: float
    room: float
    words: tuple[int, int, int, int]
    traffic_bytes: float
    results: int
    tiles: tuple[TileWays, ...] = ()
    fixed_s: float = 0.0
    fixed_j: float = 0.0


class Within(NamedTuple):
    """The tile of the level behind; what has partial sums already, and what other tiles touched.

    `earlier` are elements of c of other tiles before; `ended` tells whether sums become results.
    """

    tile: Ranges
    touched: set[Index]
    earlier: set[Index]
    ended: bool


Inside = Callable[[Ranges, bool, Within], float]


def tiles(within: Ranges, extents: Extents, order: tuple[tuple[str, ...], ...]) -> Iterator[Ranges]:
    """Tiles in the order of the loops, `order` from the outermost to the innermost."""
    dims = [dim for group in order for dim in group]
    fixed = {dim: span for dim, span in within.items() if dim not in dims}
    starts = [range(*within[dim], extents[dim]) for dim in dims]
    for place in itertools.product(*starts):
        yield fixed | {
            dim: (low, min(low + extents[dim], within[dim][1]))
            for dim, low in zip(dims, place, strict=True)
        }


def ways_of(
    arrays: Arrays, sizes: tuple[int, int, int, int], moved: tuple[float, float, float],
    last: bool, machine: MappingMachine, beside: tuple[float, float, float], transfers_s: float,
) -> tuple[Way, ...]:  # fmt: skip
    """All ways to compute a tile.

    `sizes` are along batch, m, n, k; `beside` are bytes of a, b and c that pass meanwhile.
    """
    found = []
    for how in arrays.schedules:
        for parts in divisions(arrays.number, arrays.network is not None):
            b, m, n, k = (folds(size, part) for size, part in zip(sizes, parts, strict=True))
            cycles = spans(m, n, k, b, arrays.rows, arrays.columns, how, max).total()
            if not last:
                two = spans(m, n, k, 2 * b, arrays.rows, arrays.columns, how, max).total()
                cycles = two - cycles
            used = [folds(size, each) for size, each in zip(sizes, (b, m, n, k), strict=True)]
            if used[3] > 1:
                assert arrays.network is not None
                cycles += reduction_cycles(b * m * n, used[3], arrays.network)
            height, width, _ = layout(how.dataflow, m, n, k)
            enter = passes(how.dataflow, folds(height, arrays.rows), folds(width, arrays.columns))
            near = (
                moved[0] * enter[0] * (1 if arrays.multicast else used[2]),
                moved[1] * enter[1] * (1 if arrays.multicast else used[1]),
                2 * moved[2] * enter[2] * used[3],
            )
            busy_s, none = cycles * machine.cycle_s, (0.0, 0.0, 0.0)
            found.append(
                Way(
                    with_ports(busy_s, near, beside, transfers_s, machine), near,
                    with_ports(busy_s, near, none, 0.0, machine),
                )
            )  # fmt: skip
    return tuple(found)


def fastest(ways: tuple[Way, ...]) -> Way:
    """The fastest way, of equal ones that with the fewest bytes."""
    return min(ways, key=lambda way: (way.phase_s, sum(way.near), way.alone_s))


def prices_of(machine: MappingMachine) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Joules of a byte of a, b and c that the arrays move, and over the border behind."""
    if machine.split is None:
        return (machine.near_byte_j,) * 3, (machine.far_byte_j + machine.near_byte_j,) * 3
    near = tuple(
        machine.split.byte_j[i] if kept(machine, i) else machine.far_byte_j for i in range(3)
    )
    return near, tuple(machine.far_byte_j + each for each in near)


def least_of(
    played: Played, machine: MappingMachine, objective: str, base: tuple[float, float]
) -> float:
    """Least seconds, joules or joule-seconds over all ways to compute all tiles, each by itself.

    For the product every pair of sums that no other is below in both is kept, tile by tile.
    """
    near_j, _ = prices_of(machine)
    sums = {(played.fixed_s, played.fixed_j)}
    for tile in played.tiles:
        ways = {
            (
                max(way.phase_s, tile.beside_s),
                sum(size * each for size, each in zip(way.near, near_j, strict=True)),
            )
            for way in tile.ways
        }
        sums = {
            (float(f"{s + time_s:.14g}"), float(f"{j + energy_j:.14g}"))
            for s, j in sums
            for time_s, energy_j in ways
        }
        front, least = set(), math.inf
        for time_s, energy_j in sorted(sums):
            if energy_j < least:
                front.add((time_s, energy_j))
                least = energy_j
        sums = front
    each = [(time_s, energy_j + machine.idle_w * time_s) for time_s, energy_j in sums]
    if objective == "time":
        return min(time_s for time_s, _ in each)
    if objective == "energy":
        return min(energy_j for _, energy_j in each)
    return min((time_s + base[0]) * (energy_j + base[1]) for time_s, energy_j in each)


def with_ports(
    cycles_s: float, near: tuple[float, float, float], beside: tuple[float, float, float],
    transfers_s: float, machine: MappingMachine,
) -> float:  # fmt: skip
    """Seconds of the arrays and of each buffer's port, one operand after the other."""
    if machine.split is None:
        return max(cycles_s, (sum(near) + sum(beside)) * machine.near_byte_s)
    waits = [cycles_s]
    for port in range(4):
        mine = [i for i in range(3) if machine.split.of[i] == port]
        bytes_ = sum(near[i] + (0.0 if port == 3 else beside[i]) for i in mine)
        waits.append(
            bytes_ * machine.split.byte_s[port] + (transfers_s if port == 3 and mine else 0.0)
        )
    return max(waits)


def kept(machine: MappingMachine, operand: int) -> bool:
    """Whether the buffers hold the operand."""
    return machine.split is None or machine.split.of[operand] != 3


def play(
    nest: ContractionNest, groups: tuple[tuple[str, ...], ...], extents: Extents,
    order: tuple[int, ...], machine: MappingMachine, within: Within | None = None,
    inside: Inside | None = None,
) -> Played:  # fmt: skip
    """Play a tiling; `groups` are the dimensions behind batch, m, n, k, `order` these axes.

    `inside` gives the seconds of a tile in nearer buffers; without it the engine computes it.
    """
    if within is None:
        within = Within({dim: (0, size) for dim, size in nest.size.items()}, set(), set(), True)
    all_tiles = list(tiles(within.tile, extents, tuple(groups[axis] for axis in order)))
    before: dict[str, tuple] = {}
    touched = set(within.touched)
    load, compute, store = [], [], []
    moves: list[list[list[float]]] = []  # of each tile: bytes of a, b, c loaded, then stored
    each: list[tuple] = []  # and what the arrays are asked to do
    words = [0, 0, 0, 0]
    biggest = dict.fromkeys("abc", 0.0)
    places: dict[str, set] = {name: set() for name in "abc"}
    width = dict(zip("abc", (*machine.widths[:2], machine.widths[3]), strict=True))
    window = {dim for dim in ("r", "s") if dim in nest.size}
    last_of_k = {dim: within.tile[dim][1] for dim in groups[3]}
    traffic, results = 0.0, 0
    for i, tile in enumerate(all_tiles):
        loads, stores = [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]
        sets = {operand.name: elements(operand, tile) for operand in nest.operands}
        for number, operand in enumerate(nest.operands):
            name = operand.name
            place = tuple(tile[dim] for dim in sorted(operand.dims))
            places[name].add(place)
            biggest[name] = max(biggest[name], len(sets[name]) * width[name])
            if before.get(name) == place:
                continue
            if name == "c":
                fresh = sets["c"] - touched
                again = len(sets["c"]) - len(fresh)
                words[2] += again
                loads[2] = again * machine.widths[3]
            elif kept(machine, number):
                words[number] += len(sets[name])
                loads[number] = len(sets[name]) * width[name]
            before[name] = place
        after = all_tiles[i + 1] if i + 1 < len(all_tiles) else None
        whole = within.ended and all(tile[dim][1] == end for dim, end in last_of_k.items())
        earlier = set(within.earlier)
        if overlaps(nest):
            for other in all_tiles[:i]:
                if any(other[d] != tile[d] for d in nest.operands[2].dims):
                    earlier |= elements(nest.operands[2], other)
        leaves = after is None or any(after[d] != tile[d] for d in nest.operands[2].dims)
        if leaves:
            # A result counts as complete with the first tile that it is in, see `pipeline`.
            final = len(sets["c"] - earlier) if whole else 0
            results += final
            words[3] += len(sets["c"])
            stores[2] = final * machine.widths[2] + (len(sets["c"]) - final) * machine.widths[3]
        if not kept(machine, 2):
            loads[2] = stores[2] = 0.0
        loaded, stored = sum(loads), sum(stores)
        moves.append([loads, stores])
        begun = set(touched)
        touched |= sets["c"]
        sizes = [1, 1, 1, 1]
        for axis, dims in enumerate(groups):
            for dim in dims:
                sizes[axis] *= tile[dim][1] - tile[dim][0]
        if window:  # filters go with the channels of x, or with the sum
            times = nest.size["r"] * nest.size["s"]
            sizes[2 if {"p", "q"} <= set(groups[3]) else 3] *= times
        moved = tuple(len(sets[name]) * width[name] for name in "abc")
        if inside is not None:
            compute.append(inside(tile, after is None, Within(tile, begun, earlier, whole)))
        each.append((tuple(sizes), moved, after is None))
        traffic += loaded + stored
        load.append(loaded * machine.byte_s + (machine.latency_s if loaded else 0.0))
        store.append(stored * machine.byte_s + (machine.latency_s if stored else 0.0))
    alone, tiles_ = list(compute), list[TileWays]()
    for i, (tile_sizes, moved, last) in enumerate(each if inside is None else []):
        beside, transfers_s = (0.0, 0.0, 0.0), 0.0
        if machine.double:  # the next tile is loaded, the one before is stored
            after_ = moves[i + 1][0] if i + 1 < len(moves) else [0.0] * 3
            before_ = moves[i - 1][1] if i else [0.0] * 3
            beside = tuple(x + y for x, y in zip(after_, before_, strict=True))
            transfers_s = (load[i + 1] if i + 1 < len(load) else 0.0) + (store[i - 1] if i else 0.0)
        if machine.arrays is None:
            mac_s = math.prod(tile_sizes) * machine.mac_s
            near = (moved[0], moved[1], 2 * moved[2])
            ways: tuple[Way, ...] = (
                Way(
                    with_ports(mac_s, near, beside, transfers_s, machine), near,
                    with_ports(mac_s, near, (0.0, 0.0, 0.0), 0.0, machine),
                ),
            )  # fmt: skip
        else:
            ways = ways_of(machine.arrays, tile_sizes, moved, last, machine, beside, transfers_s)
        compute.append(fastest(ways).phase_s)
        alone.append(fastest(ways).alone_s)
        tiles_.append(TileWays(ways, transfers_s))
    buffers = 2 if machine.double else 1
    rooms = [
        size * (buffers if len(places[name]) > 1 else 1) if kept(machine, number) else 0.0
        for number, (name, size) in enumerate(biggest.items())
    ]
    time_s = makespan(load, compute, store, buffers, buffers, machine.shared_port)
    fixed_s = load[0] + store[-1] if machine.double else sum(load) + sum(store)
    near_j, border_j = prices_of(machine)
    # The first of the updates of a new sum reads nothing, the last one writes a result.
    new = (words[3] - words[2]) * machine.widths[3]
    fixed_j = -near_j[2] * (new + results * (machine.widths[3] - machine.widths[2]))
    for loads, stores in moves:
        fixed_j += sum((loads[i] + stores[i]) * border_j[i] for i in range(3))
    if not kept(machine, 2):
        words[2] = words[3] = 0
    return Played(
        time_s, sum(alone), load[0], store[-1], sum(rooms), tuple(words), traffic, results,
        tuple(tiles_), fixed_s, fixed_j,
    )  # fmt: skip


def overlaps(nest: ContractionNest) -> bool:
    """Whether tiles of the result can share elements."""
    return any(axis.window is not None for axis in nest.operands[2].axes)
