"""Compiled replay of SCALE-Sim 3.0.0's memory: one pass over the cycles of a layer.

The rules are in `scalesim_memory`; here is only the loop. All cycles and counts are int64.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ridgeline._jit import kernel, kernel_part

Ints = NDArray[np.int64]
Ids = NDArray[np.int32]

# Fields of an operand's description.
STATIONARY, LANES, SIZE, STEPS, PREFIX, BY_COLUMN, COUNTED = 0, 1, 2, 3, 4, 5, 6
OPERAND_FIELDS = 7
# Fields of a reading buffer with a bandwidth of its own (USER).
SETS, ACTIVE, AHEAD, FETCH_LINES, FETCH_WORDS, START, LAST, READS = 0, 1, 2, 3, 4, 5, 6, 7
# Fields of a reading buffer that never stalls (CALC).
ITEMS, INITIAL, CURRENT, FILLED, FROM, FILLS, BEGIN, END, FIRST, FOUND, DRAM_START, STOPS = (
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11,
)  # fmt: skip
BUFFER_FIELDS = 12
# Fields of the writing buffer.
FREE, DRAIN, WIDTH, LINE, NEXT, DRAINED, WRITES, DRAM_FIRST, DRAM_LAST, KEPT = (
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9,
)  # fmt: skip
WRITER_FIELDS = 10
HALF_SETS = 50
"""Of the 100 sets of a buffer in CALC mode, those of the half that is read."""
CALC_WORDS = 10
"""Words a cycle with which a buffer in CALC mode is filled at first."""


@kernel
def place_stream(at: Ids, ids: Ids, steps: int, size: int, lanes: int, per_set: int) -> int:
    """Place the words of a streamed operand in the order in which they are fetched.

    All folds stand below each other, steps x lanes each; words come by diagonals from the lower
    left to the upper right. `at` gets the set of each word; words with an id below 0 take no room.
    Returns how many words there are.
    """
    folds = (size + lanes - 1) // lanes
    height = folds * steps
    count = 0
    for diagonal in range(height + lanes - 1):
        for lane in range(max(0, diagonal - height + 1), min(diagonal, lanes - 1) + 1):
            row = diagonal - lane
            fold = row // steps
            column = fold * lanes + lane
            if column < size:
                flat = (row - fold * steps) * size + column
                if ids.size == 0 or ids[flat] >= 0:
                    at[flat] = count // per_set
                    count += 1
    return count


@kernel
def place_stationary(at: Ids, ids: Ids, height: int, size: int, lanes: int, per_set: int) -> int:
    """Place the words of a stationary operand: strip by strip of `lanes` columns, row by row."""
    count = 0
    for first in range(0, size, lanes):
        for row in range(height):
            for column in range(first, min(first + lanes, size)):
                flat = row * size + column
                if ids.size == 0 or ids[flat] >= 0:
                    at[flat] = count // per_set
                    count += 1
    return count


@kernel
def by_address(at: Ids, ids: Ids, addresses: int) -> tuple[Ints, Ids]:
    """Return where the list of each address begins, and its sets, one list after the other."""
    begin = np.zeros(addresses + 1, np.int64)
    for flat in range(ids.size):
        if ids[flat] >= 0:
            begin[ids[flat] + 1] += 1
    for address in range(addresses):
        begin[address + 1] += begin[address]
    room = begin[:-1].copy()
    sets = np.empty(begin[addresses], np.int32)
    for flat in range(ids.size):
        if ids[flat] >= 0:
            sets[room[ids[flat]]] = at[flat]
            room[ids[flat]] += 1
    return begin, sets


@kernel_part
def _hit(address: int, begin: Ints, sets: Ids, buffer: Ints) -> bool:
    start, count, active = int(buffer[START]), int(buffer[SETS]), int(buffer[ACTIVE])
    if begin.size == 0:
        away = int(sets[address]) - start
        return (away if away >= 0 else away + count) < active
    for position in range(begin[address], begin[address + 1]):
        away = int(sets[position]) - start
        if (away if away >= 0 else away + count) < active:
            return True
    return False


@kernel_part
def _read_user(address: int, cycle: int, late: int, begin: Ints, sets: Ids, buffer: Ints) -> int:
    """Cycles after `cycle` in which the line is served, of which 1 is a hit's."""
    while not _hit(address, begin, sets, buffer):
        buffer[START] = (buffer[START] + buffer[AHEAD]) % buffer[SETS]
        buffer[READS] += buffer[FETCH_WORDS]
        buffer[LAST] += buffer[FETCH_LINES] + 1
        wait = buffer[LAST] - (cycle + late)
        late += wait
        if wait > 0:
            late += wait  # SCALE-Sim adds it twice
    return late


