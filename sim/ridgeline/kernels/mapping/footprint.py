"""How many elements of an operand a tile touches along one axis.

The index of a convolution's image is v = s p + d r - padding. Two points (p, r) and (p', r') touch
the same element if s (p - p') = d (r' - r), that is if they are a whole number of steps
(d / g, -s / g) apart, g = gcd(s, d). A tile's points fall into chains of such steps, one chain for
each element; a chain has one link less than points. So the elements are the points less the links,
and the links are the points of a tile that is smaller by one step. Points whose v lies in the
padding are left out of both counts: all points of a chain share v.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ridgeline._jit import kernel, kernel_call, kernel_part

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# Columns of the table of axes (`pack.py`): positions of dimensions, numbers of `OperandAxis`.
DIM, WINDOW, EXTENT, STRIDE, DILATION, PADDING = range(6)


@kernel_call
def _points(p0: int, p1: int, r0: int, r1: int, axis: Ints) -> int:
    """Points of a tile whose element is not padding."""
    count = 0
    for r in range(r0, r1):
        first = axis[PADDING] - axis[DILATION] * r  # s p has to be at least this
        low = max(p0, -(-first // axis[STRIDE]))
        high = min(p1, (first + axis[EXTENT] - 1) // axis[STRIDE] + 1)
        count += max(0, high - low)
    return count


@kernel_call
def touched(p0: int, p1: int, r0: int, r1: int, axis: Ints) -> int:
    """Elements that the points p0 <= p < p1, r0 <= r < r1 touch along an axis with a window."""
    a, b = axis[STRIDE], axis[DILATION]
    while b:
        a, b = b, a % b
    return _points(p0, p1, r0, r1, axis) - _points(
        p0 + axis[DILATION] // a, p1, r0, r1 - axis[STRIDE] // a, axis
    )


@kernel_part
def tiles_of(size: int, tile: int) -> int:
    """Count the tiles that cover `size` points."""
    return -(-size // tile)


@kernel_call
def axis_sum(axis: Ints, sizes: Ints, tile: Ints, last: Ints) -> float:
    """Elements of all tiles along an axis, together.

    Parameters
    ----------
    axis
        One row of the table of axes.
    sizes, tile
        Sizes of the dimensions and extents of a tile.
    last
        1 for dimensions of which only the last tile is looked at.
    """
    dim, window = axis[DIM], axis[WINDOW]
    count = tiles_of(sizes[dim], tile[dim])
    if window < 0:
        if last[dim]:
            return float(sizes[dim] - (count - 1) * tile[dim])
        return float(sizes[dim])
    windows = tiles_of(sizes[window], tile[window])
    total = 0.0
    for j in range(windows - 1 if last[window] else 0, windows):
        r0 = j * tile[window]
        r1 = min(r0 + tile[window], sizes[window])
        for i in range(count - 1 if last[dim] else 0, count):
            p0 = i * tile[dim]
            total += touched(p0, min(p0 + tile[dim], sizes[dim]), r0, r1, axis)
    return total


@kernel
def count_touched(p0: int, p1: int, r0: int, r1: int, axis: Ints) -> int:
    """Elements that a tile touches along an axis with a window; see `touched`."""
    return touched(p0, p1, r0, r1, axis)


@kernel
def count_points(p: int, r: int, axis: Ints) -> int:
    """Points (output, filter) along an axis whose element is not padding."""
    return _points(0, p, 0, r, axis)
