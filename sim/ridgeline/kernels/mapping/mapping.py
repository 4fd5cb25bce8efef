"""A mapping: which loops run at which memory level, in which order, and which run in space.

Levels are listed from the farthest to the nearest. While a level's tile stays where it is, the
level's temporal loops run over the tiles of the next nearer level; the tile of the nearest level is
what the spatial loops spread over the rows and columns of the compute array. A tile's extent along
a dimension is the product of the factors at its level and nearer ones, the spatial ones among them;
the last tile along a dimension is what is left over, so the factors of a dimension need only cover
it, not divide it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from collections.abc import Mapping as Readable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ridgeline.errors import RidgelineError, nearest
from ridgeline.kernels.mapping.nest import ContractionNest

OPERANDS = ("a", "b", "c")
FAR = 3
"""The port of the memory behind the buffers, for operands that pass them by."""


class TileLoop(NamedTuple):
    """A loop over `factor` tiles along a dimension."""

    dim: str
    factor: int


@dataclass(frozen=True, slots=True)
class LevelLoops:
    """The temporal loops of one memory level.

    Attributes
    ----------
    name
        The memory level.
    temporal
        Loops over the tiles of the next nearer level, from the outermost to the innermost.
    keeps
        Operands (a, b, c) of which this level holds a tile; the others pass by it.
    """

    name: str
    temporal: tuple[TileLoop, ...] = ()
    keeps: tuple[str, ...] = OPERANDS


@dataclass(frozen=True, slots=True)
class Mapping:
    """Loops in time for each memory level, loops in space for rows and columns of the array.

    Attributes
    ----------
    levels
        From the farthest memory level to the nearest.
    rows, columns
        Loops in space.
    """

    levels: tuple[LevelLoops, ...]
    rows: tuple[TileLoop, ...] = ()
    columns: tuple[TileLoop, ...] = ()

    def spatial(self, dim: str) -> int:
        """Factor of a dimension in space."""
        return math.prod(loop.factor for loop in (*self.rows, *self.columns) if loop.dim == dim)

    def factor(self, level: int, dim: str) -> int:
        """Factor of a dimension at one level."""
        return math.prod(loop.factor for loop in self.levels[level].temporal if loop.dim == dim)

    def tile(self, level: int, nest: ContractionNest) -> dict[str, int]:
        """Extents of the largest tile that a level holds; level 0 is the farthest."""
        return {
            dim: min(
                size,
                self.spatial(dim)
                * math.prod(self.factor(near, dim) for near in range(level, len(self.levels))),
            )
            for dim, size in nest.size.items()
        }

    def nearest_tiles(self, nest: ContractionNest) -> Iterator[tuple[tuple[int, ...], int]]:
        """List the kinds of tiles of the nearest level: extents by dimension, and how many."""
        tile = self.tile(len(self.levels) - 1, nest)
        pieces = []
        for dim in nest.dims:
            whole, rest = divmod(nest.size[dim], tile[dim])
            pieces.append([(tile[dim], whole)] * bool(whole) + [(rest, 1)] * bool(rest))
        for kind in itertools.product(*pieces):
            yield tuple(extent for extent, _ in kind), math.prod(number for _, number in kind)

    def check(self, nest: ContractionNest) -> None:
        """Refuse a mapping that does not belong to a nest.

        Raises
        ------
        RidgelineError
            If a loop's dimension is unknown, a factor is not positive, the factors of a dimension
            do not cover its size, or an operand is not kept at the farthest level.
        """
        if not self.levels:
            raise RidgelineError("a mapping needs at least one memory level")
        places = [(level.name, level.temporal) for level in self.levels]
        for place, loops in (*places, ("rows", self.rows), ("columns", self.columns)):
            for dim, factor in loops:
                if dim not in nest.size:
                    raise RidgelineError(
                        f"{place}: there is no dimension {dim!r}{nearest(dim, nest.dims)} "
                        f"(there are: {', '.join(nest.dims)})"
                    )
                if factor < 1:
                    raise RidgelineError(f"{place}: the factor of {dim} must be at least 1")
        for level in self.levels:
            for name in level.keeps:
                if name not in OPERANDS:
                    raise RidgelineError(f"{level.name}: operands are a, b, c; found {name!r}")
        if set(self.levels[0].keeps) != set(OPERANDS):
            raise RidgelineError(f"{self.levels[0].name}, the farthest level, keeps a, b and c")
        for dim, extent in self.tile(0, nest).items():
            if extent < nest.size[dim]:
                raise RidgelineError(
                    f"the factors of {dim} cover {extent} of {nest.size[dim]} points"
                )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values: one entry per level, with its loops as [dim, factor] pairs."""
        levels: list[Readable[str, Any]] = [
            {"level": level.name, "temporal": [list(x) for x in level.temporal],
             "keeps": list(level.keeps)}
            for level in self.levels
        ]  # fmt: skip
        return {
            "levels": levels,
            "rows": [list(loop) for loop in self.rows],
            "columns": [list(loop) for loop in self.columns],
        }

    def __str__(self) -> str:
        places = [(level.name, level.temporal) for level in self.levels]
        places += [("rows", self.rows), ("columns", self.columns)]
        return "; ".join(
            f"{name}: {' '.join(f'{dim}{factor}' for dim, factor in loops) or '-'}"
            for name, loops in places
        )
