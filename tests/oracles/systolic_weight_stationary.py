"""The register-level array in which one operand stays in the cells (ws; is, transposed)."""

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


class WeightStationaryArray(NamedTuple):
    """Registers and control of the array.

    Attributes
    ----------
    chain
        [columns, depth], those through which weights come down. The one at depth i * `hop_row`
        belongs to cell (i, j): its weight stays there or, if registers are doubled, waits there to
        be taken over into `weight`. Tag: tile * rows + row.
    weight
        [rows, columns]
    across
        [rows, columns, hop_col], operands on their way to a cell. Tag: tile * steps + step.
    down
        [rows, columns, hop_row + mac - 1], partial sums in a cell and on their way to the next.
    port
        [columns, tiles * steps], results that wait until it is their turn to leave.
    turn
        The result that leaves a column next.
    load, loaded, start
        Cycles in which each tile's load begins and has ended in column 0, and in which its operands
        begin to stream into row 0.
    feeding
        The tile that each row takes operands of.
    left
        Results of each tile that are still in the array.
    """

    chain: Pipe
    weight: Pipe
    across: Pipe
    down: Pipe
    port: Pipe
    turn: Ints
    load: Ints
    loaded: Ints
    start: Ints
    feeding: Ints
    left: Ints


def empty_array(a: Values, tiles: Ints, machine: CellArray) -> WeightStationaryArray:
    """Return the array before the first cycle."""
    rows, columns, hop_row = machine.rows, machine.columns, machine.hop_row
    count, steps = len(tiles), a.shape[1]
    return WeightStationaryArray(
        chain=pipes(a, columns, (rows - 1) * hop_row + 1),
        weight=pipes(a, rows, columns),
        across=pipes(a, rows, columns, machine.hop_col),
        down=pipes(a, rows, columns, hop_row + machine.mac - 1),
        port=pipes(a, columns, count * steps),
        turn=np.zeros(columns, np.int64),
        load=np.full(count, EMPTY, np.int64),
        loaded=np.full(count, EMPTY, np.int64),
        start=np.full(count, EMPTY, np.int64),
        feeding=np.zeros(rows, np.int64),
        left=tiles[:, WIDTH] * steps,
    )


@kernel
def play(
    a: Values, b: Values, c: Values, tiles: Ints, machine: CellArray, array: WeightStationaryArray
) -> int:
    """Add the product of `a` and `b` to `c`; return the cycles, or EMPTY if one went astray."""
    loading = streaming = oldest = 0  # tiles to be loaded, to be streamed; oldest still loading
    cycle = 0
    while array.left.sum() > 0:
        if _may_stream(cycle, streaming, loading, a.shape[1], array):
            array.start[streaming] = cycle
            streaming += 1
        if _may_load(cycle, loading, a.shape[1], tiles, machine, array):
            array.load[loading] = cycle
            array.loaded[loading] = cycle + (tiles[loading, HEIGHT] - 1) * machine.hop_row + 1
            loading += 1
        # From the last cell to the first: each reads its neighbours' registers before they move.
        for i in range(machine.rows - 1, -1, -1):
            fed = _fed(cycle, i, streaming, a.shape[1], tiles, machine, array)
            for j in range(machine.columns - 1, -1, -1):
                if not _cell(i, j, fed, a, tiles, machine, array):
                    return EMPTY
        oldest = _move_weights(cycle, oldest, loading, b, tiles, machine, array)
        _leave(a.shape[1], c, tiles, array)
        cycle += 1
    return cycle


@kernel_part
def _may_stream(
    cycle: int, tile: int, loading: int, steps: int, array: WeightStationaryArray
) -> bool:
    """Tell whether the tile is loaded, and the edge is free."""
    if tile == loading or array.loaded[tile] > cycle:
        return False
    return tile == 0 or array.start[tile - 1] + steps <= cycle


@kernel_part
def _may_load(
    cycle: int, tile: int, steps: int, tiles: Ints, machine: CellArray, array: WeightStationaryArray
) -> bool:
    """Tell whether all cells of column 0 let go of their weights before the next ones come by."""
    if tile == len(tiles) or (tile > 0 and array.loaded[tile - 1] > cycle):
        return False
    if machine.serial and tile > 0:
        return bool(array.left[tile - 1] == 0)
    for before in range(tile):
        if array.left[before] == 0:
            continue
        if array.start[before] == EMPTY:
            return False
        for i in range(min(tiles[before, HEIGHT], tiles[tile, HEIGHT])):
            # At the end of this cycle the cell's weight has been taken over, or used for the last
            # time.
            released = array.start[before] + i * (machine.hop_row + machine.mac - 1)
            if not machine.doubled:
                released += steps - 1
            if cycle + i * machine.hop_row < released:
                return False
    return True