@kernel_part
def _read_calc(address: int, cycle: int, sets: Ids, buffer: Ints) -> None:
    if buffer[FIRST] < 0:
        buffer[FIRST] = cycle
    if sets[address] >= buffer[FROM]:
        return
    sets[address] = buffer[CURRENT]
    buffer[FOUND] += 1
    buffer[FILLED] += 1
    if buffer[FILLED] < buffer[ITEMS]:
        return
    buffer[FILLED] = 0
    buffer[CURRENT] += 1
    if buffer[CURRENT] < buffer[FROM] + HALF_SETS:
        return
    if buffer[FILLS] == 0:
        buffer[END] = buffer[FIRST] - 2
        took = (HALF_SETS * buffer[ITEMS] + CALC_WORDS - 1) // CALC_WORDS
        buffer[DRAM_START] = buffer[END] - took + 2
    elif buffer[END] < buffer[BEGIN]:
        buffer[STOPS] = 1  # SCALE-Sim divides by these cycles
    buffer[FILLS] += 1
    buffer[FROM] += HALF_SETS
    buffer[BEGIN] = buffer[END] + 1
    buffer[END] = cycle


@kernel_part
def _drain(cycle: int, short: Ids, writer: Ints) -> int:
    """Send the drain buffer to the memory from `cycle` on; returns the last cycle."""
    width = writer[WIDTH]
    rows = min((writer[DRAIN] + width - 1) // width, writer[LINE] - writer[NEXT])
    words = rows * width - short[writer[NEXT] + rows - 1]
    writer[WRITES] += words
    writer[FREE] += words
    writer[NEXT] += rows
    end = int(cycle + rows - 1)
    writer[DRAM_FIRST] = min(writer[DRAM_FIRST], cycle)
    writer[DRAM_LAST] = max(writer[DRAM_LAST], end)
    return end


@kernel_part
def _close_line(short: Ids, writer: Ints) -> None:
    """Begin a new line although the last one is not full."""
    if writer[KEPT] > 0:
        short[writer[LINE]] = writer[WIDTH] - writer[KEPT]
        writer[LINE] += 1
        writer[KEPT] = 0


@kernel_part
def _lanes(
    shape: Ints, within: int, rows: int, row_fold: int, column_fold: int,
    used_rows: int, used_columns: int,
) -> tuple[int, int, int, int]:  # fmt: skip
    """First lane and end of an operand's line, the place of lane 0, and the step between lanes."""
    size = shape[SIZE]
    if shape[STATIONARY]:
        row = row_fold * rows + rows - 1 - within  # the last row of the array comes first
        some = within < rows and row < shape[STEPS]
        return 0, used_columns if some else 0, row * size + column_fold * shape[LANES], 1
    lanes, fold = (used_columns, column_fold) if shape[BY_COLUMN] else (used_rows, row_fold)
    away = within - shape[PREFIX]
    low, high = max(0, away - shape[STEPS] + 1), min(lanes, away + 1)
    return low, high, away * size + fold * shape[LANES], 1 - size


@kernel_part
def _serve_read(
    calc: bool, cycle: int, line: tuple[int, int, int, int], ids: Ids, begin: Ints, sets: Ids,
    buffer: Ints,
) -> int:  # fmt: skip
    """Cycles in which the SRAM serves a line; 0 if there is no word in it."""
    low, high, base, step = line
    late = 1
    some = False
    for lane in range(low, high):
        address = base + lane * step
        if ids.size:
            address = ids[address]
            if address < 0:
                continue
        some = True
        if calc:
            _read_calc(address, cycle, sets, buffer)
        else:
            late = _read_user(address, cycle, late, begin, sets, buffer)
    return late if some else 0


@kernel_part
def _results(
    output_stationary: bool, within: int, rows: int, steps: int, used_rows: int, used_columns: int
) -> int:
    """Words that leave the array in a line."""
    if output_stationary:
        away = within - (steps - 1)  # rows leave from the last of the array upwards
        low = max(0, away - (rows - 1))
        high = min(used_columns, away - (rows - used_rows) + 1)
    else:
        away = within - (2 * rows - 1)
        low = max(0, away - steps + 1)
        high = min(used_columns, away + 1)
    return max(0, high - low)


@kernel_part
def _serve_writes(count: int, cycle: int, capacity: int, short: Ids, writer: Ints) -> int:
    """Cycle in which the SRAM has taken the results of a line."""
    for _ in range(count):
        writer[KEPT] += 1
        writer[FREE] -= 1
        if writer[KEPT] == writer[WIDTH]:
            _close_line(short, writer)
        if cycle < writer[DRAINED]:
            if writer[FREE] <= 0:
                cycle = writer[DRAINED]
        elif writer[FREE] < capacity - writer[DRAIN]:
            _close_line(short, writer)
            writer[DRAINED] = _drain(cycle, short, writer)
    return cycle


@kernel_part
def _mark(marks: Ints, place: int, cycle: int) -> None:
    if marks[2 * place] < 0:
        marks[2 * place] = cycle
    marks[2 * place + 1] = cycle


@kernel
def replay(
    calc: bool, output_stationary: bool, rows: int, columns: int,
    row_folds: int, column_folds: int, fold_lines: int, size_rows: int, size_columns: int,
    steps: int, capacity: int,
    shape_a: Ints, ids_a: Ids, begin_a: Ints, sets_a: Ids, buffer_a: Ints,
    shape_b: Ints, ids_b: Ids, begin_b: Ints, sets_b: Ids, buffer_b: Ints,
    writer: Ints, marks: Ints,
) -> tuple[int, int]:  # fmt: skip
    """Serve the demands of all cycles; returns the total cycles and the stalls.

    Parameters
    ----------
    size_rows, size_columns, steps
        Of the whole product as it is laid out: along rows, along columns, in time.
    capacity
        Words of the writing buffer.
    marks
        Gets first and last cycle of the SRAM's requests: ifmap, filter, ofmap.
    """
    shapes = (shape_a, shape_b)
    all_ids = (ids_a, ids_b)
    begins = (begin_a, begin_b)
    all_sets = (sets_a, sets_b)
    buffers = (buffer_a, buffer_b)
    short = np.zeros(1024 + 2 * columns, np.int32)
    stall = 0
    served = 0
    number = 0
    for fold in range(column_folds * row_folds):
        column_fold = fold // row_folds
        row_fold = fold % row_folds
        used_columns = min(columns, size_columns - column_fold * columns)
        used_rows = min(rows, size_rows - row_fold * rows)
        for within in range(fold_lines):
            cycle = number + stall
            waits = 0
            for operand in range(2):
                shape = shapes[operand]
                line = _lanes(shape, within, rows, row_fold, column_fold, used_rows, used_columns)
                if line[1] <= line[0]:
                    continue
                late = 1
                if not shape[COUNTED]:
                    late = _serve_read(
                        calc, cycle, line, all_ids[operand], begins[operand], all_sets[operand],
                        buffers[operand],
                    )  # fmt: skip
                if late != 0:
                    _mark(marks, operand, cycle + late)
                    waits = max(waits, late - 1)
            count = _results(output_stationary, within, rows, steps, used_rows, used_columns)
            if writer[LINE] + 2 * count + 2 >= short.size:
                longer = np.zeros(2 * short.size, np.int32)
                longer[: short.size] = short
                short = longer
            served = _serve_writes(count, cycle, capacity, short, writer)
            if count:
                _mark(marks, 2, served)
            stall += max(waits, served - cycle)
            number += 1
    _close_line(short, writer)
    cycle = served
    while writer[NEXT] < writer[LINE]:
        cycle = _drain(cycle, short, writer) + 1
    return served, stall
