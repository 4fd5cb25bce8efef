"""The search for the best mapping of many contractions on one machine, in one compiled call."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ridgeline._jit import kernel
from ridgeline.kernels.mapping.compute import Engine
from ridgeline.kernels.mapping.footprint import Floats, Ints
from ridgeline.kernels.mapping.pipeline import FOUND_FIELDS, Level, Shape
from ridgeline.kernels.mapping.search import best


@kernel
def best_of_each(
    axes: Ints, touches: Ints, elements: Floats, width: Floats, level: Level, engine: Engine,
    density: int, for_energy: bool, orders: Ints,
) -> tuple[Ints, Ints, Floats, NDArray[np.int64]]:  # fmt: skip
    """Find the best tiling and order of each contraction; see `search.best`.

    Parameters
    ----------
    axes, touches, elements
        [P, 4, AXIS_FIELDS], [P, 3, 4], [P, 3] of P contractions.

    Returns
    -------
    extents, order, found, played
        [P, 4, 3], [P, 4], [P, FOUND_FIELDS], [P].
    """
    n = len(axes)
    extents, order = np.empty((n, 4, 3), np.int64), np.empty((n, 4), np.int64)
    found, played = np.empty((n, FOUND_FIELDS)), np.empty(n, np.int64)
    for i in range(n):
        shape = Shape(touches[i], elements[i], width, False, True)
        extents_i, order_i, found_i, played[i] = best(
            axes[i], shape, level, engine, density, for_energy, orders, True
        )
        for axis in range(4):  # assigning rows would take seconds to compile
            order[i, axis] = order_i[axis]
            for part in range(3):
                extents[i, axis, part] = extents_i[axis, part]
        for field in range(FOUND_FIELDS):
            found[i, field] = found_i[field]
    return extents, order, found, played
