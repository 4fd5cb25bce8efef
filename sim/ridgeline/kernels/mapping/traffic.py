"""Words that a mapping moves between memory levels, counted in closed form.

Into a level comes, for every operand that it keeps, one tile each time that the tile changes. A
tile changes with every iteration of the loops above the level, except that the innermost run of
loops that the operand does not depend on leaves it where it is (the footprint-times-trips rule of
Timeloop, Parashar et al., ISPASS 2019). Tiles are counted with their own extents, the last ones
along a dimension with what is left over, so that a sum over tiles is a product of sums over axes.

One thing more is needed to be exact: where what is left over is a single tile, the loops over it
take one turn, and a step of a loop further out, of which the operand does not depend, finds the
tile in place. Such steps are subtracted.

A result's tile goes out each time that it changes, and comes back in when it is needed again: what
comes in is what goes out less the elements that are touched for the first time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ridgeline._jit import kernel, kernel_call
from ridgeline.kernels.mapping.footprint import DIM, WINDOW, Ints, axis_sum, tiles_of
from ridgeline.kernels.mapping.mapping import OPERANDS, Mapping
from ridgeline.kernels.mapping.nest import ContractionNest


@dataclass(frozen=True, slots=True)
class OperandWords:
    """Words of one operand that cross the border between a level and the one it comes from.

    Attributes
    ----------
    source
        The nearest of the farther levels that keeps the operand.
    loads, stores
        Words in and out. Of a result the loads are partial sums that are read back.
    final
        Words of the stores that are results, each element once; the others are partial sums.
    """

    level: str
    operand: str
    source: str
    loads: float
    stores: float
    final: float


@lru_cache(maxsize=4096)
def pack_axes(nest: ContractionNest) -> tuple[Ints, Ints]:
    """Put a nest's axes into a table, a row for each, and tell where each operand's rows begin."""
    rows, begins = [], [0]
    for operand in nest.operands:
        for axis in operand.axes:
            window = -1 if axis.window is None else nest.dims.index(axis.window)
            rows.append(
                (
                    nest.dims.index(axis.dim), window, axis.extent, axis.stride,
                    axis.dilation, axis.padding,
                )
            )  # fmt: skip
        begins.append(len(rows))
    return np.array(rows, np.int64), np.array(begins, np.int64)


def traffic(nest: ContractionNest, mapping: Mapping) -> list[OperandWords]:
    """Count the words that cross every border between levels.

    Raises
    ------
    RidgelineError
        If the mapping does not belong to the nest.
    """
    mapping.check(nest)
    axes, begins = pack_axes(nest)
    sizes = np.array(nest.sizes, np.int64)
    dims = [
        (nest.dims.index(loop.dim), loop.factor, position)
        for position, level in enumerate(mapping.levels)
        for loop in level.temporal
    ]
    loops = np.array(dims, np.int64).reshape(-1, 3)
    found = []
    for position, level in enumerate(mapping.levels[1:], start=1):
        extents = mapping.tile(position, nest)
        tile = np.array([extents[dim] for dim in nest.dims], np.int64)
        above = loops[loops[:, 2] < position]
        for index, operand in enumerate(OPERANDS):
            if operand not in level.keeps:
                continue
            mine = axes[begins[index] : begins[index + 1]]
            words = tile_words(mine, sizes, tile, above[:, 0], above[:, 1])
            source = next(far for far in mapping.levels[position - 1 :: -1] if operand in far.keeps)
            first = distinct(mine, sizes) if operand == "c" else 0.0
            loads, stores = (words - first, words) if operand == "c" else (words, 0.0)
            found.append(OperandWords(level.name, operand, source.name, loads, stores, first))
    return found


@lru_cache(maxsize=4096)
def elements_of(nest: ContractionNest) -> tuple[float, float, float]:
    """Elements of a, b and c that the nest touches."""
    axes, begins = pack_axes(nest)
    sizes = np.array(nest.sizes, np.int64)
    a, b, c = (distinct(axes[begins[i] : begins[i + 1]], sizes) for i in range(3))
    return a, b, c


@kernel
def distinct(axes: Ints, sizes: Ints) -> float:
    """Elements of an operand that the nest touches."""
    whole = np.zeros(len(sizes), np.int64)
    product = 1.0
    for i in range(len(axes)):
        product *= axis_sum(axes[i], sizes, sizes, whole)
    return product


@kernel
def tile_words(axes: Ints, sizes: Ints, tile: Ints, dims: Ints, factors: Ints) -> float:
    """Words of all tiles that come into a level, one after the other.

    Parameters
    ----------
    axes
        Of the operand.
    sizes, tile
        Of the dimensions: their sizes, and the extents of the level's tile.
    dims, factors
        Of the loops above the level, from the outermost to the innermost.
    """
    count, n_dims = len(dims), len(sizes)
    relevant = np.zeros(n_dims, np.int64)
    for i in range(len(axes)):
        relevant[axes[i, DIM]] = 1
        if axes[i, WINDOW] >= 0:
            relevant[axes[i, WINDOW]] = 1
    # extent[j, d]: what one iteration of loop j - 1 covers of dimension d; [0]: before any loop.
    extent = np.empty((count + 1, n_dims), np.int64)
    extent[count] = tile
    for j in range(count - 1, -1, -1):
        extent[j] = extent[j + 1]
        extent[j, dims[j]] = extent[j + 1, dims[j]] * factors[j]
    turns = np.zeros(count, np.int64)
    end = 0
    for j in range(count):
        d = dims[j]
        before, after = tiles_of(sizes[d], extent[j, d]), tiles_of(sizes[d], extent[j + 1, d])
        turns[j] = after > before
        if turns[j] and relevant[d]:
            end = j + 1
    none = np.zeros(n_dims, np.int64)
    words = _product(axes, sizes, tile, none) * _turns(extent[end], sizes, relevant)
    for j in range(end):
        d = dims[j]
        if turns[j] and not relevant[d]:
            before = tiles_of(sizes[d], extent[j, d])
            after = tiles_of(sizes[d], extent[j + 1, d])
            words -= (
                (after - before) / after
                * _turns(extent[j + 1], sizes, relevant)
                * _in_place(j, axes, sizes, tile, dims, turns, relevant, extent)
            )  # fmt: skip
    return words


@kernel_call
def _turns(extent: Ints, sizes: Ints, relevant: Ints) -> float:
    """Count iterations of the dimensions that an operand does not depend on."""
    product = 1.0
    for d in range(len(sizes)):
        if not relevant[d]:
            product *= tiles_of(sizes[d], extent[d])
    return product


@kernel_call
def _product(axes: Ints, sizes: Ints, tile: Ints, last: Ints) -> float:
    product = 1.0
    for i in range(len(axes)):
        product *= axis_sum(axes[i], sizes, tile, last)
    return product


@kernel
def _in_place(
    j: int, axes: Ints, sizes: Ints, tile: Ints, dims: Ints, turns: Ints, relevant: Ints,
    extent: Ints,
) -> float:  # fmt: skip
    """Words of the tiles that a step of loop j, which is not the operand's, finds in place."""
    last = np.zeros(len(sizes), np.int64)
    for i in range(j + 1, len(dims)):
        d = dims[i]
        if not (turns[i] and relevant[d]):
            continue
        outer = tiles_of(sizes[d], extent[j + 1, d])
        left = tiles_of(sizes[d], tile[d]) - (outer - 1) * (extent[j + 1, d] // tile[d])
        if left != 1:
            return 0.0
        last[d] = 1
    return _product(axes, sizes, tile, last)
