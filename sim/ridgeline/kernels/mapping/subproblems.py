"""Subproblems: the tiles of one buffer level as contractions for the next level.

A part of an image is that image counted from the part's first row and column on. Where it is far
enough from the padding it does not matter where it is: parts that are alike are made equal.
"""

from __future__ import annotations

import numpy as np

from ridgeline._jit import kernel, kernel_call
from ridgeline.kernels.mapping.footprint import (
    DILATION,
    EXTENT,
    PADDING,
    STRIDE,
    Floats,
    Ints,
    tiles_of,
)
from ridgeline.kernels.mapping.tilings import (
    AXIS_FIELDS,
    COLUMNS,
    COLUMNS_0,
    COLUMNS_BEFORE,
    EXTENT_0,
    FILTER_COLUMNS,
    FILTER_ROWS,
    IMAGES,
    PIXELS,
    PLACE,
    POINTS,
    REPRESENTATIVE_FIELDS,
    ROWS,
    ROWS_0,
    ROWS_BEFORE,
    SELF,
    SIZE,
    TALL,
    WIDE,
    represent,
    room,
)


@kernel
def represented(axes: Ints, table: Ints, starts: Ints) -> Floats:
    """Write the representatives of all tilings."""
    tiles = np.empty((room(axes, table, starts), REPRESENTATIVE_FIELDS))
    used = 0
    for axis in range(4):
        for i in range(starts[axis], starts[axis + 1]):
            used = represent(axes[axis], table[i], tiles, used)
    return tiles


@kernel
def parts(axis: Ints, tiling: Ints, tiles: Floats) -> Ints:
    """Describe the representatives of a tiling as axes: [representatives, AXIS_FIELDS]."""
    found = np.empty((len(tiles), AXIS_FIELDS), np.int64)
    for i in range(len(tiles)):
        part = found[i]
        for field in range(AXIS_FIELDS):
            part[field] = axis[field]
        if not axis[PIXELS]:
            part[SIZE] = int(tiles[i, POINTS + SELF])
            continue
        place = int(tiles[i, PLACE])
        across = tiles_of(axis[COLUMNS], tiling[COLUMNS_0])
        down = tiles_of(axis[ROWS], tiling[ROWS_0])
        image = place // across // down * tiling[EXTENT_0]
        part[IMAGES] = min(tiling[EXTENT_0], axis[IMAGES] - image)
        part[ROWS], part[ROWS_BEFORE] = _part(
            part[TALL:WIDE], place // across % down, tiling[ROWS_0], axis[ROWS],
            axis[FILTER_ROWS], axis[ROWS_BEFORE],
        )  # fmt: skip
        part[COLUMNS], part[COLUMNS_BEFORE] = _part(
            part[WIDE:AXIS_FIELDS], place % across, tiling[COLUMNS_0], axis[COLUMNS],
            axis[FILTER_COLUMNS], axis[COLUMNS_BEFORE],
        )  # fmt: skip
    return found


@kernel_call
def _part(
    line: Ints, number: int, extent: int, size: int, filter_: int, before: int
) -> tuple[int, int]:
    """Make a line start at a tile; return its extent, and how much of what was before counts.

    With p = start + p', v = s p + d r - padding is s p' + d r - (padding - s start).
    """
    start = number * extent
    extent = min(extent, size - start)
    reach = line[DILATION] * (filter_ - 1)
    before = min(before + start, tiles_of(reach, line[STRIDE]))
    line[PADDING] -= line[STRIDE] * start
    free = -line[STRIDE] * before  # with this the first element that counts is number 0
    if line[PADDING] < free:
        line[EXTENT] -= free - line[PADDING]
        line[PADDING] = free
    most = line[STRIDE] * (extent - 1) + reach - line[PADDING] + 1
    line[EXTENT] = min(line[EXTENT], most)
    return extent, before
