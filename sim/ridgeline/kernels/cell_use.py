"""How often each cell of an array multiplies for an op: the map of an array's utilisation.

Cells of systolic arrays work for as many steps as there are tiles that reach them; elements of a
spatial array for as many iterations of the nest as are laid out on them. Summed over all cells this
is the op's multiply-accumulates, exactly.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import RidgelineError
from ridgeline.hardware.device import Device
from ridgeline.kernels.cost import OpCost
from ridgeline.kernels.engines import layout_on
from ridgeline.kernels.mapping.mapping_file import MappingFile
from ridgeline.kernels.spatial.nest import LOOPS, SpatialLayout
from ridgeline.kernels.spatial.nest import ConvolutionNest as SpatialNest
from ridgeline.kernels.systolic.closed_form import FoldSchedule, folds, layout
from ridgeline.kernels.systolic.device import arrays_of
from ridgeline.kernels.systolic.partition import ArrayPartition, best_partition
from ridgeline.kernels.traffic import accumulator_of, as_gemm
from ridgeline.workload.graph import Op

Counts = NDArray[np.int64]
Axes = list[list[tuple[int, int]]]
"""Lengths of tiles along batch, m, n and k, each with how many there are."""


@dataclass(frozen=True, slots=True)
class CellUse:
    """Multiply-accumulates of every cell.

    Attributes
    ----------
    macs
        [rows, columns], summed over all arrays.
    arrays
        How many there are.
    cycle_s
        In which a cell does one.
    layout
        What lies along rows and columns, in words.
    """

    macs: Counts
    arrays: int
    cycle_s: float
    layout: str

    def utilisation(self, time_s: float) -> NDArray[np.float64]:
        """Share of the cycles of a time in which each cell multiplies; mean over the arrays."""
        share = self.cycle_s / (time_s * self.arrays)  # of one multiply-accumulate
        return self.macs.astype(np.float64) * share


def systolic_cells(
    axes: Axes, parts: tuple[int, int, int, int], how: FoldSchedule, rows: int, columns: int
) -> Counts:
    """Count the multiply-accumulates of every cell, summed over the arrays that share a product.

    Parameters
    ----------
    axes
        Tiles that go through the arrays one after the other; one of each axis without buffers.
    parts
        Of each tile along batch, m, n and k.
    """
    pieces: Axes = []
    for tiles, number in zip(axes, parts, strict=True):
        found: dict[int, int] = {}
        for length, count in tiles:
            each = folds(length, number)
            whole, rest = divmod(length, each)
            for part, times in ((each, whole), (rest, 1)):
                if part and times:
                    found[part] = found.get(part, 0) + count * times
        pieces.append(list(found.items()))
    batches = sum(length * count for length, count in pieces[0])
    height, width, time = (pieces[axis] for axis in layout(how.dataflow, 1, 2, 3))
    down, across = _reached(height, rows), _reached(width, columns)
    steps = sum(length * count for length, count in time)
    return batches * steps * np.outer(down, across)


def _reached(tiles: list[tuple[int, int]], cells: int) -> Counts:
    """Folds of all tiles that reach each row (or column) of an array, [cells]."""
    reached = np.zeros(cells, np.int64)
    for length, count in tiles:
        whole, rest = divmod(length, cells)
        reached += count * whole
        reached[:rest] += count
    return reached


def partition_cells(
    found: ArrayPartition,
    sizes: tuple[int, int, int, int],
    how: FoldSchedule,
    rows: int,
    columns: int,
) -> Counts:
    """Count them for a product that is divided among arrays once."""
    parts = (found.batch_parts, found.m_parts, found.n_parts, found.k_parts)
    return systolic_cells([[(size, 1)] for size in sizes], parts, how, rows, columns)


def spatial_elements(nest: SpatialNest, laid: SpatialLayout, rows: int, columns: int) -> Counts:
    """Count the multiply-accumulates of every element of a spatial array, [rows, columns].

    An element's part of each loop is a digit of its row and its column number; what it does is the
    product over loops of the iterations that fall to that part.
    """
    work: list[Counts] = []
    shape: list[tuple[int, int]] = []
    for d in LOOPS:
        size = nest.size(d)
        element = min(laid.element.get(d, 1), size)
        parts = -(-size // element)
        down = min(laid.rows.get(d, 1), parts)
        across = min(laid.columns.get(d, 1), -(-parts // down))
        reach, done = element * down * across, np.zeros((down, across), np.int64)
        for i, j in itertools.product(range(down), range(across)):
            first = (i * across + j) * element
            starts = np.arange(first, size, reach)
            done[i, j] = np.minimum(element, size - starts).sum()
        work.append(done)
        shape.append((down, across))
    used_rows, used_columns = (math.prod(each[side] for each in shape) for side in range(2))
    found = np.zeros((rows, columns), np.int64)
    for row, column in itertools.product(range(used_rows), range(used_columns)):
        product, r, c = 1, row, column
        for done, (down, across) in zip(reversed(work), reversed(shape), strict=True):
            r, i = divmod(r, down)
            c, j = divmod(c, across)
            product *= int(done[i, j])
        found[row, column] = product
    return found


def cells_of(op: Op, cost: OpCost, device: Device, given: MappingFile | None = None) -> CellUse:
    """Count what every cell does for an op on the array that it was priced on.

    Parameters
    ----------
    given
        The mapping file that the op was priced with.

    Raises
    ------
    RidgelineError
        If the engine is no array of cells, or a mapping file settles a systolic array's tiles.
    """
    place = next(iter(cost.engine_work))
    name, _, format_ = place.rpartition(".")
    engine = device.engines[name]
    assert op.loops is not None
    gemm = as_gemm(op.loops, op.priced_as)
    sizes = (gemm.batch, gemm.m, gemm.n, gemm.k)
    if engine.spatial is not None:
        array = engine.spatial
        nest, found = layout_on(op, gemm, device, name, format_, given)
        macs = spatial_elements(nest, found.layout, array.rows.value, array.columns.value)
        return CellUse(macs, 1, 1 / array.clock.value, found.layout.shown(nest))
    if engine.array is None:
        raise RidgelineError(
            f"a map of cells is of a systolic or a spatial array; {op.name} runs on {name} of "
            f"{device.name}, of kind {engine.kind}"
        )
    if given is not None:
        raise RidgelineError(
            "a map of a systolic array's cells is of the mapping that is searched for"
        )
    described, cycle_s = engine.array, engine.array.flops_per_cycle / engine.rates[format_].value
    arrays = arrays_of(described, accumulator_of(engine, format_))
    rows, columns = arrays.rows, arrays.columns
    if cost.mapped is not None:
        from ridgeline.kernels.array_ends import tile_axes, way_of

        found_, machine = cost.mapped
        way = way_of(found_, machine)
        assert way is not None
        how, parts = way
        axes = tile_axes(found_, op.loops, op.priced_as)
        macs = systolic_cells(axes, parts, how, rows, columns)
    else:
        best = best_partition(gemm.m, gemm.n, gemm.k, gemm.batch, arrays)
        how = next(one for one in arrays.schedules if one.dataflow == best.dataflow)
        macs = partition_cells(best, sizes, how, rows, columns)
    down, across, time = ("mnk"[axis] for axis in layout(how.dataflow, 0, 1, 2))
    said = f"{how.dataflow}: {down} along rows, {across} along columns, {time} streams"
    return CellUse(macs, arrays.number, cycle_s, said)
