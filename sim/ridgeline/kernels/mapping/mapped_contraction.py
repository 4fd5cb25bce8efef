"""Mapped contraction: the mapping found, as named loops over the memory levels."""

from __future__ import annotations

import math
from typing import NamedTuple

from ridgeline.kernels.mapping.axes import dims_of
from ridgeline.kernels.mapping.footprint import Floats
from ridgeline.kernels.mapping.machine import Buffer, MappingMachine, engine_of
from ridgeline.kernels.mapping.mapping import FAR, OPERANDS, LevelLoops, Mapping, TileLoop
from ridgeline.kernels.mapping.multi_level import Solution
from ridgeline.kernels.mapping.nest import nest_of
from ridgeline.kernels.mapping.pipeline import (
    BORDER_FIELDS,
    COMPUTE,
    CYCLES,
    ENERGY,
    ENGINE,
    FIRST_LOAD,
    FOUND_FIELDS,
    LAST_STORE,
    LOAD_A,
    LOAD_B,
    LOAD_C,
    NEAR_A,
    NEAR_B,
    NEAR_C,
    RESULTS,
    STORED,
    TIME,
    TRAFFIC,
    WAY,
)
from ridgeline.kernels.mapping.search import EXACT
from ridgeline.kernels.systolic.closed_form import layout
from ridgeline.workload.graph import Conv, Gemm, Pass


class Nearer(NamedTuple):
    """One of the nearer levels of buffers: as in `Mapped`, its first tile and its words."""

    extents: tuple[tuple[int, int, int], ...]
    order: tuple[int, ...]
    loads: tuple[float, float, float]
    stores: float
    results: float


class Mapped(NamedTuple):
    """A contraction, mapped.

    Attributes
    ----------
    time_s
        compute_s + nearer_stall_s + first_load_s + steady_stall_s + last_store_s.
    nearer_stall_s
        In which the arrays wait for nearer levels, while the farthest buffers have what they need.
    loads
        Elements of a, b, and partial sums of c, that come into the buffers.
    stores, results
        Elements of c that go out, partial sums and results, and the results among them.
    near_bytes
        Of a, b, c between the arrays and the buffers.
    extents, order
        Of the buffers' tiles along batch, m, n, k (of pixels: images, rows, columns), and these
        axes from the outermost loop to the innermost.
    way
        Number of the way that the first tile is computed, see `compute.tile_cost`.
    played
        How many combinations the search has played.
    nearer
        Nearer levels, from far to near: how they hold the first tile of the level behind (others
        may be held in other ways), and all words that cross their borders.
    cycles_s
        Part of compute_s in which the arrays do not wait for the port that they read from.
    energy_j, traffic_bytes
        Of moving data and of idling meanwhile; behind the farthest buffers.
    used
        Number of the way in which the machine is used, see `mapper.ways_of`.
    given
        The loops of a mapping that was not searched for.
    """

    time_s: float
    compute_s: float
    first_load_s: float
    steady_stall_s: float
    last_store_s: float
    loads: tuple[float, float, float]
    stores: float
    results: float
    near_bytes: tuple[float, float, float]
    extents: tuple[tuple[int, int, int], ...]
    order: tuple[int, ...]
    way: int
    played: int
    nearer_stall_s: float = 0.0
    nearer: tuple[Nearer, ...] = ()
    cycles_s: float = 0.0
    energy_j: float = 0.0
    traffic_bytes: float = 0.0
    used: int = 0
    given: Mapping | None = None


def mapped_of(solution: Solution, played: int) -> Mapped:
    """Name what the search has found."""
    found = solution.found.tolist()
    nearer: list[Nearer] = []
    inside = solution
    while (first := inside.first) is not None:
        inside = first
        at = FOUND_FIELDS + BORDER_FIELDS * len(nearer)
        words = found[at : at + BORDER_FIELDS]
        extents, order = _rows(first.extents.tolist()), tuple(first.order.tolist())
        nearer.append(Nearer(extents, order, tuple(words[:3]), *words[3:]))
    mapped = mapped_from(found, solution.extents.tolist(), solution.order.tolist(), played)
    return mapped._replace(way=_way(inside.found[WAY]), nearer=tuple(nearer))


def mapped_of_given(found: Floats, mapping: Mapping, nearer: int) -> Mapped:
    """Name what a given mapping takes on a machine with some nearer levels."""
    numbers = found.tolist()
    borders = []
    for i in range(nearer):
        at = FOUND_FIELDS + BORDER_FIELDS * i
        words = numbers[at : at + BORDER_FIELDS]
        borders.append(Nearer((), (), tuple(words[:3]), *words[3:]))
    mapped = mapped_from(numbers, [], [], 1)
    return mapped._replace(nearer=tuple(borders), given=mapping)


