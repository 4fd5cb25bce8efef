"""The fastest layout of a nest on an array of elements, among those that a dataflow allows.

Fast means the array or the memory behind its buffer, whichever takes longer.

Candidates are ways to spread the loops over rows and columns, with a tile for each element, in the
order of the cycles that their multiplications alone take; then orders of the loops over tiles, by
what the busiest network takes at least. The search ends where no bound is below the best that was
found. It is deterministic. `SPREADS` and `COUNTED` limit how many candidates are looked at and
counted exactly; a result says whether the search was complete.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice, permutations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import RidgelineError
from ridgeline.kernels.mapping.given import Given
from ridgeline.kernels.spatial.clock import Machine
from ridgeline.kernels.spatial.constraints import FREE, Constraints, settled_by
from ridgeline.kernels.spatial.count import Counts, count
from ridgeline.kernels.spatial.dataflows import DATAFLOWS, Dataflow
from ridgeline.kernels.spatial.machine import OPERANDS, Elements
from ridgeline.kernels.spatial.nest import (
    DEPENDS,
    LOOPS,
    SUMMED,
    Layout,
    Loop,
    Nest,
    Operand,
)

SPREADS = 2000
COUNTED = 1000
Spread = tuple[int, dict[str, int], dict[str, int], dict[str, int]]
"""Cycles of the multiplications; tile of an element; parts along rows and columns."""
_LISTED = 20_000  # ways to spread loops along one axis
_GROUPS = (("p",), ("n",), ("q",), ("c", "r", "s"), ("k",))
"""Loops over tiles that stay together."""
_ORDERS = tuple(
    ("g", *(d for group in order for d in group)) for order in permutations(_GROUPS)
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Found:
    """A layout, and what it takes.

    Attributes
    ----------
    memory_words
        Words between the buffer and the memory behind it: x, w, sums in, sums out.
    memory_cycles
        In which they come and go.
    complete
        Whether no other layout that the dataflow allows is faster.
    """

    layout: Layout
    counts: Counts
    memory_words: tuple[int, int, int, int]
    memory_cycles: int
    complete: bool

    @property
    def cycles(self) -> int:
        """Of the array or of the memory, whichever takes longer."""
        return max(self.counts.cycles, self.memory_cycles)

    @property
    def rank(self) -> tuple[int, int]:
        """Cycles, then words from memory."""
        return self.cycles, sum(self.memory_words)


@lru_cache(maxsize=1024)
def best_layout(nest: Nest, elements: Elements, constraints: Constraints = FREE) -> Found:
    """Find the fastest layout; among equals the one that moves the fewest words from memory.

    Raises
    ------
    RidgelineError
        If the array has no room for any.
    """
    best: Found | None = None
    complete = True
    names = (constraints.dataflow,) if constraints.dataflow else elements.dataflows
    for name in names:
        flow = DATAFLOWS[name]
        spreads = list(islice(_spreads(nest, elements, flow, constraints), SPREADS + 1))
        complete = complete and len(spreads) <= SPREADS
        left = COUNTED
        for least, base, loops in _candidates(nest, elements, flow, constraints, spreads[:SPREADS]):
            if best is not None and least >= best.cycles:
                # Spreads that were not looked at multiply as long as the last that was, at least.
                complete = complete or spreads[-1][0] >= best.cycles
                break
            layout = _buffered(nest, elements, constraints, base, loops)
            if layout is None:
                continue
            if left == 0:
                complete = False
                break
            left -= 1
            found = evaluate(nest, elements, layout)
            if best is None or found.rank < best.rank:
                best = found
    if best is None:
        raise RidgelineError(
            f"no layout of the loops {_shown(nest)} fits the array: {elements.rows} x "
            f"{elements.columns} elements with {elements.room} words of images, filters and sums, "
            f"a buffer of {elements.buffer_words} words{constraints.shown}"
        )
    return replace(best, complete=complete)


def given_layout(nest: Nest, elements: Elements, given: Given, levels: list[str]) -> Found:
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


def evaluate(nest: Nest, elements: Elements, layout: Layout) -> Found:
    """Count one layout."""
    counts = count(nest, layout, elements.networks)
    outside = Layout(layout.buffer_tile, {}, {}, layout.memory)
    memory = count(nest, outside, _COUNTER)
    words = (memory.x_words, memory.w_words, memory.in_words, memory.out_words)
    near = (counts.x_words, counts.w_words, counts.in_words, counts.out_words)
    held = ("x" in elements.held, "w" in elements.held, *(("y" in elements.held,) * 2))
    x, w, y_in, y_out = (
        far if is_held else own for far, own, is_held in zip(words, near, held, strict=True)
    )
    moved = math.ceil((x + w + y_in + y_out) / elements.memory_width)
    return Found(layout, counts, (x, w, y_in, y_out), moved, complete=True)


_COUNTER = Machine(1, 1, 1, 1, True, True, True, True, True, 1, 0)
"""A buffer looked at as one element: what its networks carry is what comes from the memory."""


def _shown(nest: Nest) -> str:
    sizes = ((name, nest.size(own)) for name, own in nest.names.items())
    return " ".join(f"{name}={size}" for name, size in sizes if size > 1)


def _parts(size: int, limit: int) -> list[int]:
    """Numbers of parts up to a limit that differ in the length of the longest part."""
    found: list[int] = []
    for parts in range(1, min(size, limit) + 1):
        if not found or -(-size // parts) < -(-size // found[-1]):
            found.append(parts)
    return found


def _products(
    nest: Nest, loops: str, limit: int, fixed: Mapping[str, int], whole: str
) -> list[dict[str, int]]:
    """All ways to give factors to some loops with a product of at most `limit`."""
    start = {d: factor for d, factor in fixed.items() if factor > 1}
    if math.prod(start.values()) > limit:
        return []
    room = limit // math.prod(start.values())
    for d in whole:
        if d not in fixed:
            factor = max(_parts(nest.size(d), room), default=1)
            start[d] = factor
            room //= factor
    free = [d for d in loops if d not in start and d not in fixed and nest.size(d) > 1]

    def extend(at: int, room: int, chosen: dict[str, int]) -> Iterator[dict[str, int]]:
        if at == len(free):
            yield chosen
            return
        for factor in _parts(nest.size(free[at]), room):
            yield from extend(at + 1, room // factor, {**chosen, free[at]: factor})

    return list(islice(extend(0, room, start), _LISTED))


def _spreads(
    nest: Nest, elements: Elements, flow: Dataflow, constraints: Constraints
) -> Iterator[Spread]:
    """Spreads and element tiles by the cycles of their multiplications, the fewest first."""
    tiles = [
        tile
        for tile in _tiles(nest, elements, flow, constraints)
        if all(
            nest.words(operand, tile) <= words
            for operand, words in zip(OPERANDS, elements.room, strict=True)
        )
    ]
    axes = []
    places: tuple[tuple[Literal["rows", "columns"], str, int, str], ...] = (
        ("rows", flow.rows, elements.rows, flow.whole_along_rows),
        ("columns", flow.columns, elements.columns, ""),
    )
    for axis, loops, limit, whole in places:
        allowed = "".join(d for d in loops if d not in SUMMED or axis in elements.adds_along)
        fixed = constraints.factors(axis)
        axes.append(_products(nest, allowed, limit, fixed, whole if not fixed else ""))
    if not all(axes):
        return
    rows, columns = ([[part.get(d, 1) for d in LOOPS] for part in axis] for axis in axes)
    row_parts, column_parts = np.array(rows, np.int64), np.array(columns, np.int64)
    summed = [LOOPS.index(d) for d in SUMMED]
    sizes = np.array(nest.sizes, np.int64)
    found: list[tuple[int, int, int, int]] = []
    for number, tile in enumerate(tiles):
        own = np.array([tile.get(d, 1) for d in LOOPS], np.int64)
        reach = own * row_parts[:, None, :] * column_parts[None, :, :]
        whole_tiles, rest = sizes // reach, sizes % reach
        cycles = (whole_tiles * own + np.minimum(own, rest)).prod(axis=2)
        both = (row_parts[:, None, summed] > 1) & (column_parts[None, :, summed] > 1)
        cycles[both.any(axis=2)] = np.iinfo(np.int64).max
        order = np.argsort(cycles, axis=None, kind="stable")[:SPREADS]
        for flat in order:
            i, j = divmod(int(flat), len(column_parts))
            found.append((int(cycles[i, j]), number, i, j))
    # Among equals the larger tile, which needs fewer exchanges.
    found.sort(key=lambda item: (item[0], -math.prod(tiles[item[1]].values()), *item[1:]))
    for cycles_, number, i, j in found:
        if cycles_ < np.iinfo(np.int64).max:
            yield cycles_, tiles[number], axes[0][i], axes[1][j]


def _tiles(
    nest: Nest, elements: Elements, flow: Dataflow, constraints: Constraints
) -> list[dict[str, int]]:
    """Tiles of one element that its registers have room for."""
    fixed = constraints.factors("element")
    whole = {d: nest.size(d) for d in flow.whole_in_element if d not in fixed}
    start = {**whole, **fixed}
    found: list[dict[str, int]] = []

    def fits(tile: dict[str, int]) -> bool:
        return all(
            nest.words(operand, tile) <= words
            for operand, words in zip(OPERANDS, elements.room, strict=True)
        )

    def extend(loops: str, chosen: dict[str, int]) -> None:
        if not fits(chosen):
            return
        if not loops:
            found.append(chosen)
            return
        d = loops[0]
        if d in chosen:
            extend(loops[1:], chosen)
            return
        lengths = {-(-nest.size(d) // parts) for parts in _parts(nest.size(d), nest.size(d))}
        for length in sorted(lengths):
            if not fits({**chosen, d: length}):
                break
            extend(loops[1:], {**chosen, d: length})

    for d in flow.whole_in_element:  # a filter that is too long for the registers is cut
        while start.get(d, 1) > 1 and d not in fixed and not fits(start):
            start[d] = -(-start[d] // 2)
    extend(flow.element, start)
    # A tile that another one contains cannot need fewer exchanges, and multiplies as long.
    return found


def _candidates(
    nest: Nest, elements: Elements, flow: Dataflow, constraints: Constraints, spreads: list[Spread]
) -> Iterator[tuple[int, Layout, tuple[Loop, ...]]]:
    """Spreads with orders of the loops over tiles, by the cycles that they take at least.

    An operand crosses its network again with each loop around the innermost that it depends on.
    """
    orders = _orders(flow, constraints)
    layouts = [Layout(element, rows, columns, ()) for _, element, rows, columns in spreads]
    if not layouts:
        return
    tiles = np.array([[base.array_tile[d] for d in LOOPS] for base in layouts], np.int64)
    trips = -(-np.array(nest.sizes, np.int64) // tiles)
    order = np.array([[LOOPS.index(d) for d in loops] for loops in orders])
    nested = trips[:, order]  # [spreads, orders, loops]
    least = np.array([spread[0] for spread in spreads], np.int64)[:, None]
    words: dict[Operand, NDArray[np.int64]] = {}
    for operand, depends in DEPENDS.items():
        own = np.array([[d in depends for d in loops] for loops in orders])
        inside = np.logical_or.accumulate((own & (nested > 1))[:, :, ::-1], axis=2)[:, :, ::-1]
        times = np.where(inside & ~own, nested, 1).prod(axis=2)
        words[operand] = nest.words(operand) * times
    networks = elements.networks
    back = words["y"] - nest.words("y")
    far = np.zeros_like(back)
    for operand, times in words.items():
        far = far + (nest.words(operand) if operand in elements.held else times)
    for cycles in (
        words["x"] // networks.x_words, words["w"] // networks.w_words,
        words["y"] // networks.out_words, back // networks.in_words,
        (far / elements.memory_width).astype(np.int64),
    ):  # fmt: skip
        least = np.maximum(least, cycles)
    seen: set[tuple[int, tuple[Loop, ...]]] = set()
    for flat in np.argsort(least, axis=None, kind="stable"):
        i, j = divmod(int(flat), len(orders))
        loops = tuple(Loop(d, int(trips[i, LOOPS.index(d)])) for d in orders[j])
        loops = tuple(loop for loop in loops if loop.trips > 1)
        if (i, loops) not in seen:
            seen.add((i, loops))
            yield int(least[i, j]), layouts[i], loops


def _orders(flow: Dataflow, constraints: Constraints) -> list[list[str]]:
    """Orders of the loops over tiles that the dataflow and the constraints leave."""
    found: dict[tuple[str, ...], None] = {}
    for order in _ORDERS:
        outer = [d for d in order if d not in flow.innermost]
        inner = [d for d in order if d in flow.innermost]
        found[tuple(constraints.order(outer + inner))] = None
    return [list(order) for order in found]


def _buffered(
    nest: Nest, elements: Elements, constraints: Constraints, base: Layout, loops: tuple[Loop, ...]
) -> Layout | None:
    """Let the buffer hold the tiles of as many inner loops as it has room for."""
    tile = dict(base.array_tile)
    if elements.buffered(nest, tile) > elements.buffer_words:
        return None
    inside: list[Loop] = []
    outside: list[Loop] = []
    buffer, memory = constraints.factors("buffer"), constraints.factors("memory")
    for loop in reversed(loops):
        most = loop.trips
        fixed = buffer.get(loop.of)
        if fixed is not None:
            most = min(most, fixed)
        if outside and fixed is None:
            most = 1
        while most > 1 and not _fits(nest, elements, tile, loop.of, most):
            most -= 1
        if most > 1:
            inside.append(Loop(loop.of, most))
            tile[loop.of] *= most
        if most < loop.trips:
            rest = -(-loop.trips // most)
            if rest > memory.get(loop.of, rest):
                return None
            outside.append(Loop(loop.of, rest))
    if any(factor > 1 and Loop(d, factor) not in inside for d, factor in buffer.items()):
        return None
    return Layout(
        base.element, base.rows, base.columns, tuple(reversed(inside)), tuple(reversed(outside))
    )


def _fits(nest: Nest, elements: Elements, tile: dict[str, int], d: str, trips: int) -> bool:
    return elements.buffered(nest, {**tile, d: tile[d] * trips}) <= elements.buffer_words
