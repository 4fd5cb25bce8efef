"""Cycle model of a spatial array: cycles and words of a loop nest by a max-plus recurrence.

A *step* is what the elements do between two exchanges of operands. The rules, which the array of
`tests/oracles/pe_array.py` plays word by word:

* Each of x, w, partial sums in and partial sums out has a network of its own that carries a number
  of words a cycle; with multicast a word goes to all elements that need it at once.
* An operand is exchanged when a loop that it depends on moves on. If the window only slides along
  one axis, an element keeps what it has of its next window; otherwise its tile is fetched anew.
* An operand with two buffers in each element comes in during earlier steps, into the buffer that
  the tile before the present one has left. One with a single buffer begins a new *pass*: it is
  exchanged when the array has come to rest, and nothing else is brought in before that either;
  `setup` cycles go by first.
* The elements multiply once a cycle. Sums over loops that are spread along a chain of neighbours
  hop from one to the next, and leave through the network of partial sums out. What was added up
  when their tile was worked on before comes in at the same time, and is added at the chain's end.

The recurrence needs few steps: when one iteration of a loop has left the array in the same state,
relative to the clock, as the one before it, all further ones but the last take as long.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline._jit import kernel, kernel_part

Ints = NDArray[np.int64]
N, G, K, C, P, Q, R, S = range(8)

# What the array remembers: the end of the last step; when each network is free; when the last tile
# but one of an operand was used for the last time; ends of the last two drains.
END, X_FREE, W_FREE, X_LEFT, W_LEFT, OUT_FREE, OUT_BEFORE = range(7)
# What is counted.
X_WORDS, W_WORDS, IN_WORDS, OUT_WORDS, BUSY, PASSES, STEPS, FILLED = range(8)
STATES, COUNTS = 7, 8


class LayoutArrays(NamedTuple):
    """The nest and its layout as arrays.

    Attributes
    ----------
    sizes, element, rows, columns
        [8], in the order of the nest's loops.
    window
        Strides along height and width, then dilations.
    of, trips, reach
        [loops], the outermost first: which loop, how often, and how far one iteration goes.
    hops
        From the last element of a chain of sums to the first one.
    """

    sizes: Ints
    element: Ints
    rows: Ints
    columns: Ints
    window: Ints
    of: Ints
    trips: Ints
    reach: Ints
    hops: int


class CycleMachine(NamedTuple):
    """Networks in words a cycle, and what they and the elements can do."""

    x_words: int
    w_words: int
    in_words: int
    out_words: int
    x_multicast: bool
    w_multicast: bool
    x_double: bool
    w_double: bool
    y_double: bool
    hop: int
    setup: int


class Scratch(NamedTuple):
    """Room for the recurrence.

    Windows along an axis are counted once for each place and the loop that has moved on, which
    settles the place before.

    Attributes
    ----------
    windows
        [2, places along the axis, 1 + loops], words of windows, anew or after a loop has moved on;
        -1: not yet counted.
    counted_at
        [room, 3], where `windows` has some; how many these are is in `many`.
    """

    turn: Ints
    trip: Ints
    offset: Ints
    last: Ints
    state: Ints
    counted: Ints
    saved_state: Ints
    saved_count: Ints
    marks: Ints
    again: NDArray[np.bool_]
    saved_again: NDArray[np.bool_]
    windows: Ints
    counted_at: Ints
    many: Ints


def scratch_of(work: LayoutArrays) -> Scratch:
    """Return the room that the recurrence needs."""
    loops = len(work.of)
    spans = [
        int(
            (work.sizes[P + axis] + work.element[P + axis] - 1) * work.window[axis]
            + (work.sizes[R + axis] + work.element[R + axis] - 1) * work.window[2 + axis]
            + 1
        )
        for axis in range(2)
    ]
    places = max(int(work.sizes[P + axis] * work.sizes[R + axis]) for axis in range(2))
    return Scratch(
        turn=np.zeros(loops, np.int64),
        trip=np.zeros(loops, np.int64),
        offset=np.zeros(8, np.int64),
        last=np.zeros(8, np.int64),
        state=np.zeros(STATES, np.int64),
        counted=np.zeros(COUNTS, np.int64),
        saved_state=np.zeros((loops, STATES), np.int64),
        saved_count=np.zeros((loops, COUNTS), np.int64),
        marks=np.zeros(max(spans) + 1, np.int64),
        again=np.zeros(1, np.bool_),
        saved_again=np.zeros(loops, np.bool_),
        windows=np.full((2, places, 1 + loops), -1, np.int64),
        counted_at=np.zeros((2 * places * (1 + loops), 3), np.int64),
        many=np.zeros(1, np.int64),
    )


@kernel
def play(work: LayoutArrays, machine: CycleMachine, room: Scratch, longest: int, skip: bool) -> int:
    """Run through the steps; the counts are left in `room`. Return the cycles.

    Parameters
    ----------
    longest
        No transfer takes more cycles.
    skip
        Whether to leave out iterations that repeat the one before.
    """
    loops = len(work.of)
    state = room.state
    _restart(0, work, room)
    moved = -1  # the loop that has moved on, all inside it start afresh
    while True:
        _step(moved, work, machine, room)
        level = loops - 1
        while level >= 0:
            if skip:
                _repeat(level, longest, work, room)
            if room.turn[level] + 1 < room.trip[level]:
                break
            level -= 1
        if level < 0:
            break
        room.last[:] = room.offset
        room.turn[level] += 1
        _restart(level + 1, work, room)
        moved = level
    _drain(work, machine, room, room.offset)
    for i in range(room.many[0]):
        axis, place, moved = room.counted_at[i]
        room.windows[axis, place, moved] = -1
    room.many[0] = 0
    return int(state[OUT_FREE])


@kernel_part
def _restart(level: int, work: LayoutArrays, room: Scratch) -> None:
    """Start the loops from `level` inwards, and say where the nest is."""
    loops = len(work.of)
    for inner in range(level, loops):
        room.turn[inner] = 0
    room.offset[:] = 0
    for at in range(loops):
        d = work.of[at]
        if at >= level:
            left = work.sizes[d] - room.offset[d]
            room.trip[at] = min(work.trips[at], -(-left // work.reach[at]))
        room.offset[d] += room.turn[at] * work.reach[at]


@kernel_part
def _repeat(level: int, longest: int, work: LayoutArrays, room: Scratch) -> None:
    """Leave out iterations of a loop that would repeat the one that has just ended."""
    state, count, index = room.state, room.counted, room.turn[level]
    saved = room.saved_state[level]
    if 1 <= index < room.trip[level] - 2:
        same = bool(room.again[0] == room.saved_again[level])
        for i in range(STATES):
            # What is further back than any transfer takes makes nobody wait.
            now = max(state[i] - state[END], -longest)
            then = max(saved[i] - saved[END], -longest)
            same = same and now == then
        if same:
            times = room.trip[level] - 2 - index
            delta = state[END] - saved[END]
            for i in range(STATES):
                state[i] += times * delta
            for i in range(COUNTS):
                count[i] += times * (count[i] - room.saved_count[level, i])
            room.turn[level] += times
            room.offset[work.of[level]] += times * work.reach[level]
    room.saved_again[level] = room.again[0]
    for i in range(STATES):
        saved[i] = state[i]
    for i in range(COUNTS):
        room.saved_count[level, i] = count[i]


@kernel_part
def _tile(d: int, offset: int, work: LayoutArrays) -> int:
    """Count the iterations of loop d that the array does at this place."""
    return int(min(work.element[d] * work.rows[d] * work.columns[d], work.sizes[d] - offset))


@kernel_part
def _step(moved: int, work: LayoutArrays, machine: CycleMachine, room: Scratch) -> None:
    """Bring in what the next step needs, and do it."""
    state, count, at = room.state, room.counted, room.offset
    first = moved < 0
    x_new, w_new, y_new = first, first, first
    height = width = other = False  # where the window goes
    for d in range(8):
        if not first and at[d] != room.last[d]:
            x_new = x_new or d != K
            w_new = w_new or d not in (N, P, Q)
            y_new = y_new or d not in (C, R, S)
            height = height or d in (P, R)
            width = width or d in (Q, S)
            other = other or d in (N, G, C)
    old_out = state[OUT_FREE]
    if y_new and not first:
        _drain(work, machine, room, room.last)
        state[OUT_BEFORE] = old_out

    begin = state[END]  # of the step
    barrier = first or (w_new and not machine.w_double) or (x_new and not machine.x_double)
    if barrier:
        count[PASSES] += 1
        begin += machine.setup
        for network in (X_FREE, W_FREE):
            state[network] = max(state[network], begin)
    if w_new:
        words = _w_words(work, machine, at)
        count[W_WORDS] += words
        start = max(state[W_FREE], state[W_LEFT])
        state[W_FREE] = start + -(-words // machine.w_words)
        state[W_LEFT] = state[END]
        begin = max(begin, state[W_FREE])
    if x_new:
        anew = first or other or (height and width)
        words = _x_words(work, machine, room, moved, anew, width)
        count[X_WORDS] += words
        start = max(state[X_FREE], state[X_LEFT])
        state[X_FREE] = start + -(-words // machine.x_words)
        state[X_LEFT] = state[END]
        begin = max(begin, state[X_FREE])
    if y_new:
        begin = max(begin, state[OUT_BEFORE] if machine.y_double else state[OUT_FREE])
        room.again[0] = at[C] > 0 or at[R] > 0 or at[S] > 0
    if first:
        count[FILLED] = begin  # the cycle in which the first product is begun
    cycles = 1
    for d in range(8):
        cycles *= min(work.element[d], work.sizes[d] - at[d])
    count[BUSY] += cycles
    count[STEPS] += 1
    state[END] = begin + cycles


@kernel_part
def _drain(work: LayoutArrays, machine: CycleMachine, room: Scratch, at: Ints) -> None:
    """Take the sums of the tile at `at` out of the array."""
    words = _y_words(work, at)
    room.counted[OUT_WORDS] += words
    cycles = -(-words // machine.out_words)
    if room.again[0]:
        room.counted[IN_WORDS] += words
        cycles = max(cycles, -(-words // machine.in_words))
    start = max(room.state[OUT_FREE], room.state[END] + work.hops * machine.hop)
    room.state[OUT_FREE] = start + cycles


@kernel_part
def _y_words(work: LayoutArrays, at: Ints) -> int:
    words = 1
    for d in (N, G, K, P, Q):
        words *= _tile(d, at[d], work)
    return words


@kernel_part
def _w_words(work: LayoutArrays, machine: CycleMachine, at: Ints) -> int:
    words = 1
    for d in (G, K, C, R, S):
        words *= _tile(d, at[d], work)
    if not machine.w_multicast:
        for d in (N, P, Q):
            words *= work.rows[d] * work.columns[d]
    return words


@kernel_part
def _x_words(
    work: LayoutArrays,
    machine: CycleMachine,
    room: Scratch,
    moved: int,
    anew: bool,
    along_width: bool,
) -> int:
    at = room.offset
    words = 1
    for d in (N, G, C):
        words *= _tile(d, at[d], work)
    if not machine.x_multicast:
        words *= work.rows[K] * work.columns[K]
    words *= _window_once(0, -1 if anew or along_width else moved, work, machine, room)
    return words * _window_once(1, -1 if anew or not along_width else moved, work, machine, room)


@kernel_part
def _window_once(
    axis: int, moved: int, work: LayoutArrays, machine: CycleMachine, room: Scratch
) -> int:
    """Return `_window`, counted at the first time; anew where no loop has moved on."""
    place = room.offset[P + axis] * work.sizes[R + axis] + room.offset[R + axis]
    found = room.windows[axis, place, 1 + moved]
    if found < 0:
        found = _window(axis, moved < 0, work, machine, room)
        room.windows[axis, place, 1 + moved] = found
        at = room.counted_at[room.many[0]]
        at[0], at[1], at[2] = axis, place, 1 + moved
        room.many[0] += 1
    return int(found)


@kernel_part
def _window(axis: int, anew: bool, work: LayoutArrays, machine: CycleMachine, room: Scratch) -> int:
    """Positions along the height (0) or the width (1) that elements do not have yet.

    With multicast, each counts once; otherwise once for every element that needs it.
    """
    out, tap, marks = P + axis, R + axis, room.marks
    stride, dilation = work.window[axis], work.window[2 + axis]
    found = 0
    marks[:] = 0
    for o in range(work.rows[out] * work.columns[out]):
        for t in range(work.rows[tap] * work.columns[tap]):
            mark = 2 + 2 * (o * work.rows[tap] * work.columns[tap] + t)
            if not machine.x_multicast:
                marks[:] = 0  # what goes to another element is of no use to this one
            if not anew:
                _mark(out, tap, o, t, mark, stride, dilation, work, room.last, marks)
            found += _mark(out, tap, o, t, mark + 1, stride, dilation, work, room.offset, marks)
    if machine.x_multicast:
        found = 0
        for i in range(len(marks)):
            if marks[i] > 0 and marks[i] % 2 == 1:
                found += 1
    return found


@kernel_part
def _mark(
    out: int, tap: int, o: int, t: int, mark: int, stride: int, dilation: int,
    work: LayoutArrays, at: Ints, marks: Ints,
) -> int:  # fmt: skip
    """Mark the window of the element that is the o-th along `out` and the t-th along `tap`.

    Marks are even for what is held and odd for what is needed; what some other element needs stays
    marked. Return how many are needed that were not held.
    """
    found = 0
    first_out, first_tap = at[out] + o * work.element[out], at[tap] + t * work.element[tap]
    for i in range(first_out, min(first_out + work.element[out], work.sizes[out])):
        for j in range(first_tap, min(first_tap + work.element[tap], work.sizes[tap])):
            place = i * stride + j * dilation
            if mark % 2 == 0:
                if marks[place] % 2 == 0:
                    marks[place] = mark
            elif marks[place] != mark - 1 and marks[place] != mark:
                marks[place] = mark
                found += 1
    return found