def mapped_from(
    found: list[float], extents: list[list[int]], order: list[int], played: int
) -> Mapped:
    """Name what the search has found on the level next to the farthest memory."""
    time_s, first_load_s, last_store_s = found[TIME], found[FIRST_LOAD], found[LAST_STORE]
    ends = found[COMPUTE] + first_load_s + last_store_s
    steady = time_s - ends
    return Mapped(
        max(time_s, ends),  # never less, but for the order in which sums are rounded
        found[ENGINE],
        first_load_s,
        steady if steady > EXACT * ends else 0.0,
        last_store_s,
        (found[LOAD_A], found[LOAD_B], found[LOAD_C]),
        found[STORED],
        found[RESULTS],
        (found[NEAR_A], found[NEAR_B], found[NEAR_C]),
        _rows(extents),
        tuple(order),
        _way(found[WAY]),
        played,
        found[COMPUTE] - found[ENGINE],
        cycles_s=found[CYCLES],
        energy_j=found[ENERGY],
        traffic_bytes=found[TRAFFIC],
    )


def _way(found: float) -> int:
    return int(found) if math.isfinite(found) else -1  # nothing fits


def _rows(extents: list[list[int]]) -> tuple[tuple[int, int, int], ...]:
    return tuple([(one, rows, columns) for one, rows, columns in extents])


def mapping_of(mapped: Mapped, loops: Gemm | Conv, pass_: Pass, machine: MappingMachine) -> Mapping:
    """Write a found mapping as loops in time and in space."""
    if mapped.given is not None:
        return mapped.given
    nest = nest_of(loops, pass_)
    groups = dims_of(loops, pass_)
    held, levels = dict(nest.size), list[LevelLoops]()
    kept = [OPERANDS, *(_kept(level) for level in machine.levels)]
    names = (machine.far, machine.near, *(level.name for level in machine.nearer))
    tilings = ((mapped.extents, mapped.order), *(level[:2] for level in mapped.nearer))
    for name, (extents, order) in zip(names, tilings, strict=False):
        tile = dict(held)  # filters stay whole
        for dims, sizes in zip(groups, extents, strict=True):
            tile |= dict(zip(dims, sizes, strict=False))
        turns = tuple(
            TileLoop(dim, factor)
            for axis in order
            for dim in groups[axis]
            if (factor := -(-held[dim] // tile[dim])) > 1
        )
        levels.append(LevelLoops(name, turns, kept[len(levels)]))
        held = tile
    rows, columns, streamed = _in_space(mapped, groups, held, nest.dims, machine)
    # Loops in space and over them must make up the tile: a part of the last fold is none.
    rows, columns = (
        tuple(loop for loop in axis if held[loop.dim] % loop.factor == 0)
        for axis in (rows, columns)
    )
    space = dict((*rows, *columns))
    # Products of a batch and then column strips follow each other; operands stream innermost.
    inner = [dim for dim in nest.dims if dim not in streamed] + list(streamed)
    near = tuple(
        TileLoop(dim, factor) for dim in inner if (factor := -(-held[dim] // space.get(dim, 1))) > 1
    )
    return Mapping((*levels, LevelLoops(names[-1], near, kept[-1])), rows, columns)


def _kept(buffer: Buffer) -> tuple[str, ...]:
    """Operands that a level keeps."""
    of = (0, 0, 0) if buffer.split is None else buffer.split.of
    return tuple(name for name, port in zip(OPERANDS, of, strict=True) if port != FAR)


def _in_space(
    mapped: Mapped,
    groups: tuple[tuple[str, ...], ...],
    tile: dict[str, int],
    dims: tuple[str, ...],
    machine: MappingMachine,
) -> tuple[tuple[TileLoop, ...], tuple[TileLoop, ...], tuple[str, ...]]:
    """Dimensions along rows and columns of the array, and those that stream through it."""
    if machine.arrays is None or mapped.way < 0:
        return (), (), ()
    how = machine.arrays.schedules[mapped.way // len(engine_of(machine).divisions)]
    down, across, time = layout(how.dataflow, 1, 2, 3)
    filters = tuple(dim for dim in ("r", "s") if dim in dims)
    found = []
    for axis, cells in ((down, machine.arrays.rows), (across, machine.arrays.columns)):
        dim = groups[axis][-1] if len(groups[axis]) > 1 else groups[axis][0]
        found.append((TileLoop(dim, min(tile[dim], cells)),))
    streamed = tuple(dim for dim in groups[time] if dim not in filters)
    return found[0], found[1], streamed


def dataflow_of(mapped: Mapped, machine: MappingMachine) -> tuple[str, tuple[int, ...]] | None:
    """Return dataflow and parts along batch, m, n, k of a full tile; None without arrays."""
    if machine.arrays is None or mapped.way < 0:
        return None
    divisions = engine_of(machine).divisions
    way, division = divmod(mapped.way, len(divisions))
    return machine.arrays.schedules[way].dataflow, tuple(divisions[division].tolist())
