"""A nest played point by point through explicit buffers: slow, and obviously right.

Every buffer is a dictionary from an element's index to its value. A tile that is not in place is
copied element by element from the buffer behind; partial sums that leave a buffer are written
back, and read again when they are needed again. The product that comes out is real.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

from ridgeline.kernels.mapping.mapping import Mapping
from ridgeline.kernels.mapping.nest import ContractionNest, Operand

Point = dict[str, int]
Index = tuple[int, ...]
Ranges = dict[str, tuple[int, int]]


def index_of(operand: Operand, point: Point) -> Index | None:
    """Index of the element that a point touches; None in the padding."""
    found = []
    for axis in operand.axes:
        v = point[axis.dim] * axis.stride - axis.padding
        if axis.window is not None:
            v += point[axis.window] * axis.dilation
        if not 0 <= v < axis.extent:
            return None
        found.append(v)
    return tuple(found)


def points(ranges: Ranges) -> Iterator[Point]:
    """Every point of a tile."""
    for values in itertools.product(*(range(low, high) for low, high in ranges.values())):
        yield dict(zip(ranges, values, strict=True))


def elements(operand: Operand, ranges: Ranges) -> set[Index]:
    """Elements that a tile touches."""
    return {index for p in points(ranges) if (index := index_of(operand, p)) is not None}


class Trace:
    """Plays a mapping; `loads`, `stores`: words by (level, operand); `result`: the product."""

    def __init__(self, nest: ContractionNest, mapping: Mapping, a: dict, b: dict) -> None:
        self.nest, self.mapping = nest, mapping
        self.operands = {operand.name: operand for operand in nest.operands}
        self.loads: Counter[tuple[str, str]] = Counter()
        self.stores: Counter[tuple[str, str]] = Counter()
        self.held: list[dict[str, dict[Index, float]]] = [
            {name: {} for name in level.keeps} for level in mapping.levels
        ]
        self.held[0] |= {"a": dict(a), "b": dict(b), "c": {}}
        self.place: list[dict[str, tuple]] = [{} for _ in mapping.levels]
        self.touched: set[Index] = set()
        whole = {dim: (0, size) for dim, size in nest.size.items()}
        self._level(0, whole)
        for level in range(len(mapping.levels) - 1, 0, -1):
            self._evict(level, "c")
        self.result = self.held[0]["c"]

    def _level(self, level: int, tile: Ranges) -> None:
        """Play the loops of a level over its tile."""
        extents = (
            self.mapping.tile(level + 1, self.nest)
            if level + 1 < len(self.mapping.levels)
            else {d: self.mapping.spatial(d) for d in self.nest.dims}
        )
        self._loops(level, list(self.mapping.levels[level].temporal), extents, tile)

    def _loops(self, level: int, loops: list, extents: dict[str, int], tile: Ranges) -> None:
        if not loops:
            if level + 1 < len(self.mapping.levels):
                self._come_in(level + 1, tile)
                self._level(level + 1, tile)
            else:
                self._compute(tile)
            return
        (dim, _), *inner = loops
        step = extents[dim]
        for loop in inner:
            step *= loop.factor if loop.dim == dim else 1
        low, high = tile[dim]
        for start in range(low, high, step):
            self._loops(level, inner, extents, tile | {dim: (start, min(start + step, high))})

    def _come_in(self, level: int, tile: Ranges) -> None:
        for name in self.mapping.levels[level].keeps:
            operand = self.operands[name]
            place = tuple(tile[dim] for dim in sorted(operand.dims))
            if self.place[level].get(name) == place:
                continue
            if name == "c":
                for near in range(len(self.mapping.levels) - 1, level - 1, -1):
                    self._evict(near, "c")
            self.place[level][name] = place
            source = self.held[self._behind(level, name)][name]
            mine: dict[Index, float] = {}
            for index in elements(operand, tile):
                if name == "c" and index not in self.touched:
                    mine[index] = 0.0
                    continue
                mine[index] = source[index]
                self.loads[self.mapping.levels[level].name, name] += 1
            self.held[level][name] = mine

    def _behind(self, level: int, name: str) -> int:
        return next(far for far in range(level - 1, -1, -1) if name in self.held[far])

    def _evict(self, level: int, name: str) -> None:
        """Write partial sums back; the buffer is empty afterwards."""
        if name not in self.held[level] or name not in self.place[level]:
            return
        mine = self.held[level][name]
        self.held[self._behind(level, name)][name].update(mine)
        self.stores[self.mapping.levels[level].name, name] += len(mine)
        self.touched.update(mine)
        self.held[level][name] = {}
        del self.place[level][name]

    def _compute(self, tile: Ranges) -> None:
        near = {name: self.held[self._behind(len(self.held), name)][name] for name in "abc"}
        for point in points(tile):
            index = {name: index_of(self.operands[name], point) for name in "abc"}
            if None in index.values():
                continue
            a, b, c = (index[name] for name in "abc")
            near["c"][c] = near["c"].get(c, 0.0) + near["a"][a] * near["b"][b]
