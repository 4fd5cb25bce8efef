"""The search for a layout: the best of all that a dataflow allows, by what a report says of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from ridgeline.errors import RidgelineError
from ridgeline.kernels.mapping.mapping_file import MappingFile
from ridgeline.kernels.spatial import branch_and_bound
from ridgeline.kernels.spatial.constraints import FREE, Constraints, settled_by
from ridgeline.kernels.spatial.count import Counts, count, work_of
from ridgeline.kernels.spatial.cycle_model import CycleMachine, scratch_of
from ridgeline.kernels.spatial.dataflows import DATAFLOWS, Dataflow
from ridgeline.kernels.spatial.machine import OPERANDS, Elements
from ridgeline.kernels.spatial.nest import (
    LOOPS,
    SUMMED,
    ConvolutionNest,
    SpatialLayout,
    TemporalLoop,
)
from ridgeline.kernels.spatial.space import (
    Ints,
    as_rows,
    element_tiles,
    orders_of,
    spreads,
)
from ridgeline.kernels.spatial.word_counts import SUMS, WindowAxis

_SETTLED = 20_000  # layouts that are played of a mapping file that settles loops over tiles
_LEAVES = 1 << 18  # that are sorted at once
_PAIRS = 1 << 16
_STEPS = (1.0005, 1.02, 1.05, 1.1, 1.2, 1.4, 2.0, 4.0, 16.0, math.inf)
"""Above the lowest bound, up to where layouts are looked at while none is found."""


@dataclass(frozen=True, slots=True)
class LayoutResult:
    """A layout, and what it takes.

    Attributes
    ----------
    memory_words
        Words between the buffer and the memory behind it: x, w, sums in, sums out.
    time_cycles
        Cycles of the array in the time of the op: its own, or those of the words between it and
        the buffer or between that and the memory, whichever are the most.
    energy_j
        Of the words, and of the whole device in that time.
    rank
        What layouts are ordered by: the objective, a tie-break, words from memory.
    complete
        Whether no other layout that the dataflow allows is better.
    played
        Layouts whose steps the search has played.
    """

    layout: SpatialLayout
    counts: Counts
    memory_words: tuple[int, int, int, int]
    time_cycles: float
    energy_j: float
    rank: tuple[float, float, float]
    complete: bool = True
    played: int = 1


@lru_cache(maxsize=4096)
def best_layout(
    nest: ConvolutionNest, elements: Elements, constraints: Constraints = FREE
) -> LayoutResult:
    """Find the best layout by `LayoutPrices.objective`; equal ones go by `LayoutResult.rank`.

    Raises
    ------
    RidgelineError
        If the array has no room for any; says which operand lacks how many words where.
    """
    flows = [
        flow
        for name in ((constraints.dataflow,) if constraints.dataflow else elements.dataflows)
        for flow in DATAFLOWS[name]
    ]
    best: LayoutResult | None = None
    complete, played = True, 0
    for flow in dict.fromkeys(flows):
        searched = _Search(nest, elements, flow, constraints)
        found, is_complete = searched.best(best)
        complete, played = complete and is_complete, played + searched.played
        if found is not None and (best is None or found.rank < best.rank):
            best = found
    if best is None:
        raise RidgelineError(_no_layout(nest, elements, constraints))
    return replace(best, complete=complete, played=played)


def given_layout(
    nest: ConvolutionNest, elements: Elements, given: MappingFile, levels: list[str]
) -> LayoutResult:
    """Count the layout of a mapping file, or find the best of those that it allows.

    Parameters
    ----------
    levels
        The memory behind the buffer, the buffer, and the elements' registers, by their names.

    Raises
    ------
    ConfigError
        If the array cannot work so.
    """
    settled = settled_by(given, nest, levels)
    if isinstance(settled, Constraints):
        try:
            return best_layout(nest, elements, settled)
        except RidgelineError as error:
            raise given.document.error(str(error)) from error
    refusal = elements.refusal(nest, settled)
    if refusal is not None:
        raise given.document.error(refusal)
    return evaluate(nest, elements, settled)


def evaluate(nest: ConvolutionNest, elements: Elements, layout: SpatialLayout) -> LayoutResult:
    """Count one layout, searched or given."""
    counts = count(nest, layout, elements.networks)
    outside = SpatialLayout(layout.buffer_tile, {}, {}, layout.memory)
    memory = count(nest, outside, _COUNTER)
    words = (memory.x_words, memory.w_words, memory.in_words, memory.out_words)
    near = (counts.x_words, counts.w_words, counts.in_words, counts.out_words)
    held = ("x" in elements.held, "w" in elements.held, *(("y" in elements.held,) * 2))
    x, w, y_in, y_out = (
        far if is_held else own for far, own, is_held in zip(words, near, held, strict=True)
    )
    prices, near_words, far_words = elements.prices, sum(near), x + w + y_in + y_out
    time = max(
        float(counts.cycles),
        near_words * prices.near_cycles,
        far_words / elements.memory_width,
        prices.least_cycles,
    )
    energy_j = near_words * prices.near_j + far_words * prices.far_j
    energy_j = energy_j + time * prices.idle_j + prices.fixed_j
    rank = {
        "time": (time, energy_j),
        "energy": (energy_j, time),
        "edp": (energy_j * time, time),
    }[prices.objective]
    return LayoutResult(
        layout, counts, (x, w, y_in, y_out), time, energy_j, (*rank, float(far_words))
    )  # fmt: skip


_COUNTER = CycleMachine(1, 1, 1, 1, True, True, True, True, True, 1, 0)
"""A buffer looked at as one element: what its networks carry is what comes from the memory."""


def _shown(nest: ConvolutionNest) -> str:
    sizes = ((name, nest.size(own)) for name, own in nest.names.items())
    return " ".join(f"{name}={size}" for name, size in sizes if size > 1)


def _no_layout(nest: ConvolutionNest, elements: Elements, constraints: Constraints) -> str:
    """Say what has no room, and by how much."""
    return (
        f"no layout of the loops {_shown(nest)} fits the array{constraints.shown}: "
        f"{_lacking(nest, elements, constraints)}"
    )


def _lacking(nest: ConvolutionNest, elements: Elements, constraints: Constraints) -> str:
    names = {own: name for name, own in nest.names.items()}
    for axis, limit in (("rows", elements.rows), ("columns", elements.columns)):
        factors = constraints.factors("rows" if axis == "rows" else "columns")
        used = math.prod(factors.values())
        if used > limit:
            return f"the {axis} have {limit} elements, and {used} are needed"
        for d, factor in factors.items():
            if factor > 1 and d in SUMMED and axis not in elements.adds_along:
                return f"{axis} add up no sums, so that {names[d]} cannot be spread along them"
    element = {d: min(n, nest.size(d)) for d, n in constraints.factors("element").items()}
    for operand, words in zip(OPERANDS, elements.room, strict=True):
        if (needed := nest.words(operand, element)) > words:
            return f"{OPERANDS[operand]} need {needed} words of {words} in each element"
    tile = {
        d: element.get(d, 1)
        * constraints.factors("rows").get(d, 1)
        * constraints.factors("columns").get(d, 1)
        * constraints.factors("buffer").get(d, 1)
        for d in LOOPS
    }
    words_of = {OPERANDS[o]: nest.words(o, tile) for o in OPERANDS if o in elements.held}
    if (needed := sum(words_of.values())) > elements.buffer_words:
        each = ", ".join(f"{name} {words}" for name, words in words_of.items())
        return (
            f"the smallest tile needs {needed} words of {elements.buffer_words} in the buffer "
            f"({each})"
        )
    for d, n in constraints.factors("memory").items():
        other = constraints.factors("buffer").get(d)
        if other is not None and n * tile[d] < nest.size(d):
            most = max(1, elements.rows) * max(1, elements.columns)
            return (
                f"the factors of {names[d]} over tiles leave {-(-nest.size(d) // (n * other))} "
                f"points of {nest.size(d)} to each tile of the array's {most} elements"
            )
    settled = ", ".join(f"{place} {names[d]}={n}" for place, d, n in constraints.settled if n > 1)
    return f"the settled factors ({settled or 'none'}) leave none of the dataflow's layouts"


class _Search:
    """One dataflow's layouts of one nest on one array."""

    def __init__(
        self, nest: ConvolutionNest, elements: Elements, flow: Dataflow, constraints: Constraints
    ) -> None:
        self.nest, self.elements, self.constraints = nest, elements, constraints
        self.played = 0
        self.tiles = element_tiles(nest, elements, flow, constraints)
        # Among equals the larger tile first, which needs fewer exchanges.
        self.tiles.sort(key=lambda tile: -math.prod(tile.values()))
        self.rows, self.columns = (
            spreads(nest, elements, flow, constraints, axis) for axis in ("rows", "columns")
        )
        self.orders = orders_of(nest, flow, constraints)

    def best(self, known: LayoutResult | None) -> tuple[LayoutResult | None, bool]:
        """Return the best layout, or None: a known one is not worse; whether all were seen."""
        if not (self.tiles and self.rows and self.columns):
            return None, True
        self._lay_down()
        best = branch_and_bound.Best(
            np.array(known.rank if known else (np.inf,) * 3),
            np.full(5, -1, np.int64),
            np.zeros(2, np.int64),
        )
        if self._settles_tiles:
            return self._settled(known)
        by_time = self.elements.prices.objective == "time"
        lowest, bottom = -math.inf, self._lowest()
        for step in _STEPS:
            highest = min(bottom * step, float(best.rank[0]))
            longest = highest if by_time else math.inf
            self._round(float(lowest), float(highest), float(longest), best)
            lowest = highest
            if highest >= best.rank[0]:
                break
        self.played += int(best.played[0])
        if best.chosen[0] < 0:
            return None, True
        self.rank = tuple(best.rank.tolist())
        return evaluate(self.nest, self.elements, self._layout(best.chosen)), True

    def _lay_down(self) -> None:
        """Give the factors of each loop their numbers, and make room for what is counted."""
        nest, elements = self.nest, self.elements
        self.sizes = np.array(nest.sizes, np.int64)
        self.row_parts, self.column_parts = as_rows(self.rows), as_rows(self.columns)
        self.tile_lengths = np.minimum(as_rows(self.tiles), self.sizes)
        columns = range(len(LOOPS))
        lengths = [np.unique(self.tile_lengths[:, d]) for d in columns]
        downs = [np.unique(self.row_parts[:, d]) for d in columns]
        across = [np.unique(self.column_parts[:, d]) for d in columns]
        self.products = [np.unique(np.outer(downs[d], across[d])) for d in columns]
        self.tile_at = _numbers(self.tile_lengths, lengths)
        self.row_at = _numbers(self.row_parts, downs)
        self.column_at = _numbers(self.column_parts, across)
        self.joint = np.zeros((8, max(map(len, downs)), max(map(len, across))), np.int64)
        self.busy = np.zeros((8, max(map(len, lengths)), max(map(len, self.products))), np.int64)
        places = ("element", "rows", "columns")
        fixed = {d for place, d, _ in self.constraints.settled if place in places}
        for d in columns:
            both = np.outer(downs[d], across[d])
            self.joint[d, : both.shape[0], : both.shape[1]] = np.searchsorted(
                self.products[d], both
            )
            own, parts = lengths[d][:, None], self.products[d][None, :]
            whole, rest = self.sizes[d] // (own * parts), self.sizes[d] % (own * parts)
            cycles = whole * own + np.minimum(own, rest)
            if LOOPS[d] not in fixed:  # no more elements than have work
                cycles = np.where(parts < 2 * -(-self.sizes[d] // own), cycles, 0)
            self.busy[d, : own.size, : parts.size] = cycles
        self.radix = np.array([len(products) for products in self.products], np.int64)
        self.order_at = np.array(
            [[LOOPS.index(d) for d in order] for order in self.orders], np.int64
        ).reshape(len(self.orders), -1)

        def sums(out: int, tap: int) -> Ints:
            shape = (
                len(lengths[out]), len(self.products[out]),
                len(lengths[tap]), len(self.products[tap]), SUMS,
            )  # fmt: skip
            return np.full(shape, -1, np.int64)

        self.height, self.width = sums(4, 6), sums(5, 7)
        self.far = [
            np.full((nest.sizes[o] + 1, nest.sizes[t] + 1, SUMS), -1, np.int64)
            for o, t in ((4, 6), (5, 7))
        ]
        prices = elements.prices
        self.charges = branch_and_bound.Charges(
            float(prices.near_cycles), 1.0 / elements.memory_width, float(prices.least_cycles),
            float(prices.near_j), float(prices.far_j), float(prices.idle_j),
            float(prices.fixed_j),
            ("time", "energy", "edp").index(prices.objective),
            elements.buffer_words, "x" in elements.held, "w" in elements.held,
            "y" in elements.held,
        )  # fmt: skip
        whole = work_of(nest, SpatialLayout(dict(zip(LOOPS, nest.sizes, strict=True)), {}, {}, ()))
        room = scratch_of(whole)
        deep = room._replace(
            turn=np.zeros(8, np.int64), trip=np.zeros(8, np.int64),
            saved_state=np.zeros((8, room.state.size), np.int64),
            saved_count=np.zeros((8, room.counted.size), np.int64),
            saved_again=np.zeros(8, np.bool_), marks=np.zeros(2 * room.marks.size, np.int64),
            windows=np.full((2, room.windows.shape[1], 9), -1, np.int64),
            counted_at=np.zeros((18 * room.windows.shape[1], 3), np.int64),
        )  # fmt: skip
        self.room = deep
        self.window = whole.window
        own_room = deep._replace(
            turn=deep.turn.copy(), trip=deep.trip.copy(), offset=deep.offset.copy(),
            last=deep.last.copy(), marks=deep.marks.copy(),
        )  # fmt: skip
        ones = np.ones(8, np.int64)
        own_work = whole._replace(
            sizes=self.sizes, element=ones.copy(), rows=ones.copy(), columns=ones.copy()
        )
        self.axis = WindowAxis(own_work, elements.networks, own_room)

    def _lowest(self) -> float:
        """Bound what any layout is ranked by from below."""
        nest, elements, prices = self.nest, self.elements, self.elements.prices
        x, w, y = (nest.words(operand) for operand in OPERANDS)
        words, networks = x + w + y, elements.networks
        used = max(math.prod(parts.values()) for parts in self.rows) * max(
            math.prod(parts.values()) for parts in self.columns
        )
        time = max(
            nest.macs / used, words * prices.near_cycles, words / elements.memory_width,
            x / networks.x_words, w / networks.w_words, y / networks.out_words,
            prices.least_cycles,
        )  # fmt: skip
        energy_j = words * (prices.near_j + prices.far_j) + time * prices.idle_j + prices.fixed_j
        return {"time": time, "energy": energy_j, "edp": time * energy_j}[prices.objective]

    def _space(self, longest: float) -> branch_and_bound.LayoutSpace:
        """Return the spreads that may multiply in so many cycles, each with the fewest hops."""
        limit = min(longest, 2.0**62)
        room = _PAIRS
        while True:
            pairs = np.empty((room, 5), np.int64)
            found = branch_and_bound.spread_pairs(
                self.row_parts, self.column_parts, self.row_at, self.column_at, self.joint,
                self.radix, self.sizes, limit, pairs,
            )  # fmt: skip
            if found <= room:
                break
            room = found
        pairs = pairs[:found]
        pairs = pairs[np.lexsort((pairs[:, 4], pairs[:, 3], pairs[:, 1], pairs[:, 0]))]
        pairs = pairs[np.unique(pairs[:, 0], return_index=True)[1]]
        pairs = pairs[np.lexsort((pairs[:, 0], pairs[:, 2]))]
        self.pairs = pairs
        rows, columns = pairs[:, 3], pairs[:, 4]
        parts_at = np.empty((len(pairs), 8), np.int64)
        for d in range(8):
            parts_at[:, d] = self.joint[d, self.row_at[rows, d], self.column_at[columns, d]]
        return branch_and_bound.LayoutSpace(
            sizes=self.sizes,
            tiles=self.tile_lengths,
            tile_at=self.tile_at,
            parts=self.row_parts[rows] * self.column_parts[columns],
            parts_at=parts_at,
            hops=np.ascontiguousarray(pairs[:, 1]),
            least=np.ascontiguousarray(pairs[:, 2]),
            busy=self.busy,
            orders=self.order_at,
            height=self.height,
            width=self.width,
            far_height=self.far[0],
            far_width=self.far[1],
        )

    def _round(
        self, lowest: float, highest: float, longest: float, best: branch_and_bound.Best
    ) -> None:
        """Play the layouts whose bound is above `lowest` and at most `highest`."""
        space = self._space(longest)
        resume = np.zeros(2, np.int64)
        leaves = branch_and_bound.Leaves(
            np.empty((_LEAVES, 3)), np.empty(_LEAVES, np.int64), np.empty(_LEAVES, np.int64)
        )
        ranks = np.empty((len(self.orders), 3))
        machine = self.elements.networks
        before = best.chosen.copy()
        while resume[0] < len(space.parts):
            count = branch_and_bound.leaves_of(
                space, self.charges, machine, self.axis, lowest, highest, min(longest, 2.0**62),
                best, resume, leaves,
            )  # fmt: skip
            kept = leaves.rank[:count]
            order = np.lexsort((kept[:, 2], kept[:, 1], kept[:, 0]))
            branch_and_bound.examine(
                space, self.charges, machine, self.axis, self.room, self.window, ranks, leaves,
                order, best,
            )  # fmt: skip
        if (best.chosen != before).any():
            # Spreads are numbered anew in each round.
            row, column = self.pairs[best.chosen[1], 3:]
            self.spread = self.rows[row], self.columns[column]

    def _layout(self, chosen: Ints) -> SpatialLayout:
        """Return the layout of what was chosen."""
        tile, _, order, place, most = (int(number) for number in chosen)
        rows, columns = self.spread
        base = SpatialLayout(self.tiles[tile], rows, columns, ())
        inside: list[TemporalLoop] = []
        outside: list[TemporalLoop] = []
        for i, d in enumerate(self.orders[order]):
            trips = -(-self.nest.size(d) // base.array_tile[d])
            held = 1 if i < place else most if i == place else trips
            rest = -(-trips // held)
            if rest > 1:
                outside.append(TemporalLoop(d, rest))
            if held > 1:
                inside.append(TemporalLoop(d, held))
        return replace(base, buffer=tuple(inside), memory=tuple(outside))

    @property
    def _settles_tiles(self) -> bool:
        return any(place in ("buffer", "memory") for place, _, _ in self.constraints.settled)

    def _settled(self, known: LayoutResult | None) -> tuple[LayoutResult | None, bool]:
        """Play layouts whose loops over tiles a file settles in part, up to some number."""
        best: LayoutResult | None = None
        space = self._space(math.inf)
        bounds = np.ones((len(space.parts), len(space.tiles)))
        for d in range(8):
            bounds *= self.busy[d][space.tile_at[:, d][None, :], space.parts_at[:, d][:, None]]
        flat = np.where(bounds > 0, bounds, np.inf).ravel()
        left = _SETTLED
        by_time = self.elements.prices.objective == "time"
        for number in np.argsort(flat, kind="stable").tolist():
            limit = min((f.rank[0] for f in (best, known) if f is not None), default=math.inf)
            if not math.isfinite(flat[number]) or (by_time and flat[number] >= limit):
                break
            v, t = divmod(number, len(space.tiles))
            row, column = self.pairs[v, 3:]
            base = SpatialLayout(self.tiles[t], self.rows[row], self.columns[column], ())
            seen: set[tuple[TemporalLoop, ...]] = set()
            for order in self.orders:
                layout = _buffered(self.nest, self.elements, self.constraints, base, order)
                if layout is None or layout.loops in seen:
                    continue
                seen.add(layout.loops)
                if left == 0:
                    return best, False
                left, self.played = left - 1, self.played + 1
                found = evaluate(self.nest, self.elements, layout)
                if best is None or found.rank < best.rank:
                    best = found
        return best, True


def _numbers(factors: Ints, known: list[Ints]) -> Ints:
    """Return the number of each factor in its loop's list."""
    return np.stack(
        [np.searchsorted(known[d], factors[:, d]) for d in range(len(known))], axis=1
    ).astype(np.int64)  # fmt: skip


def _buffered(
    nest: ConvolutionNest,
    elements: Elements,
    constraints: Constraints,
    base: SpatialLayout,
    order: list[str],
) -> SpatialLayout | None:
    """Let the buffer hold the tiles of as many inner loops as it has room for."""
    tile = dict(base.array_tile)
    if elements.buffered(nest, tile) > elements.buffer_words:
        return None
    inside: list[TemporalLoop] = []
    outside: list[TemporalLoop] = []
    buffer, memory = constraints.factors("buffer"), constraints.factors("memory")
    for d in reversed(order):
        trips = -(-nest.size(d) // base.array_tile[d])
        most = trips
        fixed = buffer.get(d)
        if fixed is not None:
            most = min(most, fixed)
        if outside and fixed is None:
            most = 1
        while most > 1 and not _fits(nest, elements, tile, d, most):
            most -= 1
        if most > 1:
            inside.append(TemporalLoop(d, most))
            tile[d] *= most
        if most < trips:
            rest = -(-trips // most)
            if rest > memory.get(d, rest):
                return None
            outside.append(TemporalLoop(d, rest))
    if any(factor > 1 and TemporalLoop(d, factor) not in inside for d, factor in buffer.items()):
        return None
    return replace(base, buffer=tuple(reversed(inside)), memory=tuple(reversed(outside)))


def _fits(
    nest: ConvolutionNest, elements: Elements, tile: dict[str, int], d: str, trips: int
) -> bool:
    return elements.buffered(nest, {**tile, d: tile[d] * trips}) <= elements.buffer_words
