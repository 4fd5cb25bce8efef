"""When each tile of a mapped contraction is loaded, computed and stored, for a figure of one op.

The search needs sums over tiles only (`mapping.pipeline`); here all of them are laid out one by one
and go through the recurrence of `mapping.pipeline`, whose last store ends when the op does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from ridgeline.errors import RidgelineError
from ridgeline.kernels.mapping.axes import dims_of
from ridgeline.kernels.mapping.explicit_evaluation import EvaluatedMapping
from ridgeline.kernels.mapping.machine import MappingMachine
from ridgeline.kernels.mapping.mapped_contraction import Mapped, mapping_of
from ridgeline.kernels.mapping.nest import ContractionNest, nest_of
from ridgeline.kernels.mapping.pipeline import FASTEST
from ridgeline.workload.graph import Op

_MOST_TILES = 20_000
_Ranges = dict[str, tuple[int, int]]


class TileSpan(NamedTuple):
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
    load: TileSpan
    compute: TileSpan
    store: TileSpan
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


def tile_schedule(op: Op, found: Mapped, machine: MappingMachine) -> TileSchedule:
    """Lay out all tiles of a mapped contraction over time.

    Raises
    ------
    RidgelineError
        If there are more levels of buffers than one, or more than 20,000 tiles.
    """
    assert op.loops is not None
    if machine.nearer:
        raise RidgelineError(
            f"tiles are drawn over one level of buffers; {machine.near} has others before it "
            f"({', '.join(level.name for level in machine.nearer)})"
        )
    nest = nest_of(op.loops, op.priced_as)
    mapping = mapping_of(found, op.loops, op.priced_as, machine)
    count = math.prod(-(-nest.size[dim] // extent) for dim, extent in mapping.tile(1, nest).items())
    if count > _MOST_TILES:
        raise RidgelineError(f"the op has {count:,} tiles; at most {_MOST_TILES:,} are laid out")
    times = _durations(op, nest, found, machine)
    return _played(times, machine)


class _Durations(NamedTuple):
    ranges: _Ranges
    load_s: float
    compute_s: float
    store_s: float


def _durations(
    op: Op, nest: ContractionNest, found: Mapped, machine: MappingMachine
) -> list[_Durations]:
    """Return what each tile takes, in the order of the loops, by the evaluator of mappings."""
    assert op.loops is not None
    mapping = mapping_of(found, op.loops, op.priced_as, machine)
    groups = dims_of(op.loops, op.priced_as)
    played = EvaluatedMapping(nest, mapping, machine, groups, FASTEST)
    played.found()
    low, high, *seconds = played.timed
    return [
        _Durations(
            {dim: (low[i, j], high[i, j]) for j, dim in enumerate(nest.dims)},
            *(float(each[i]) for each in seconds),
        )
        for i in range(len(low))
    ]


def _played(tiles: list[_Durations], machine: MappingMachine) -> TileSchedule:
    """Play the recurrence of `mapping.pipeline`, and keep when everything happens."""
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
            TileSpan(loaded[i] - tile.load_s, loaded[i]),
            TileSpan(begun[i], done[i]),
            TileSpan(stored[i] - tile.store_s, stored[i]),
            i % buffers,
            i % buffers,
        )
        for i, tile in enumerate(tiles)
    )
    return TileSchedule(found, machine.far, machine.near, machine.shared_port, stored[-1])
