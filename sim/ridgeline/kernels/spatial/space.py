"""The layouts that are looked at: a list that depends on a nest and a dataflow, on no capacity.

An array, a register or a buffer with more room therefore has all layouts of the smaller one, and
cannot be slower. What does not fit is left out afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from ridgeline.kernels.spatial.constraints import Constraints
from ridgeline.kernels.spatial.dataflows import Dataflow
from ridgeline.kernels.spatial.machine import OPERANDS, Elements
from ridgeline.kernels.spatial.nest import LOOPS, SUMMED, ConvolutionNest

Ints = NDArray[np.int64]
_FEW = 16
_GROUPS = (("p",), ("n",), ("q",), ("c", "r", "s"), ("k",))
"""Loops over tiles that stay together."""
_ORDERS = tuple(
    ("g", *(d for group in order for d in group)) for order in permutations(_GROUPS)
)  # fmt: skip


@lru_cache(maxsize=4096)
def lengths(size: int, coarse: bool = False) -> tuple[int, ...]:
    """Lengths of the longest of some number of parts of a loop, the shortest first.

    Parameters
    ----------
    coarse
        Powers of two and three times these alone, and the whole loop.
    """

    def longest(about: int) -> int:
        return -(-size // -(-size // about))

    if coarse:
        steps = [2**i for i in range(size.bit_length() + 1)]
        wanted = {min(size, n) for step in steps for n in (step, 3 * step)}
    else:
        side = math.isqrt(size)
        wanted = {*range(1, side + 1), *(-(-size // parts) for parts in range(1, side + 2))}
    return tuple(sorted({longest(n) for n in wanted} | {size}))


@lru_cache(maxsize=4096)
def parts_up_to(size: int, limit: int) -> tuple[int, ...]:
    """Numbers of parts of a loop along an axis, the fewest first.

    Numbers up to 16 that differ in the longest part, four in each octave beyond, the whole loop
    and its parts of up to 16; of all these what does not pass the limit.
    """
    wanted = set(range(1, _FEW + 1))
    step = _FEW // 4
    while 4 * step <= size:
        wanted.update(range(4 * step, 8 * step, step))
        step *= 2
    wanted.update(-(-size // length) for length in range(1, _FEW + 1))
    found = {-(-size // -(-size // min(parts, size))) for parts in wanted}
    return tuple(sorted(parts for parts in found if parts <= limit))


def element_tiles(
    nest: ConvolutionNest, elements: Elements, flow: Dataflow, constraints: Constraints
) -> list[dict[str, int]]:
    """Tiles of one element that its registers have room for."""
    fixed = constraints.factors("element")
    found: list[dict[str, int]] = []
    free = [d for d in LOOPS if d in flow.element + flow.halved_in_element and nest.size(d) > 1]

    def fits(tile: Mapping[str, int]) -> bool:
        return all(
            nest.words(operand, tile) <= words
            for operand, words in zip(OPERANDS, elements.room, strict=True)
        )

    def extend(at: int, chosen: dict[str, int]) -> None:
        if not fits(chosen):
            return
        if at == len(free):
            found.append(chosen)
            return
        d = free[at]
        if d in chosen:
            extend(at + 1, chosen)
            return
        halved = d in flow.halved_in_element
        for length in _halves(nest.size(d)) if halved else lengths(nest.size(d), flow.coarse):
            if not fits({**chosen, d: length}):
                break
            extend(at + 1, {**chosen, d: length})

    extend(0, {d: min(factor, nest.size(d)) for d, factor in fixed.items()})
    return found


def _halves(size: int) -> list[int]:
    found = [size]
    while found[-1] > 1:
        found.append(-(-found[-1] // 2))
    return found[::-1]


def spreads(
    nest: ConvolutionNest, elements: Elements, flow: Dataflow, constraints: Constraints, axis: str
) -> list[dict[str, int]]:
    """All ways to spread loops along the "rows" or the "columns", the largest first."""
    fixed = constraints.factors("rows" if axis == "rows" else "columns")
    limit = elements.rows if axis == "rows" else elements.columns
    loops = flow.rows if axis == "rows" else flow.columns
    start = {d: factor for d, factor in fixed.items() if factor > 1}
    room = limit // math.prod(start.values())
    if room < 1 or any(d in SUMMED and axis not in elements.adds_along for d in start):
        return []
    free = [
        d
        for d in loops
        if d not in fixed and nest.size(d) > 1
        if d not in SUMMED or axis in elements.adds_along
    ]

    def extend(at: int, room: int, left: int, chosen: dict[str, int]) -> Iterator[dict[str, int]]:
        if at == len(free):
            yield chosen
            return
        for factor in parts_up_to(nest.size(free[at]), room):
            if factor == 1:
                yield from extend(at + 1, room, left, chosen)
            elif left:
                yield from extend(at + 1, room // factor, left - 1, {**chosen, free[at]: factor})

    found = extend(0, room, flow.along_axis, start)
    return sorted(found, key=lambda parts: -math.prod(parts.values()))


def orders_of(nest: ConvolutionNest, flow: Dataflow, constraints: Constraints) -> list[list[str]]:
    """Orders of the loops over tiles that the dataflow and the constraints leave."""
    found: dict[tuple[str, ...], None] = {}
    for order in _ORDERS:
        outer = [d for d in order if d not in flow.innermost]
        inner = [d for d in order if d in flow.innermost]
        those = constraints.order(outer + inner)
        found[tuple(d for d in those if nest.size(d) > 1)] = None
    return [list(order) for order in found]


def as_rows(factors: list[dict[str, int]]) -> Ints:
    """Return factors as [listed, 8], in the order of the nest's loops."""
    return np.array(
        [[listed.get(d, 1) for d in LOOPS] for listed in factors], np.int64
    ).reshape(-1, len(LOOPS))  # fmt: skip
