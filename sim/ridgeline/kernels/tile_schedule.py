"""When each tile of a mapped contraction is loaded, computed and stored, for a figure of one op.

The search needs sums over tiles only (`mapping.pipeline`); here all of them are laid out one by one
and go through the recurrence of `mapping.stalls`, whose last store ends when the op does.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ridgeline.errors import RidgelineError
from ridgeline.kernels.mapping.axes import axes_of, dims_of
from ridgeline.kernels.mapping.choices import TIMES
from ridgeline.kernels.mapping.machine import Machine
from ridgeline.kernels.mapping.mapped import Mapped
from ridgeline.kernels.mapping.nest import Axis, Nest, nest_of
from ridgeline.kernels.systolic.closed_form import folds, layout, passes, spans
from ridgeline.kernels.systolic.partition import divisions, reduction_cycles
from ridgeline.workload.graph import Conv, Gemm, Op

_MOST_TILES = 20_000
_Ranges = dict[str, tuple[int, int]]


class Span(NamedTuple):
    """Begin and end, in seconds from the op's first load."""

    begin_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        """How long it takes."""
        return self.end_s - self.begin_s


@dataclass(frozen=True, slots=True)
class TileTimes:
    """One tile of the buffer level: its loops, and when it is loaded, computed and stored.

    Attributes
    ----------
    ranges
        First index and the one behind the last, by dimension of the nest.
    load, compute, store
        When; a load or store of nothing is empty.
    into, out
        Number of the buffer that its operands, and its results, are in.
    """

    ranges: _Ranges
    load: Span
    compute: Span
    store: Span
    into: int
    out: int


@dataclass(frozen=True, slots=True)
class TileSchedule:
    """All tiles of an op, in order.

    Attributes
    ----------
    far, near
        The memory that tiles come from, and the level that they are buffered in.
    shared_port
        Whether loads and stores take turns.
    end_s
        When the last store ends.
    """

    tiles: tuple[TileTimes, ...]
    far: str
    near: str
    shared_port: bool
    end_s: float


