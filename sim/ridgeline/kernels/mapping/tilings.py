"""Tilings of one axis of a matrix product, with what the search needs of each.

A contraction is looked at as a batch of products C[m, n] = A[m, k] B[k, n] with four axes: batch,
m, n, k. Three of them are plain. The pixels of a convolution's output (m, or k of its weight
gradient) are images x rows x columns, and touch more of the image than they are: a tiling of them
cuts the images, or single images into rows, or single rows into columns. Filters are never cut.

A tiling is kept as a few representative tiles. What a phase of the pipeline costs depends on the
tile before, the tile itself and the next one; away from the borders these are all alike, so one
representative stands for all tiles of the interior. Tiles of several images are listed for the
first image, the last one and one of those between.
"""

from __future__ import annotations

import numpy as np

from ridgeline._jit import kernel, kernel_call, kernel_part
from ridgeline.kernels.mapping.footprint import (
    DILATION,
    EXTENT,
    PADDING,
    STRIDE,
    Floats,
    Ints,
    tiles_of,
    touched,
)

# Columns of the description of an axis; rows and columns of an image follow as rows of the table of
# axes of `traffic.pack_axes`, each with the size of its filter.
# Of a part of an image they are counted from its first row and column on, with so many rows or
# columns before them (as far as these share elements with it) that were there earlier.
PIXELS, SIZE, TIMES, GRANULE, IMAGES, ROWS, COLUMNS, FILTER_ROWS, FILTER_COLUMNS = range(9)
ROWS_BEFORE, COLUMNS_BEFORE, TALL, WIDE = 9, 10, 11, 17
AXIS_FIELDS = 23

# Columns of a tiling: extents of a tile (plain ones, or images; rows; columns), number of tiles,
# where its representatives begin and end, and what one tile is to the array at most.
EXTENT_0, ROWS_0, COLUMNS_0, TILES, BEGIN, END = range(6)
TILING_FIELDS = 6

# Columns of a representative: how many tiles it stands for, whether it is the first or the last,
# its extent to the array; then points, elements touched, and elements touched for the first time,
# of the tile before, the tile itself and the next one; and its place in the order of tiles.
WEIGHT, FIRST, LAST, SPAN = range(4)
POINTS, TOUCHED, NEW, PLACE = 4, 7, 10, 13
REPRESENTATIVE_FIELDS = 14
BEFORE, SELF, NEXT = range(3)

# Columns of the sums over all tiles: points and touched elements of all; of the largest tile; new
# elements of the whole; points and touched elements of the first tile; points and new elements of
# the last one; extent to the array and number of whole tiles, and of those that are what is left;
# then their points, and the elements that they touch at least.
SUM_POINTS, SUM_TOUCHED, MAX_POINTS, MAX_TOUCHED, WHOLE_NEW = range(5)
FIRST_POINTS, FIRST_TOUCHED, LAST_POINTS, LAST_NEW = range(5, 9)
WHOLE_SPAN, WHOLE_TILES, LEFT_SPAN, LEFT_TILES = range(9, 13)
WHOLE_POINTS, WHOLE_TOUCHED, LEFT_POINTS, LEFT_TOUCHED = range(13, 17)
SUM_FIELDS = 17


COARSE, FEW, HALVED, MANY = range(4)
"""How many tilings of an axis are listed."""


@kernel_part
def _next_tiles(tiles: int, density: int, small: bool) -> int:
    if density == MANY:
        if tiles < 8:
            return tiles + 1
        return tiles // 2 * 3 if tiles & (tiles - 1) == 0 else tiles // 3 * 4
    if density == COARSE and tiles < 8:
        return 4 if tiles < 4 else 32
    return tiles * 2 if tiles < 8 or small else tiles * 4


@kernel
def tile_extents(size: int, granule: int, density: int) -> Ints:
    """Extents of tiles to try along an axis, from the largest to 1.

    Multiples of the granule first: what 1, 2, 3, ... tiles of about equal size have (each number up
    to 8, then 12, 16, 24, 32, ...; `FEW` and `HALVED`: 1, 2, 4, 8, then 32, 128, ..., or 16, 32,
    ... where the granule is 1; `COARSE`: 1, 4, 32, ...). Then parts of a granule: halves of halves,
    or sixteenths where there are few. They depend on the size alone, never on what a machine can
    hold or move, so that a better machine has no fewer of them.
    """
    found = np.empty(256, np.int64)
    count, tiles, units = 0, 1, tiles_of(size, granule)
    while True:
        extent = min(size, granule * tiles_of(units, min(tiles, units)))
        if count == 0 or extent < found[count - 1]:
            found[count] = extent
            count += 1
        if tiles >= units:
            break
        tiles = _next_tiles(tiles, density, granule == 1)
    while found[count - 1] > 1:
        found[count] = tiles_of(found[count - 1], 2 if density >= HALVED else 16)
        count += 1
    return found[:count]


