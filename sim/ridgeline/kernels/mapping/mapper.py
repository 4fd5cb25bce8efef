"""The best mapping of a contraction on levels of buffers: two mappers.

``optimal`` looks through many tilings of every axis, ``fast`` through few of them; both with all
loop orders, by the same complete search. What they list depends on the contraction alone, never on
capacities, bandwidths or numbers of arrays, and what fits into a smaller machine fits into a larger
one: so more of anything never makes an op slower, with either.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np

from ridgeline.errors import RidgelineError
from ridgeline.kernels.mapping.axes import axes_of, dims_of
from ridgeline.kernels.mapping.choices import COARSE, FEW, HALVED, MANY
from ridgeline.kernels.mapping.compute import Engine, even_engine, systolic_engine
from ridgeline.kernels.mapping.footprint import Floats, Ints
from ridgeline.kernels.mapping.many import best_of_each
from ridgeline.kernels.mapping.mapping import LevelLoops, Loop, Mapping
from ridgeline.kernels.mapping.nest import nest_of
from ridgeline.kernels.mapping.nested import Search, Solution
from ridgeline.kernels.mapping.pipeline import (
    BORDER_FIELDS,
    COMPUTE,
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
    WAY,
    Level,
    Shape,
)
from ridgeline.kernels.mapping.search import EXACT, ORDERS
from ridgeline.kernels.systolic.closed_form import layout
from ridgeline.kernels.systolic.partition import Arrays
from ridgeline.workload.graph import Conv, Gemm, Pass

Mapper = Literal["fast", "optimal"]
Objective = Literal["time", "energy"]
Contraction = tuple[Gemm | Conv, Pass]
DENSITY: dict[Mapper, int] = {"fast": FEW, "optimal": MANY}
NESTED: dict[Mapper, tuple[int, int]] = {"fast": (COARSE, FEW), "optimal": (FEW, HALVED)}
"""On the farther levels of several, and on the nearest."""


class Buffer(NamedTuple):
    """A level of buffers, and the way between it and the level behind; as in `Machine`."""

    name: str
    capacities: tuple[float, float, float, float]
    double: bool
    shared_port: bool
    byte_s: float
    latency_s: float
    byte_j: float


class Machine(NamedTuple):
    """What a mapping depends on.

    Attributes
    ----------
    arrays
        Systolic arrays; None: tiles take `mac_s` for each multiply-accumulate.
    near_byte_s
        Seconds per byte between the arrays and the buffers; 0 if that is never the limit.
    capacities
        Bytes of buffers for a, b, c alone, and for all of them.
    byte_s, latency_s
        Of a transfer between the buffers and the memory behind.
    far_byte_j, near_byte_j, idle_w
        Joules per byte behind and in the buffers, and watts that time costs.
    widths
        Bytes of an element of a, b, c, and of a partial sum.
    far, near
        Names of the two memory levels.
    nearer
        Buffers between these and the arrays, from far to near; the arrays take from the last.
    """

    arrays: Arrays | None
    cycle_s: float
    mac_s: float
    near_byte_s: float
    capacities: tuple[float, float, float, float]
    double: bool
    shared_port: bool
    byte_s: float
    latency_s: float
    far_byte_j: float
    near_byte_j: float
    idle_w: float
    widths: tuple[float, float, float, float]
    far: str
    near: str
    nearer: tuple[Buffer, ...] = ()


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


def map_contraction(
    loops: Gemm | Conv,
    pass_: Pass,
    machine: Machine,
    mapper: Mapper = "fast",
    objective: Objective = "time",
) -> Mapped:
    """Find the best mapping of one pass over a contraction.

    Raises
    ------
    RidgelineError
        If the buffers are too small for the smallest tile.
    """
    return map_contractions([(loops, pass_)], machine, mapper, objective)[0]


def map_contractions(
    wanted: Sequence[Contraction],
    machine: Machine,
    mapper: Mapper = "fast",
    objective: Objective = "time",
) -> list[Mapped]:
    """Find the best mapping of each of some contractions; as `map_contraction`."""
    known = _known(machine, mapper, objective)
    found = list(map(known.get, wanted))
    numbers: dict[Contraction, int] = {}  # contractions are slow to hash: once for each purpose
    places = [
        -1 if mapped is not None else numbers.setdefault(job, len(numbers))
        for job, mapped in zip(wanted, found, strict=True)
    ]
    if not numbers:
        return [mapped for mapped in found if mapped is not None]
    search = _nested if machine.nearer else _single
    new = search(tuple(numbers), machine, mapper, objective)
    for job, mapped in zip(numbers, new, strict=True):
        if not math.isfinite(mapped.time_s):
            raise _too_small(job[0], machine)
    known.update(zip(numbers, new, strict=True))
    return [
        new[place] if mapped is None else mapped
        for place, mapped in zip(places, found, strict=True)
    ]


def _single(
    jobs: tuple[Contraction, ...], machine: Machine, mapper: Mapper, objective: Objective
) -> list[Mapped]:
    """Search on one level of buffers, for all of the contractions in one go."""
    extents, orders, found, played = best_of_each(
        *_axes_of(jobs, _granule(machine)), np.array(machine.widths),
        _level(machine), _engine(machine), DENSITY[mapper], objective == "energy", ORDERS,
    )  # fmt: skip
    rows = zip(found.tolist(), extents.tolist(), orders.tolist(), played.tolist(), strict=True)
    return [_mapped(*row) for row in rows]


def _nested(
    jobs: tuple[Contraction, ...], machine: Machine, mapper: Mapper, objective: Objective
) -> list[Mapped]:
    """Search on several levels of buffers, one contraction after the other."""
    solved = []
    for job in jobs:
        axes, shape, _, engine = problem(*job, machine)
        search = Search(levels_of(machine), engine, NESTED[mapper], objective == "energy")
        solution = search.solve(axes, shape)
        solved.append(mapped_of(solution, search.played))
    return solved


def _too_small(loops: Gemm | Conv, machine: Machine) -> RidgelineError:
    buffers = ", ".join(
        f"{name} {capacities[3]:g} B"
        for name, capacities in (
            (machine.near, machine.capacities), *(level[:2] for level in machine.nearer)
        )
    )  # fmt: skip
    return RidgelineError(
        f"{machine.near} is too small: not even tiles of single elements and whole filters of "
        f"{loops} fit into the buffers ({buffers})"
    )


@lru_cache(maxsize=64)
def _axes_of(jobs: tuple[Contraction, ...], granule: int) -> tuple[Ints, Ints, Floats]:
    """Describe contractions as `many.best_of_each` wants them."""
    axes, touches, elements = zip(*(axes_of(*job, granule) for job in jobs), strict=True)
    return np.array(axes), np.array(touches), np.array(elements)


_found: dict[tuple[Machine, Mapper, Objective], dict[Contraction, Mapped]] = {}
_MOST_FOUND = 8192


def _known(machine: Machine, mapper: Mapper, objective: Objective) -> dict[Contraction, Mapped]:
    """Return the mappings on a machine that are remembered; there is room for so many in all."""
    if sum(map(len, list(_found.values()))) > _MOST_FOUND:
        _found.clear()
    return _found.setdefault((machine, mapper, objective), {})


def forget() -> None:
    """Forget all mappings, for those who measure the search."""
    _found.clear()


def _granule(machine: Machine) -> int:
    """Return what tiles are multiples of where they can."""
    return 1 if machine.arrays is None else max(machine.arrays.rows, machine.arrays.columns)


def problem(loops: Gemm | Conv, pass_: Pass, machine: Machine) -> tuple[Ints, Shape, Level, Engine]:
    """Put a contraction and a machine into the arrays of the search."""
    axes, touches, elements = axes_of(loops, pass_, _granule(machine))
    shape = Shape(touches, elements, np.array(machine.widths), False, True)
    return axes, shape, _level(machine), _engine(machine)


@lru_cache(maxsize=256)
def _level(machine: Machine) -> Level:
    return Level(
        np.array(machine.capacities), machine.double, machine.shared_port, machine.byte_s,
        machine.latency_s,
        np.array([machine.far_byte_j, machine.near_byte_j, machine.idle_w]),
    )  # fmt: skip


def levels_of(machine: Machine) -> tuple[Level, ...]:
    """Return all levels of buffers, from far to near."""
    levels, behind_j = [_level(machine)], machine.near_byte_j
    for buffer in machine.nearer:
        levels.append(
            Level(
                np.array(buffer.capacities), buffer.double, buffer.shared_port, buffer.byte_s,
                buffer.latency_s, np.array([behind_j, buffer.byte_j, machine.idle_w]),
            )
        )  # fmt: skip
        behind_j = buffer.byte_j
    return tuple(levels)


@lru_cache(maxsize=256)
def _engine(machine: Machine) -> Engine:
    if machine.arrays is None:
        return even_engine(machine.mac_s, machine.near_byte_s)
    return systolic_engine(machine.arrays, machine.cycle_s, machine.near_byte_s)


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
    mapped = _mapped(found, solution.extents.tolist(), solution.order.tolist(), played)
    return mapped._replace(way=_way(inside.found[WAY]), nearer=tuple(nearer))


def _mapped(found: list[float], extents: list[list[int]], order: list[int], played: int) -> Mapped:
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
    )


def _way(found: float) -> int:
    return int(found) if math.isfinite(found) else -1  # nothing fits


def _rows(extents: list[list[int]]) -> tuple[tuple[int, int, int], ...]:
    return tuple([(one, rows, columns) for one, rows, columns in extents])


def mapping_of(mapped: Mapped, loops: Gemm | Conv, pass_: Pass, machine: Machine) -> Mapping:
    """Write a found mapping as loops in time and in space."""
    nest = nest_of(loops, pass_)
    groups = dims_of(loops, pass_)
    held, levels = dict(nest.size), []
    names = (machine.far, machine.near, *(level.name for level in machine.nearer))
    tilings = ((mapped.extents, mapped.order), *(level[:2] for level in mapped.nearer))
    for name, (extents, order) in zip(names, tilings, strict=False):
        tile = dict(held)  # filters stay whole
        for dims, sizes in zip(groups, extents, strict=True):
            tile |= dict(zip(dims, sizes, strict=False))
        turns = tuple(
            Loop(dim, factor)
            for axis in order
            for dim in groups[axis]
            if (factor := -(-held[dim] // tile[dim])) > 1
        )
        levels.append(LevelLoops(name, turns))
        held = tile
    rows, columns, streamed = _in_space(mapped, groups, held, nest.dims, machine)
    space = dict((*rows, *columns))
    # Products of a batch and then column strips follow each other; operands stream innermost.
    inner = [dim for dim in nest.dims if dim not in streamed] + list(streamed)
    near = tuple(
        Loop(dim, factor) for dim in inner if (factor := -(-held[dim] // space.get(dim, 1))) > 1
    )
    return Mapping((*levels, LevelLoops(names[-1], near)), rows, columns)


def _in_space(
    mapped: Mapped,
    groups: tuple[tuple[str, ...], ...],
    tile: dict[str, int],
    dims: tuple[str, ...],
    machine: Machine,
) -> tuple[tuple[Loop, ...], tuple[Loop, ...], tuple[str, ...]]:
    """Dimensions along rows and columns of the array, and those that stream through it."""
    if machine.arrays is None or mapped.way < 0:
        return (), (), ()
    how = machine.arrays.schedules[mapped.way // len(_engine(machine).divisions)]
    down, across, time = layout(how.dataflow, 1, 2, 3)
    filters = tuple(dim for dim in ("r", "s") if dim in dims)
    found = []
    for axis, cells in ((down, machine.arrays.rows), (across, machine.arrays.columns)):
        dim = groups[axis][-1] if len(groups[axis]) > 1 else groups[axis][0]
        found.append((Loop(dim, min(tile[dim], cells)),))
    streamed = tuple(dim for dim in groups[time] if dim not in filters)
    return found[0], found[1], streamed


def dataflow_of(mapped: Mapped, machine: Machine) -> tuple[str, tuple[int, ...]] | None:
    """Return dataflow and parts along batch, m, n, k of a full tile; None without arrays."""
    if machine.arrays is None or mapped.way < 0:
        return None
    divisions = _engine(machine).divisions
    way, division = divmod(mapped.way, len(divisions))
    return machine.arrays.schedules[way].dataflow, tuple(divisions[division].tolist())
