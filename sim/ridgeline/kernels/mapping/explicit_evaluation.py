"""Explicit evaluation of a given mapping, tile by tile, for any loop nest.

The search looks at tilings of four axes and knows where tiles are alike. A mapping file may have
any loops in any order, so that here every tile is listed, with what it loads and stores. Where the
search could have found the mapping both give the same figures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ridgeline._jit import kernel
from ridgeline.errors import RidgelineError
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
from ridgeline.kernels.mapping.footprint import Floats, Ints, count_touched
from ridgeline.kernels.mapping.machine import MappingMachine, engine_of, levels_of
from ridgeline.kernels.mapping.mapping import FAR, OPERANDS, Mapping
from ridgeline.kernels.mapping.nest import ContractionNest, OperandAxis
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
    NEAR_A,
    NEAR_C,
    RESULTS,
    STORED,
    TIME,
    TRAFFIC,
    WAY,
    Bools,
    C,
    Goal,
)

MOST_TILES = 2_000_000
_WINDOW = ("r", "s")


class Misfit(RidgelineError):
    """A tile that does not fit; `excess` says by which factor."""

    def __init__(self, message: str, excess: float) -> None:
        super().__init__(message)
        self.excess = excess


@dataclass
class EvaluatedMapping:
    """A mapping on a machine, and the tiles that were met.

    Attributes
    ----------
    groups
        Dimensions behind batch, m, n, k.
    timed
        Once it was played: first and last points of the farthest level's tiles, [tiles, dims], and
        seconds of loading, computing and storing each.
    """

    nest: ContractionNest
    mapping: Mapping
    machine: MappingMachine
    groups: tuple[tuple[str, ...], ...]
    goal: Goal
    timed: tuple[Ints, Ints, Floats, Floats, Floats] = field(init=False)
    _known: dict[tuple[int, bytes], Floats] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.levels, self.engine = levels_of(self.machine), engine_of(self.machine)
        self.places = {dim: i for i, dim in enumerate(self.nest.dims)}
        self.width = np.array(self.machine.widths)
        self.summed = [
            self.places[dim] for dim in self.nest.dims if dim not in self.nest.operands[C].dims
        ]
        self.sizes = np.array(self.nest.sizes, np.int64)
        seen = {
            dim
            for operand in self.nest.operands
            for axis in operand.axes
            if axis.window is not None
            for dim in (axis.dim, axis.window)
        }
        self.windowed = np.array([dim in seen for dim in self.nest.dims], np.int64)

    def found(self) -> Floats:
        """Return what `pipeline.evaluate` would find, with the words over all nearer borders.

        Raises
        ------
        Misfit
            If a tile does not fit: which level, and which operand takes most of it; or if there
            are too many tiles.
        RidgelineError
            If filters of an input gradient are cut.
        """
        whole = np.array([[0, size] for size in self.nest.sizes], np.int64)
        return self._level(0, whole)

    def bound_s(self) -> float:
        """Bound the seconds from below without listing tiles: their arithmetic, their far bytes."""
        kinds = list(self.mapping.nearest_tiles(self.nest))
        spans = np.array([extents for extents, _ in kinds], float)
        counts = np.array([count for _, count in kinds], float)
        rows = np.hstack([self._sizes(spans), np.zeros((len(kinds), 4 + PORTS))])
        costs = tile_costs(rows, self.engine, self.levels[-1].ports, np.zeros(4))
        far_s = self._far_bytes() * self.levels[0].byte_s
        return float(max((costs[:, SECONDS] * counts).sum(), far_s))

    def _far_bytes(self) -> float:
        """Count the bytes of a and b that the farthest level loads at least.

        Operands come whole, as often as loops that do not concern them turn outside of one that
        does. Of a loop those turns count that are whole, so that the last tiles may have fewer.
        """
        whole = np.array([[0, size] for size in self.nest.sizes], np.int64)[None]
        level, bytes_ = self.levels[0], 0.0
        turns = self._whole_turns()
        for number in range(2):
            if level.ports.of[number] == FAR or level.held[number]:
                continue
            times, since = 1, 1
            for dim, count in turns:
                if dim not in self.nest.operands[number].dims:
                    since *= count
                elif count > 1:
                    times, since = times * since, 1
            words = float(self._words(number, whole[:, :, 0], whole[:, :, 1])[0])
            bytes_ += times * words * self.width[number]
        return bytes_

    def _whole_turns(self) -> list[tuple[str, int]]:
        """Whole turns of the farthest level's loops, from the outermost."""
        extent = self.mapping.tile(1, self.nest)
        turns = []
        for dim, factor in reversed(self.mapping.levels[0].temporal):
            turns.append((dim, max(1, min(factor, self.nest.size[dim] // extent[dim]))))
            extent[dim] *= factor
        return turns[::-1]

    def _level(self, depth: int, ranges: Ints) -> Floats:
        key = (depth, self._kinds(ranges[None, :, 0], ranges[None, :, 1]).tobytes())
        if key not in self._known:
            self._known[key] = self._play(depth, ranges)
        return self._known[key]

    def _tiles(self, depth: int, ranges: Ints) -> tuple[Ints, Ints]:
        """First and last points, [tiles, dims], of the tiles of a level in their order."""
        extent = self.mapping.tile(depth + 1, self.nest)
        steps: list[tuple[int, int]] = []
        for dim, factor in reversed(self.mapping.levels[depth].temporal):
            steps.append((self.places[dim], extent[dim]))
            extent[dim] *= factor
        low, high = ranges[None, :, 0].copy(), ranges[None, :, 1].copy()
        for place, step in reversed(steps):
            counts = -(-(high[:, place] - low[:, place]) // step)
            if counts.sum() > MOST_TILES:
                name = self.machine.levels[depth].name
                raise Misfit(
                    f"it has more than {MOST_TILES:,} tiles in {name}, too many to list", math.inf
                )
            low, high = np.repeat(low, counts, axis=0), np.repeat(high, counts, axis=0)
            number = np.arange(len(low)) - np.repeat(np.cumsum(counts) - counts, counts)
            low[:, place] += number * step
            high[:, place] = np.minimum(high[:, place], low[:, place] + step)
        return low, high

    def _check_room(self, depth: int, size: Floats, changed: Bools) -> None:
        """Compare the largest tiles of a level with its buffers; what changes needs two."""
        level, name = self.levels[depth], self.machine.levels[depth].name
        needs = []
        for number in range(3):
            need = float(size[:, number].max()) * self.width[3 if number == C else number]
            double = level.double and changed[1:, number].any()
            passes_by = level.ports.of[number] == FAR
            needs.append(0.0 if passes_by else need * (2 if double else 1))
        shared = [[i for i in range(3) if level.ports.of[i] == port] for port in range(FAR)]
        for mine, limit in zip([[0], [1], [2], *shared], level.capacity.tolist(), strict=True):
            need = math.fsum(needs[i] for i in mine)
            if need > limit:
                raise Misfit(self._misfit(name, mine, needs, limit), need / limit)

    def _misfit(self, name: str, mine: Sequence[int], needs: list[float], limit: float) -> str:
        each = ", ".join(f"{OPERANDS[i]} {needs[i]:,.0f} B" for i in mine if needs[i])
        most = OPERANDS[max(mine, key=lambda i: needs[i])]
        return (
            f"its tiles do not fit {name}: {each}, in all {math.fsum(needs[i] for i in mine):,.0f} "
            f"of {limit:,.0f} B; {most} takes the most"
        )

    def _words(self, number: int, low: Ints, high: Ints, *, new: bool = False) -> Floats:
        """Elements of an operand that tiles touch, [tiles]; `new`: that no earlier ones touch."""
        words = np.ones(len(low))
        for axis in self.nest.operands[number].axes:
            place = self.places[axis.dim]
            if axis.window is None:
                words *= high[:, place] - low[:, place]
                continue
            window = self.places[axis.window]
            table = np.stack([low[:, place], high[:, place], low[:, window], high[:, window]], 1)
            kinds, which = np.unique(table, axis=0, return_inverse=True)
            line = _line(axis, self.places)
            counts = []
            for p0, p1, r0, r1 in kinds.tolist():
                if new and (r0, r1) != (0, self.nest.size[axis.window]):
                    raise RidgelineError("filters of an input gradient cannot be cut")
                before = count_touched(0, p0, r0, r1, line) if new else 0
                counts.append(count_touched(0 if new else p0, p1, r0, r1, line) - before)
            words *= np.array(counts, float)[which.ravel()]
        return words

    def _play(self, depth: int, ranges: Ints) -> Floats:  # noqa: PLR0915 - one recurrence
        level, width = self.levels[depth], self.width
        low, high = self._tiles(depth, ranges)
        tiles = len(low)
        size = np.stack([self._words(number, low, high) for number in range(3)], 1)
        changed = np.ones((tiles, 3), np.bool_)
        for number, operand in enumerate(self.nest.operands):
            mine = [self.places[dim] for dim in operand.dims]
            same = (low[1:, mine] == low[:-1, mine]).all(1) & (
                high[1:, mine] == high[:-1, mine]
            ).all(1)
            changed[1:, number] = ~same
        self._check_room(depth, size, changed)
        first = (low[:, self.summed] == 0).all(1)
        whole = (high[:, self.summed] == self.sizes[self.summed]).all(1)
        new = np.zeros(tiles)
        if first.any() or whole.any():
            new = self._words(C, low, high, new=True)
        kept = [level.ports.of[number] != FAR for number in range(3)]
        words = size * changed
        words[:, C] -= np.where(first, new, 0.0) * changed[:, C]
        leaves = np.append(changed[1:, C], True)
        stored, results = size[:, C] * leaves, np.where(whole, new, 0.0) * leaves
        moves = [kept[number] and not level.held[number] for number in range(3)]
        loaded = words * width[[0, 1, 3]] * moves
        stores = (results * width[2] + (stored - results) * width[3]) * moves[C]
        load_s = _transfer_s(loaded.sum(1), level.byte_s, level.latency_s)
        store_s = _transfer_s(stores, level.byte_s, level.latency_s)
        next_s, before_s = np.append(load_s[1:], 0.0), np.append(0.0, store_s[:-1])
        beside = np.zeros((tiles, 3))
        beside[:-1] += loaded[1:]
        beside[1:, C] += stores[:-1]
        busy = np.zeros((tiles, PORTS))
        transfers_s = next_s + before_s if level.shared_port else np.maximum(next_s, before_s)
        if level.double:
            for number in range(3):
                port = level.ports.of[number]
                busy[:, port] += beside[:, number] * level.ports.byte_s[port]
            busy[:, FAR] = transfers_s
        borders = len(self.levels) - 1 - depth
        found = np.zeros(FOUND_FIELDS + BORDER_FIELDS * borders)
        if borders:
            alone_s = phase_s = self._inside(depth, low, high, found)
        else:
            costs = self._costs(low, high, size, busy)
            alone_s, phase_s = costs[:, SECONDS], costs[:, PHASE_S]
            found[CYCLES] = costs[:, CYCLES_S].sum()
            found[WAY] = costs[0, WAY_USED]
            near = size * width[[0, 1, 3]] * costs[:, PASSES : PASSES + 3]
            found[NEAR_A : NEAR_C + 1] = near.sum(0) * (1.0, 1.0, 2.0)
            fresh = (np.where(first, new, 0.0) * changed[:, C]).sum()
            found[NEAR_C] -= fresh * width[3] + results.sum() * (width[3] - width[2])
        if depth == 0:
            self.timed = low, high, load_s, np.asarray(phase_s), store_s
        found[COMPUTE] = alone_s.sum()
        found[FIRST_LOAD], found[LAST_STORE] = load_s[0], store_s[-1]
        if not level.double:
            found[TIME] = (alone_s + next_s + before_s).sum()
        else:
            found[TIME] = np.maximum(phase_s, transfers_s).sum()
        found[TIME] += load_s[0] + store_s[-1]
        found[TRAFFIC] = loaded.sum() + stores.sum()
        if not level.shared_port:
            found[TIME] = max(found[TIME], found[TRAFFIC] * level.byte_s)
        found[LOAD_A : LOAD_A + 3] = words.sum(0) * moves
        found[STORED], found[RESULTS] = stored.sum() * moves[C], results.sum()
        self._add_energy(depth, loaded.sum(0), stores.sum(), found)
        if not borders:
            found[ENGINE] = found[COMPUTE]
        return found

    def _inside(self, depth: int, low: Ints, high: Ints, found: Floats) -> Floats:
        """Add up what tiles find in nearer buffers; return the seconds of each."""
        _, first, which, counts = np.unique(
            self._kinds(low, high), axis=0, return_index=True, return_inverse=True,
            return_counts=True,
        )  # fmt: skip
        seconds = np.empty(len(first))
        for i, (tile, count) in enumerate(zip(first.tolist(), counts.tolist(), strict=True)):
            inner = self._level(depth + 1, np.stack([low[tile], high[tile]], 1))
            seconds[i] = inner[TIME]
            found[ENERGY] += count * (inner[ENERGY] - inner[TIME] * self.levels[depth].idle_w)
            found[[ENGINE, CYCLES]] += count * inner[[ENGINE, CYCLES]]
            found[NEAR_A : NEAR_C + 1] += count * inner[NEAR_A : NEAR_C + 1]
            found[FOUND_FIELDS : FOUND_FIELDS + BORDER_FIELDS] += (
                count * inner[LOAD_A : LOAD_A + BORDER_FIELDS]
            )
            found[FOUND_FIELDS + BORDER_FIELDS :] += count * inner[FOUND_FIELDS:]
            if tile == 0:
                found[WAY] = inner[WAY]
        return np.asarray(seconds[which.ravel()])

    def _kinds(self, low: Ints, high: Ints) -> Ints:
        """Return what decides what tiles take: extents, places in images, begun and ended sums."""
        begins = (low[:, self.summed] == 0).all(1)
        ends = (high[:, self.summed] == self.sizes[self.summed]).all(1)
        return np.column_stack([high - low, low * self.windowed, begins, ends])

    def _costs(self, low: Ints, high: Ints, size: Floats, busy: Floats) -> Floats:
        """Seconds and passes of tiles on the engine, [tiles, COST_FIELDS]."""
        sizes = self._sizes((high - low).astype(float))
        last = np.zeros((len(low), 1))
        last[-1] = 1.0
        bytes_ = size * self.width[[0, 1, 3]]
        rows = np.hstack([sizes, bytes_, last, busy])
        kinds, which = np.unique(rows, axis=0, return_inverse=True)
        costs = tile_costs(kinds, self.engine, self.levels[-1].ports, self._price())
        return np.asarray(costs[which.ravel()])

    def _sizes(self, spans: Floats) -> Floats:
        """Extents along batch, m, n, k, [tiles, 4], of tiles that span such dimensions."""
        sizes = np.ones((len(spans), 4))
        for axis, dims in enumerate(self.groups):
            for dim in dims:
                sizes[:, axis] *= spans[:, self.places[dim]]
        if "r" in self.places:  # filters go with the channels of x, or with the sum
            axis = 2 if "p" in self.groups[3] else 3
            for dim in _WINDOW:
                sizes[:, axis] *= spans[:, self.places[dim]]
        return sizes

    def _price(self) -> Floats:
        """Joules per byte and watts that choose the way of a tile; zeros: the fastest."""
        level, price = self.levels[-1], np.zeros(4)
        if self.goal.of == ENERGY:
            by = np.array(level.ports.of) == FAR
            price[:3] = np.where(by, level.behind_j, level.near_j)
            price[3] = level.idle_w
        return price

    def _add_energy(self, depth: int, loaded: Floats, stores: float, found: Floats) -> None:
        level = self.levels[depth]
        moved = loaded.copy()
        moved[C] += stores
        found[ENERGY] += float((moved * (level.behind_j + level.near_j)).sum())
        if depth == len(self.levels) - 1:
            by = np.array(level.ports.of) == FAR
            price = np.where(by, level.behind_j, level.near_j)
            found[ENERGY] += float((found[NEAR_A : NEAR_C + 1] * price).sum())
        found[ENERGY] += found[TIME] * level.idle_w


def _line(axis: OperandAxis, places: dict[str, int]) -> Ints:
    """Describe an axis with a window as `footprint` wants it."""
    assert axis.window is not None
    return np.array(
        [
            places[axis.dim], places[axis.window], axis.extent, axis.stride, axis.dilation,
            axis.padding,
        ]
    )  # fmt: skip


def _transfer_s(bytes_: Floats, byte_s: float, latency_s: float) -> Floats:
    return np.where(bytes_ > 0, bytes_ * byte_s + latency_s, 0.0)


@kernel
def tile_costs(rows: Floats, engine: TileEngine, ports: Ports, price: Floats) -> Floats:
    """Find the best way to compute each tile.

    Parameters
    ----------
    rows
        [tiles, 8 + PORTS]: extents along batch, m, n, k; bytes of a, b, c; 1 for the last tile;
        seconds of other transfers by port.
    price
        [4], see `compute.tile_cost`.

    Returns
    -------
    costs
        [tiles, COST_FIELDS].
    """
    costs = np.empty((len(rows), COST_FIELDS))
    busy, four = np.empty(PORTS), (price[0], price[1], price[2], price[3])
    for i in range(len(rows)):
        row = rows[i]
        for port in range(PORTS):
            busy[port] = row[8 + port]
        tile_cost(
            int(row[0]), int(row[1]), int(row[2]), int(row[3]), (row[4], row[5], row[6]),
            row[7] > 0.0, engine, ports, busy, four, costs[i],
        )  # fmt: skip
    return costs