@kernel_part
def _fed(
    cycle: int,
    i: int,
    streaming: int,
    steps: int,
    tiles: Ints,
    machine: CellArray,
    array: WeightStationaryArray,
) -> int:
    """Tag of the operand that enters row i from the left in this cycle."""
    tile = array.feeding[i]
    if tile == streaming:
        return EMPTY
    step = cycle - array.start[tile] - i * (machine.hop_row + machine.mac - 1)
    if step == steps - 1:
        array.feeding[i] += 1
    return tile * steps + step if step >= 0 and i < tiles[tile, HEIGHT] else EMPTY


@kernel_part
def _cell(
    i: int,
    j: int,
    fed: int,
    a: Values,
    tiles: Ints,
    machine: CellArray,
    array: WeightStationaryArray,
) -> bool:
    """Let cell (i, j) add its product to the sum from above; False if the two do not belong."""
    steps, last = a.shape[1], machine.hop_col - 1
    tag, value = array.across.tag[i, j, last], array.across.value[i, j, last]
    if j == 0:
        tag = fed
        if tag != EMPTY:
            tile = tag // steps
            value = a[tiles[tile, PRODUCT], tag % steps, tiles[tile, TOP] + i]
    tile = tag // steps
    if j + 1 < machine.columns:
        goes_on = tag != EMPTY and j + 1 < tiles[tile, WIDTH]
        push(array.across, i, j + 1, value, tag if goes_on else EMPTY)

    above, above_tag = 0 * value, tag
    if i > 0:
        last = machine.hop_row + machine.mac - 2
        above, above_tag = array.down.value[i - 1, j, last], array.down.tag[i - 1, j, last]
    if tag != above_tag:
        return False
    if tag != EMPTY:
        place, kept = i * machine.hop_row, array.weight
        if not machine.doubled or kept.tag[i, j] // machine.rows != tile:
            kept.value[i, j], kept.tag[i, j] = (
                array.chain.value[j, place],
                array.chain.tag[j, place],
            )
        if kept.tag[i, j] != tile * machine.rows + i:
            return False
        above = above + value * kept.value[i, j]
    push(array.down, i, j, above, tag)
    done = array.down.tag[i, j, machine.mac - 1]
    if done != EMPTY and i == tiles[done // steps, HEIGHT] - 1:
        array.port.value[j, done] = array.down.value[i, j, machine.mac - 1]
        array.port.tag[j, done] = done
        array.down.tag[i, j, machine.mac - 1] = EMPTY
    return True


@kernel_part
def _move_weights(
    cycle: int,
    oldest: int,
    loading: int,
    b: Values,
    tiles: Ints,
    machine: CellArray,
    array: WeightStationaryArray,
) -> int:
    """Move weights down one register in each column that is being loaded.

    A register moves on once the first weight reaches it; further down, the last tile's are still in
    place.
    """
    chain = array.chain
    for tile in range(oldest, loading):
        for j in range(tiles[tile, WIDTH]):
            since = cycle - array.load[tile] - j * machine.hop_col
            until = array.loaded[tile] + j * machine.hop_col - 1 - cycle
            if since < 0 or until < 0:
                continue
            for depth in range(since, 0, -1):
                chain.value[j, depth] = chain.value[j, depth - 1]
                chain.tag[j, depth] = chain.tag[j, depth - 1]
            # The edge feeds the weight of the last row first, and one every hop.
            chain.tag[j, 0] = EMPTY
            if until % machine.hop_row == 0:
                i = until // machine.hop_row
                chain.tag[j, 0] = tile * machine.rows + i
                chain.value[j, 0] = b[
                    tiles[tile, PRODUCT], tiles[tile, TOP] + i, tiles[tile, LEFT] + j
                ]
    while (
        oldest < loading
        and array.loaded[oldest] + (tiles[oldest, WIDTH] - 1) * machine.hop_col <= cycle
    ):
        oldest += 1
    return oldest


@kernel_part
def _leave(steps: int, c: Values, tiles: Ints, array: WeightStationaryArray) -> None:
    """Let one result leave each column, if the one whose turn it is has come to the port."""
    results = len(tiles) * steps
    for j in range(len(array.turn)):
        turn = array.turn[j]
        while turn < results and tiles[turn // steps, WIDTH] <= j:
            turn += steps
        if turn < results and array.port.tag[j, turn] == turn:
            tile = turn // steps
            c[tiles[tile, PRODUCT], turn % steps, tiles[tile, LEFT] + j] += array.port.value[
                j, turn
            ]
            array.left[tile] -= 1
            turn += 1
        array.turn[j] = turn