@kernel
def tilings(axis: Ints, density: int) -> tuple[Ints, Floats]:
    """List the tilings of an axis, without their representatives.

    Returns
    -------
    tilings, sums
        Tables with the columns above.
    """
    if axis[PIXELS]:
        cut = tile_extents(axis[IMAGES], 1, density)
        high, wide = tile_extents(axis[ROWS], 1, density), tile_extents(axis[COLUMNS], 1, density)
        if density < HALVED and len(wide) > 2:
            wide[1] = 1  # the whole and single ones
            wide = wide[:2]
        table = np.empty((len(cut) + len(high) + len(wide) - 2, TILING_FIELDS), np.int64)
        for i in range(len(table)):
            table[i, EXTENT_0] = cut[i] if i < len(cut) else 1
            j = i - len(cut) + 1
            table[i, ROWS_0] = high[min(max(j, 0), len(high) - 1)]
            j -= len(high) - 1
            table[i, COLUMNS_0] = wide[max(j, 0)]
    else:
        cut = tile_extents(axis[SIZE], axis[GRANULE], density)
        table = np.empty((len(cut), TILING_FIELDS), np.int64)
        for i in range(len(cut)):
            table[i, EXTENT_0] = cut[i]
            table[i, ROWS_0] = table[i, COLUMNS_0] = 1
    sums = np.empty((len(table), SUM_FIELDS))
    for i in range(len(table)):
        table[i, BEGIN] = table[i, END] = -1
        _sum_up(axis, table[i], sums[i])
        _ends(axis, table[i], sums[i])
        _spans(axis, table[i], sums[i])
    return table, sums


@kernel
def room(axes: Ints, table: Ints, starts: Ints) -> int:
    """Rows that the representatives of all tilings take at most."""
    total = 0
    for axis in range(4):
        for i in range(starts[axis], starts[axis + 1]):
            total += _room(axes[axis], table[i])
    return total


@kernel_call
def _ends(axis: Ints, tiling: Ints, sums: Floats) -> None:
    """Count the tiles, and measure the first and the last one."""
    tiling[TILES] = tiles_of(axis[IMAGES] if axis[PIXELS] else axis[SIZE], tiling[EXTENT_0])
    if axis[PIXELS]:
        tiling[TILES] *= tiles_of(axis[ROWS], tiling[ROWS_0])
        tiling[TILES] *= tiles_of(axis[COLUMNS], tiling[COLUMNS_0])
    sums[FIRST_POINTS], sums[FIRST_TOUCHED], _ = _measure(axis, tiling, 0)
    sums[LAST_POINTS], _, sums[LAST_NEW] = _measure(axis, tiling, tiling[TILES] - 1)


@kernel_call
def _spans(axis: Ints, tiling: Ints, sums: Floats) -> None:
    """Write the extents that tiles have to the array: whole ones, and what is left over."""
    sizes = (axis[IMAGES], axis[ROWS], axis[COLUMNS])
    if not axis[PIXELS]:
        sizes = (axis[SIZE], np.int64(1), np.int64(1))
    whole, left, tiles, lefts = np.int64(1), np.int64(1), np.int64(1), np.int64(1)
    for i in range(3):  # only one of the three can have something left over
        extent = tiling[EXTENT_0 + i]
        over = sizes[i] % extent
        whole *= extent
        left *= over if over else extent
        lefts *= 1 if over else sizes[i] // extent
        tiles *= sizes[i] // extent
    sums[WHOLE_POINTS], sums[LEFT_POINTS] = whole, left
    sums[WHOLE_SPAN], sums[WHOLE_TILES] = whole * axis[TIMES], tiles
    sums[LEFT_SPAN], sums[LEFT_TILES] = left * axis[TIMES], 0.0 if left == whole else lefts
    sums[WHOLE_TOUCHED], sums[LEFT_TOUCHED] = whole, left
    if not axis[PIXELS]:
        return
    high = _least_touched(axis[TALL:WIDE], tiling[ROWS_0], axis[ROWS], axis[FILTER_ROWS])
    wide = _least_touched(
        axis[WIDE:AXIS_FIELDS], tiling[COLUMNS_0], axis[COLUMNS], axis[FILTER_COLUMNS]
    )
    images = axis[IMAGES] % tiling[EXTENT_0]
    sums[WHOLE_TOUCHED] = sums[LEFT_TOUCHED] = tiling[EXTENT_0] * high * wide
    if images:  # tiles of several images have all of their rows and columns
        sums[LEFT_TOUCHED] = images * high * wide


