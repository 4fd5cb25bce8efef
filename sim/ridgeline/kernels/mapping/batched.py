"""Batched mapping search: many contractions on one machine in one compiled call.

What their tilings are depends on the contractions and the sides of the arrays alone: it is listed
once for all machines that have these in common.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline._jit import kernel
from ridgeline.kernels.mapping.compute import TileEngine
from ridgeline.kernels.mapping.footprint import Floats, Ints
from ridgeline.kernels.mapping.pipeline import FOUND_FIELDS, BufferLevel, Goal, Shape
from ridgeline.kernels.mapping.search import best_listed
from ridgeline.kernels.mapping.space import listed
from ridgeline.kernels.mapping.tilings import SUM_FIELDS, TILING_FIELDS


class Listing(NamedTuple):
    """Contractions with their tilings.

    Attributes
    ----------
    axes, touches, elements
        [P, 4, AXIS_FIELDS], [P, 3, 4], [P, 3] of P contractions.
    begins
        [P + 1], where the tilings of each begin.
    starts, table, sums
        [P, 5], then those tilings, as `space.listed` gives them.
    """

    axes: Ints
    touches: Ints
    elements: Floats
    begins: Ints
    starts: Ints
    table: Ints
    sums: Floats


@kernel
def list_each(axes: Ints, density: int) -> tuple[Ints, Ints, Ints, Floats]:
    """List the tilings of contractions: the last four fields of a `Listing`."""
    n = len(axes)
    begins, starts = np.zeros(n + 1, np.int64), np.empty((n, 5), np.int64)
    each = [listed(axes[i], density) for i in range(n)]
    for i in range(n):
        for axis in range(5):
            starts[i, axis] = each[i][0][axis]
        begins[i + 1] = begins[i] + starts[i, 4]
    table = np.empty((begins[n], TILING_FIELDS), np.int64)
    sums = np.empty((begins[n], SUM_FIELDS))
    for i in range(n):  # assigning rows would take seconds to compile
        for j in range(starts[i, 4]):
            for field in range(TILING_FIELDS):
                table[begins[i] + j, field] = each[i][1][j, field]
            for field in range(SUM_FIELDS):
                sums[begins[i] + j, field] = each[i][2][j, field]
    return begins, starts, table, sums


@kernel
def best_of_each(
    listing: Listing,
    width: Floats,
    level: BufferLevel,
    engine: TileEngine,
    goal: Goal,
    orders: Ints,
    cutoffs: Floats,
) -> tuple[Ints, Ints, Floats, NDArray[np.int64]]:
    """Find the best tiling and order of each contraction; see `search.best`.

    Parameters
    ----------
    cutoffs
        [P], what is above these need not be found.

    Returns
    -------
    extents, order, found, played
        [P, 4, 3], [P, 4], [P, FOUND_FIELDS], [P].
    """
    axes, begins = listing.axes, listing.begins
    n, most = len(axes), 0
    for i in range(n):
        most = max(most, begins[i + 1] - begins[i])
    extents, order = np.empty((n, 4, 3), np.int64), np.empty((n, 4), np.int64)
    found, played = np.empty((n, FOUND_FIELDS)), np.empty(n, np.int64)
    table = np.empty((most, TILING_FIELDS), np.int64)  # which the search writes to
    for i in range(n):
        shape = Shape(listing.touches[i], listing.elements[i], width, False, True)
        begin, count = begins[i], begins[i + 1] - begins[i]
        for j in range(count):
            for field in range(TILING_FIELDS):
                table[j, field] = listing.table[begin + j, field]
        extents_i, order_i, found_i, played[i] = best_listed(
            axes[i], listing.starts[i], table[:count], listing.sums[begin : begin + count], shape,
            level, engine, goal, orders, True, cutoffs[i],
        )  # fmt: skip
        for axis in range(4):  # assigning rows would take seconds to compile
            order[i, axis] = order_i[axis]
            for part in range(3):
                extents[i, axis, part] = extents_i[axis, part]
        for field in range(FOUND_FIELDS):
            found[i, field] = found_i[field]
    return extents, order, found, played