def tile_schedule(op: Op, found: Mapped, machine: Machine) -> TileSchedule:
    """Lay out all tiles of a mapped contraction over time.

    Raises
    ------
    RidgelineError
        If there are more levels of buffers than one, more than 20,000 tiles, or tiles whose results
        share elements (input gradients of filters larger than 1 x 1).
    """
    assert op.loops is not None
    if machine.nearer:
        raise RidgelineError(
            f"tiles are drawn over one level of buffers; {machine.near} has others before it "
            f"({', '.join(level.name for level in machine.nearer)})"
        )
    nest, groups = nest_of(op.loops, op.priced_as), dims_of(op.loops, op.priced_as)
    if any(
        axis.window is not None and nest.size[axis.window] > 1 for axis in nest.operands[2].axes
    ):
        raise RidgelineError(
            "tiles of an input gradient share elements of the result where filters are larger than "
            "1x1; they are not drawn one by one"
        )
    count = math.prod(
        -(-nest.size[dim] // extent)
        for dims, extents in zip(groups, found.extents, strict=True)
        for dim, extent in zip(dims, extents, strict=False)
    )
    if count > _MOST_TILES:
        raise RidgelineError(f"the op has {count:,} tiles; at most {_MOST_TILES:,} are laid out")
    times = _durations(op.loops, op, nest, found, machine)
    return _played(times, machine)


class _Durations(NamedTuple):
    ranges: _Ranges
    load_s: float
    compute_s: float
    store_s: float


def _durations(
    loops: Gemm | Conv, op: Op, nest: Nest, found: Mapped, machine: Machine
) -> list[_Durations]:
    """Return what each tile takes by itself, in the order of the loops."""
    groups = dims_of(loops, op.priced_as)
    times = axes_of(loops, op.priced_as, 1)[0][:, TIMES].tolist()
    a_width, b_width, result_width, partial_width = machine.widths
    widths = (a_width, b_width, partial_width)
    known: dict[tuple[object, ...], float] = {}

    def compute_s(tile: _Ranges, words: list[int], last: bool) -> float:
        sizes = [
            times[axis] * math.prod(tile[dim][1] - tile[dim][0] for dim in dims)
            for axis, dims in enumerate(groups)
        ]
        moved = tuple(n * width for n, width in zip(words, widths, strict=True))
        key = (*sizes, *moved, last)
        if key not in known:
            known[key] = tile_seconds(sizes, moved, last, machine).total_s
        return known[key]

    def transfer_s(size_bytes: float) -> float:
        return size_bytes * machine.byte_s + machine.latency_s if size_bytes > 0 else 0.0

    tiles = list(_tiles(nest, groups, found))
    sums = groups[3]  # the dimensions that are summed over
    done, before = [], [()] * 3
    for i, tile in enumerate(tiles):
        words = [touched_words(operand.axes, tile) for operand in nest.operands]
        places: list[tuple[object, ...]] = [
            tuple(tile[dim] for dim in sorted(operand.dims)) for operand in nest.operands
        ]
        load = sum(words[j] * widths[j] for j in range(2) if places[j] != before[j])
        is_first = all(tile[dim][0] == 0 for dim in sums)
        if places[2] != before[2] and not is_first:  # sums that were begun before
            load += words[2] * partial_width
        after = tiles[i + 1] if i + 1 < len(tiles) else None
        leaves = after is None or any(after[d] != tile[d] for d in nest.operands[2].dims)
        is_whole = all(tile[dim][1] == nest.size[dim] for dim in sums)
        store = words[2] * (result_width if is_whole else partial_width) if leaves else 0.0
        done.append(
            _Durations(
                tile, transfer_s(load), compute_s(tile, words, after is None), transfer_s(store)
            )
        )
        before = places  # type: ignore[assignment]
    return done


class TileSeconds(NamedTuple):
    """Of a tile: altogether, and of its cycles alone; the rest waits for the nearest level."""

    total_s: float
    cycles_s: float


def tile_seconds(
    sizes: Sequence[int], moved: Sequence[float], last: bool, machine: Machine
) -> TileSeconds:
    """Seconds of a tile in the fastest way, by the closed form: what the search counts compiled.

    Parameters
    ----------
    sizes
        Along batch, m, n, k.
    moved
        Bytes of its operands, of c as partial sums.
    last
        Whether the arrays run empty after it.
    """
    arrays = machine.arrays
    if arrays is None:
        near = moved[0] + moved[1] + 2 * moved[2]
        cycles_s = math.prod(sizes) * machine.mac_s
        return TileSeconds(max(cycles_s, near * machine.near_byte_s), cycles_s)
    fastest = TileSeconds(math.inf, math.inf)
    for how in arrays.schedules:
        for parts in divisions(arrays.number, arrays.network is not None):
            b, m, n, k = (folds(size, part) for size, part in zip(sizes, parts, strict=True))
            cycles = spans(m, n, k, b, arrays.rows, arrays.columns, how, max).total()
            if not last:
                two = spans(m, n, k, 2 * b, arrays.rows, arrays.columns, how, max).total()
                cycles = two - cycles
            m_parts, n_parts, k_parts = (
                folds(size, each) for size, each in zip(sizes[1:], (m, n, k), strict=True)
            )
            if k_parts > 1:
                assert arrays.network is not None
                cycles += reduction_cycles(b * m * n, k_parts, arrays.network)
            height, width, _ = layout(how.dataflow, m, n, k)
            a, b_, c = passes(
                how.dataflow, folds(height, arrays.rows), folds(width, arrays.columns)
            )
            if not arrays.multicast:
                a, b_ = a * n_parts, b_ * m_parts
            near = moved[0] * a + moved[1] * b_ + 2 * moved[2] * c * k_parts
            cycles_s = cycles * machine.cycle_s
            fastest = min(fastest, TileSeconds(max(cycles_s, near * machine.near_byte_s), cycles_s))
    return fastest


def _tiles(nest: Nest, groups: tuple[tuple[str, ...], ...], found: Mapped) -> Iterator[_Ranges]:
    """Yield tiles in the order of the loops; filters stay whole."""
    extent = {
        dim: size
        for dims, extents in zip(groups, found.extents, strict=True)
        for dim, size in zip(dims, extents, strict=False)
    }
    dims = [dim for axis in found.order for dim in groups[axis]]
    whole = {dim: (0, size) for dim, size in nest.size.items() if dim not in dims}
    for place in itertools.product(*(range(0, nest.size[dim], extent[dim]) for dim in dims)):
        yield whole | {
            dim: (low, min(low + extent[dim], nest.size[dim]))
            for dim, low in zip(dims, place, strict=True)
        }


def touched_words(axes: tuple[Axis, ...], tile: _Ranges) -> int:
    """Elements of an operand that a tile touches, padding left out."""
    words = 1
    for axis in axes:
        low, high = tile[axis.dim]
        if axis.window is None:
            words *= high - low
            continue
        first, behind = tile[axis.window]
        touched = {
            place
            for tap in range(first, behind)
            for place in range(
                axis.stride * low + axis.dilation * tap - axis.padding,
                axis.stride * (high - 1) + axis.dilation * tap - axis.padding + 1,
                axis.stride,
            )
        }
        words *= sum(1 for place in touched if 0 <= place < axis.extent)
    return words


def _played(tiles: list[_Durations], machine: Machine) -> TileSchedule:
    """Play the recurrence of `mapping.stalls`, and keep when everything happens."""
    n, buffers = len(tiles), 2 if machine.double else 1
    shared = machine.shared_port or not machine.double  # a single buffer is loaded, or stored
    loaded, done, stored = [0.0] * n, [0.0] * n, [0.0] * n
    begun = [0.0] * n
    into = out = 0.0
    loads = stores = 0
    for i in range(n + buffers):
        while loads <= min(i, n - 1) or stores <= i - buffers:
            if loads < min(n, stores + buffers + 1):
                asked = done[loads - buffers] if loads >= buffers else 0.0
                into = loaded[loads] = max(into, asked) + tiles[loads].load_s
                loads += 1
                continue
            free = into if shared else out
            out = stored[stores] = max(free, done[stores]) + tiles[stores].store_s
            into = out if shared else into
            stores += 1
        if i < n:
            begun[i] = max(loaded[i], done[i - 1] if i else 0.0)
            begun[i] = max(begun[i], stored[i - buffers] if i >= buffers else 0.0)
            done[i] = begun[i] + tiles[i].compute_s
    found = tuple(
        TileTimes(
            tile.ranges,
            Span(loaded[i] - tile.load_s, loaded[i]),
            Span(begun[i], done[i]),
            Span(stored[i] - tile.store_s, stored[i]),
            i % buffers,
            i % buffers,
        )
        for i, tile in enumerate(tiles)
    )
    return TileSchedule(found, machine.far, machine.near, machine.shared_port, stored[-1])