@kernel_call
def _least_touched(line: Ints, extent: int, size: int, filter_: int) -> float:
    """Elements that any tile along rows or columns touches at least."""
    least = np.inf
    first, last = _borders(line, extent, size, filter_)
    i = 0
    while i < tiles_of(size, extent):
        here = touched(i * extent, min((i + 1) * extent, size), 0, filter_, line)
        least = min(least, float(here))
        i += last - first + 1 if i == first < last else 1
    return least


@kernel_call
def _borders(line: Ints, extent: int, size: int, filter_: int) -> tuple[int, int]:
    """First and last tile of the interior along rows or columns: with one like it on both sides."""
    count = tiles_of(size, extent)
    stride = line[STRIDE] * extent
    reach = line[DILATION] * (filter_ - 1)
    first = tiles_of(max(0, line[PADDING] + reach), stride) + 1
    # A tile is whole and free of padding if stride * (i + 1) - s + reach - padding < extent.
    free = line[EXTENT] + line[PADDING] - reach + line[STRIDE] - 1
    last = min(size // extent, max(0, free // stride)) - 2
    return first, min(last, count - 2)


@kernel_call
def _listed(count: int, first: int, last: int) -> int:
    """Tiles that are listed out of `count`, if those from `first` to `last` are alike."""
    return count if last <= first else count - (last - first)


@kernel_call
def _room(axis: Ints, tiling: Ints) -> int:
    if not axis[PIXELS]:
        return 5
    if tiling[EXTENT_0] > 1 or (
        tiling[ROWS_0] == axis[ROWS] and tiling[COLUMNS_0] == axis[COLUMNS]
    ):
        return 5
    count = tiles_of(axis[ROWS], tiling[ROWS_0])
    first, last = _borders(axis[TALL:WIDE], tiling[ROWS_0], axis[ROWS], axis[FILTER_ROWS])
    room = 5 * _listed(count, first, last)
    count = tiles_of(axis[COLUMNS], tiling[COLUMNS_0])
    first, last = _borders(
        axis[WIDE:AXIS_FIELDS], tiling[COLUMNS_0], axis[COLUMNS], axis[FILTER_COLUMNS]
    )
    return room * _listed(count, first, last)


@kernel_call
def represent(axis: Ints, tiling: Ints, tiles: Floats, at: int) -> int:
    """Write the representatives of a tiling; return where the next ones go."""
    outer = axis[IMAGES] if axis[PIXELS] else axis[SIZE]
    n_outer = tiles_of(outer, tiling[EXTENT_0])
    n_rows, n_columns = 1, 1
    row_first = row_last = column_first = column_last = 0
    if axis[PIXELS]:
        n_rows = tiles_of(axis[ROWS], tiling[ROWS_0])
        n_columns = tiles_of(axis[COLUMNS], tiling[COLUMNS_0])
        row_first, row_last = _borders(
            axis[TALL:WIDE], tiling[ROWS_0], axis[ROWS], axis[FILTER_ROWS]
        )
        column_first, column_last = _borders(
            axis[WIDE:AXIS_FIELDS], tiling[COLUMNS_0], axis[COLUMNS], axis[FILTER_COLUMNS]
        )
    tiling[BEGIN] = at
    # Plain tiles are alike but for the first, the last, and the neighbour of a smaller last one.
    outer_first = 1
    outer_last = n_outer - (2 if outer % tiling[EXTENT_0] == 0 else 3)
    i = 0
    while i < n_outer:
        many_i = outer_last - outer_first + 1 if i == outer_first < outer_last else 1
        j = 0
        while j < n_rows:
            many_j = row_last - row_first + 1 if j == row_first < row_last else 1
            k = 0
            while k < n_columns:
                many_k = column_last - column_first + 1 if k == column_first < column_last else 1
                place = (i * n_rows + j) * n_columns + k
                tile = tiles[at]
                tile[WEIGHT], tile[PLACE] = float(many_i) * many_j * many_k, place
                tile[FIRST], tile[LAST] = place == 0, place == tiling[TILES] - 1
                points, elements, new = _measure(axis, tiling, place)
                tile[POINTS:TOUCHED], tile[TOUCHED:NEW], tile[NEW:PLACE] = points, elements, new
                tile[SPAN] = points * axis[TIMES]
                if place > 0:  # what is listed before is like the tile before, and the other way
                    for field in (POINTS, TOUCHED, NEW):
                        tile[field + BEFORE] = tiles[at - 1, field + SELF]
                        tiles[at - 1, field + NEXT] = tile[field + SELF]
                at += 1
                k += many_k
            j += many_j
        i += many_i
    tiling[END] = at
    return at


@kernel_call
def _measure(axis: Ints, tiling: Ints, place: int) -> tuple[float, float, float]:
    """Points, elements and new elements of the tile at a place in the order of tiles."""
    if not axis[PIXELS]:
        points = float(min(tiling[EXTENT_0], axis[SIZE] - place * tiling[EXTENT_0]))
        return points, points, points
    n_columns = tiles_of(axis[COLUMNS], tiling[COLUMNS_0])
    n_rows = tiles_of(axis[ROWS], tiling[ROWS_0])
    column = place % n_columns
    row = place // n_columns % n_rows
    image = place // n_columns // n_rows
    images = float(min(tiling[EXTENT_0], axis[IMAGES] - image * tiling[EXTENT_0]))
    p0, q0 = row * tiling[ROWS_0], column * tiling[COLUMNS_0]
    p1, q1 = min(p0 + tiling[ROWS_0], axis[ROWS]), min(q0 + tiling[COLUMNS_0], axis[COLUMNS])
    tall, wide = axis[TALL:WIDE], axis[WIDE:AXIS_FIELDS]
    height = touched(p0, p1, 0, axis[FILTER_ROWS], tall)
    width = touched(q0, q1, 0, axis[FILTER_COLUMNS], wide)
    new_height, new_width = height, width
    above, left = -axis[ROWS_BEFORE], -axis[COLUMNS_BEFORE]
    if p0 > above:
        new_height = touched(above, p1, 0, axis[FILTER_ROWS], tall) - touched(
            above, p0, 0, axis[FILTER_ROWS], tall
        )
    if q0 > left:
        new_width = touched(left, q1, 0, axis[FILTER_COLUMNS], wide) - touched(
            left, q0, 0, axis[FILTER_COLUMNS], wide
        )
    # Rows that an earlier row of tiles has touched, it has touched over their whole width.
    return (
        images * (p1 - p0) * (q1 - q0),
        images * height * width,
        images * new_height * new_width,
    )


@kernel_call
def _sum_up(axis: Ints, tiling: Ints, sums: Floats) -> None:
    """Add up all tiles: products of sums along images, rows and columns."""
    if not axis[PIXELS]:
        sums[SUM_POINTS] = sums[SUM_TOUCHED] = sums[WHOLE_NEW] = axis[SIZE]
        sums[MAX_POINTS] = sums[MAX_TOUCHED] = tiling[EXTENT_0]
        return
    high, most_high, all_high = _line(
        axis[TALL:WIDE], tiling[ROWS_0], axis[ROWS], axis[FILTER_ROWS], axis[ROWS_BEFORE]
    )
    wide, most_wide, all_wide = _line(
        axis[WIDE:AXIS_FIELDS], tiling[COLUMNS_0], axis[COLUMNS], axis[FILTER_COLUMNS],
        axis[COLUMNS_BEFORE],
    )  # fmt: skip
    images = float(axis[IMAGES])
    sums[SUM_POINTS] = images * axis[ROWS] * axis[COLUMNS]
    sums[SUM_TOUCHED] = images * high * wide
    sums[MAX_POINTS] = float(tiling[EXTENT_0]) * tiling[ROWS_0] * tiling[COLUMNS_0]
    sums[MAX_TOUCHED] = tiling[EXTENT_0] * most_high * most_wide
    sums[WHOLE_NEW] = images * all_high * all_wide


@kernel_call
def _line(
    line: Ints, extent: int, size: int, filter_: int, before: int
) -> tuple[float, float, float]:
    """Elements of all tiles along rows or columns, of the largest one; new ones of the whole."""
    total, most = 0.0, 0.0
    first, last = _borders(line, extent, size, filter_)
    i = 0
    while i < tiles_of(size, extent):
        many = last - first + 1 if i == first < last else 1
        here = touched(i * extent, min((i + 1) * extent, size), 0, filter_, line)
        total += float(many * here)
        most = max(most, float(here))
        i += many
    new = touched(-before, size, 0, filter_, line) - touched(-before, 0, 0, filter_, line)
    return total, most, float(new)
