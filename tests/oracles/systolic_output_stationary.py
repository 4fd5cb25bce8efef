"""The register-level array in which the results grow in the cells (os)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from oracles.systolic_cells import (
    EMPTY,
    HEIGHT,
    LEFT,
    PRODUCT,
    TOP,
    WIDTH,
    CellArray,
    Ints,
    Pipe,
    Values,
    pipes,
    push,
)
from ridgeline._jit import kernel, kernel_part


class OutputStationaryArray(NamedTuple):
    """Registers and control of the array.

    Attributes
    ----------
    across, below
        [rows, columns, hop], operands on their way to a cell. Tag: tile * steps + step.
    working
        [rows, columns, mac], products that are not yet added.
    total
        [rows, columns], sums. Tag: tile * rows + row.
    drain
        [columns, depth], the registers through which results go down. The one at depth
        i * `hop_row` belongs to cell (i, j). If registers are not doubled it is the cell's `total`
        itself, so that no sum may begin while a result is in it.
    start, draining
        Cycles in which each tile's operands begin to stream into cell (0, 0), and in which its
        results begin to leave column 0.
    left
        Results of each tile that are still in the array.
    """

    across: Pipe
    below: Pipe
    working: Pipe
    total: Pipe
    drain: Pipe
    start: Ints
    draining: Ints
    left: Ints


def empty_array(a: Values, tiles: Ints, machine: CellArray) -> OutputStationaryArray:
    """Return the array before the first cycle."""
    rows, columns = machine.rows, machine.columns
    return OutputStationaryArray(
        across=pipes(a, rows, columns, machine.hop_col),
        below=pipes(a, rows, columns, machine.hop_row),
        working=pipes(a, rows, columns, machine.mac),
        total=pipes(a, rows, columns),
        drain=pipes(a, columns, (rows - 1) * machine.hop_row + 1),
        start=np.full(len(tiles), EMPTY, np.int64),
        draining=np.full(len(tiles), EMPTY, np.int64),
        left=tiles[:, HEIGHT] * tiles[:, WIDTH],
    )


@kernel
def play(
    a: Values, b: Values, c: Values, tiles: Ints, machine: CellArray, array: OutputStationaryArray
) -> int:
    """Write the product of `a` and `b` to `c`; return the cycles, or EMPTY if one went astray."""
    streaming = oldest = 0  # the next tile to be streamed, the oldest one that is not all gone
    cycle = 0
    while array.left.sum() > 0:
        if _may_stream(cycle, streaming, a.shape[2], tiles, machine, array):
            array.start[streaming] = cycle
            _plan_drain(cycle, streaming, a.shape[2], tiles, machine, array)
            streaming += 1
        for tile in range(oldest, streaming):
            if not _move_results(cycle, tile, c, tiles, machine, array):
                return EMPTY
        while oldest < streaming and array.left[oldest] == 0:
            oldest += 1
        # From the last cell to the first: each reads its neighbours' registers before they move.
        for i in range(machine.rows - 1, -1, -1):
            for j in range(machine.columns - 1, -1, -1):
                if not _cell(cycle, i, j, streaming, a, b, tiles, machine, array):
                    return EMPTY
        cycle += 1
    return cycle


@kernel_part
def _may_stream(
    cycle: int, tile: int, steps: int, tiles: Ints, machine: CellArray, array: OutputStationaryArray
) -> bool:
    """Tell whether the edge is free, and all cells of column 0 will be when they need their drain.

    That is at the end of the last multiply-accumulate of the tile, or of the first one if the drain
    is where sums grow; by then the result of row 0 has to be past the cell.
    """
    if tile == len(tiles) or (tile > 0 and array.start[tile - 1] + steps > cycle):
        return False
    if machine.serial and tile > 0:
        return bool(array.left[tile - 1] == 0)
    for before in range(tile):
        if array.left[before] == 0:
            continue
        for i in range(min(tiles[before, HEIGHT], tiles[tile, HEIGHT])):
            needed = cycle + i * machine.hop_row + machine.mac - 1
            if machine.doubled:
                needed += steps - 1
            if needed < array.draining[before] + i * machine.hop_row:
                return False
    return True


@kernel_part
def _plan_drain(
    cycle: int, tile: int, steps: int, tiles: Ints, machine: CellArray, array: OutputStationaryArray
) -> None:
    """Let the drain begin when the last row is done and the tile before has left the port."""
    done = cycle + (tiles[tile, HEIGHT] - 1) * machine.hop_row + steps - 1 + machine.mac
    if tile > 0:
        before = array.draining[tile - 1] + (tiles[tile - 1, HEIGHT] - 1) * machine.hop_row + 1
        done = max(done, before)
    array.draining[tile] = done


@kernel_part
def _move_results(
    cycle: int, tile: int, c: Values, tiles: Ints, machine: CellArray, array: OutputStationaryArray
) -> bool:
    """Move results down one register in each column that drains; the last row's leaves.

    A register stays once the result of row 0 is past it; new results may settle there. Returns
    False if a result that leaves is not the one that is due.
    """
    drain, last = array.drain, (tiles[tile, HEIGHT] - 1) * machine.hop_row
    for j in range(tiles[tile, WIDTH]):
        since = cycle - array.draining[tile] - j * machine.hop_col
        if since < 0 or since > last:
            continue
        if since % machine.hop_row == 0:
            i = (last - since) // machine.hop_row
            if drain.tag[j, last] != tile * machine.rows + i:
                return False
            c[tiles[tile, PRODUCT], tiles[tile, TOP] + i, tiles[tile, LEFT] + j] = drain.value[
                j, last
            ]
            array.left[tile] -= 1
        for depth in range(last, since, -1):
            drain.value[j, depth] = drain.value[j, depth - 1]
            drain.tag[j, depth] = drain.tag[j, depth - 1]
        drain.tag[j, since] = EMPTY
    return True


@kernel_part
def _entering(
    cycle: int,
    i: int,
    j: int,
    streaming: int,
    steps: int,
    machine: CellArray,
    array: OutputStationaryArray,
) -> int:
    """Tag of what enters the array at cell (i, j) of its left or top edge in this cycle."""
    for tile in range(streaming - 1, -1, -1):
        step = cycle - array.start[tile] - i * machine.hop_row - j * machine.hop_col
        if step >= 0:
            return tile * steps + step if step < steps else EMPTY
    return EMPTY


@kernel_part
def _cell(
    cycle: int, i: int, j: int, streaming: int, a: Values, b: Values, tiles: Ints,
    machine: CellArray, array: OutputStationaryArray,
) -> bool:  # fmt: skip
    """Let cell (i, j) multiply what comes from the left and from above, and add a product."""
    steps, last = a.shape[2], machine.hop_col - 1
    left_tag, left = array.across.tag[i, j, last], array.across.value[i, j, last]
    last = machine.hop_row - 1
    top_tag, top = array.below.tag[i, j, last], array.below.value[i, j, last]
    if i == 0 or j == 0:
        tag = _entering(cycle, i, j, streaming, steps, machine, array)
        tile = tag // steps
        inside = tag != EMPTY and i < tiles[tile, HEIGHT] and j < tiles[tile, WIDTH]
        if j == 0:
            left_tag = tag if inside else EMPTY
            if inside:
                left = a[tiles[tile, PRODUCT], tiles[tile, TOP] + i, tag % steps]
        if i == 0:
            top_tag = tag if inside else EMPTY
            if inside:
                top = b[tiles[tile, PRODUCT], tag % steps, tiles[tile, LEFT] + j]
    if left_tag != top_tag:
        return False
    tile = left_tag // steps
    if j + 1 < machine.columns:
        goes_on = left_tag != EMPTY and j + 1 < tiles[tile, WIDTH]
        push(array.across, i, j + 1, left, left_tag if goes_on else EMPTY)
    if i + 1 < machine.rows:
        goes_on = top_tag != EMPTY and i + 1 < tiles[tile, HEIGHT]
        push(array.below, i + 1, j, top, top_tag if goes_on else EMPTY)
    push(array.working, i, j, left * top, left_tag)
    return _add(i, j, steps, machine, array)


@kernel_part
def _add(i: int, j: int, steps: int, machine: CellArray, array: OutputStationaryArray) -> bool:
    """Add the product that is ready; a finished sum goes to the drain, which has to be empty."""
    done, total, drain = array.working.tag[i, j, machine.mac - 1], array.total, array.drain
    if done == EMPTY:
        return True
    product = array.working.value[i, j, machine.mac - 1]
    tile, step, place = done // steps, done % steps, i * machine.hop_row
    occupied = drain.tag[j, place] != EMPTY
    if step == 0:
        if occupied and not machine.doubled:
            return False
        total.value[i, j], total.tag[i, j] = product, tile * machine.rows + i
    elif total.tag[i, j] != tile * machine.rows + i:
        return False
    else:
        total.value[i, j] += product
    if step == steps - 1:
        if occupied:
            return False
        drain.value[j, place], drain.tag[j, place] = total.value[i, j], total.tag[i, j]
    return True
