"""Word counts of a layout in closed form, for networks and memory.

Sums over tiles are products of sums over loops. An operand crosses again with each loop around the
innermost one that it depends on; windows slide where the innermost loops that images depend on
belong to one axis. The counts are those of `clock`, to the word.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline._jit import kernel_call, kernel_part
from ridgeline.kernels.spatial.cycle_model import (
    C,
    CycleMachine,
    G,
    Ints,
    K,
    LayoutArrays,
    N,
    P,
    Q,
    R,
    S,
    Scratch,
    _window,
)

Floats = NDArray[np.float64]
# Sums over the places of the windows along one axis, o: outputs, t: taps. ALL: each anew. Then for
# the loops along which the window slides, innermost first: once from the beginning, and from the
# end of the round before.
ALL, O_FIRST, O_AGAIN, T_FIRST, T_AGAIN, OT_FIRST, OT_AGAIN, TO_FIRST, TO_AGAIN = range(9)
SUMS = 9
AGAIN = 9  # a loop over filters with another loop that images depend on inside
X, W, OUT, IN = range(4)


class WindowAxis(NamedTuple):
    """What a window's words are counted with, of arrays that stand for one axis."""

    work: LayoutArrays
    machine: CycleMachine
    room: Scratch


@kernel_call
def _new_words(axis: int, anew: bool, at: WindowAxis) -> int:
    return _window(axis, anew, at.work, at.machine, at.room)


@kernel_part
def _moved(axis: int, out: int, tap: int, old_out: int, old_tap: int, at: WindowAxis) -> int:
    """Words of a window that comes from an old place."""
    at.room.last[P + axis], at.room.last[R + axis] = old_out, old_tap
    at.room.offset[P + axis], at.room.offset[R + axis] = out, tap
    return _new_words(axis, False, at)


@kernel_call
def window_sums(axis: int, element: Ints, parts: Ints, at: WindowAxis, found: Ints) -> None:
    """Sum up the words of an axis (0: height, 1: width) over all places of its windows.

    Parameters
    ----------
    element, parts
        [2], of outputs and of taps.
    found
        [9], the sums.
    """
    work = at.work
    out, tap = P + axis, R + axis
    work.element[out], work.element[tap] = element[0], element[1]
    work.rows[out], work.rows[tap] = parts[0], parts[1]
    step_o, step_t = element[0] * parts[0], element[1] * parts[1]
    size_o, size_t = work.sizes[out], work.sizes[tap]
    end_o = (size_o - 1) // step_o * step_o
    end_t = (size_t - 1) // step_t * step_t
    found[:] = 0
    for t in range(0, size_t, step_t):
        for o in range(0, size_o, step_o):
            at.room.offset[out], at.room.offset[tap] = o, t
            whole = _new_words(axis, True, at)
            found[ALL] += whole
            # Along outputs.
            if o == 0:
                found[O_FIRST] += whole
                found[O_AGAIN] += _moved(axis, 0, t, end_o, t, at)
            else:
                more = _moved(axis, o, t, o - step_o, t, at)
                found[O_FIRST] += more
                found[O_AGAIN] += more
            # Along taps.
            if t == 0:
                found[T_FIRST] += whole
                found[T_AGAIN] += _moved(axis, o, 0, o, end_t, at)
            else:
                more = _moved(axis, o, t, o, t - step_t, at)
                found[T_FIRST] += more
                found[T_AGAIN] += more
            # Along both: the inner loop from one end to the other, then the outer one.
            if o > 0:
                more = _moved(axis, o, t, o - step_o, t, at)
            elif t > 0:
                more = _moved(axis, o, t, end_o, t - step_t, at)
            else:
                more = _moved(axis, 0, 0, end_o, end_t, at)
            found[OT_AGAIN] += more
            found[OT_FIRST] += whole if o == 0 and t == 0 else more
            if t > 0:
                more = _moved(axis, o, t, o, t - step_t, at)
            elif o > 0:
                more = _moved(axis, o, t, o - step_o, end_t, at)
            else:
                more = _moved(axis, 0, 0, end_o, end_t, at)
            found[TO_AGAIN] += more
            found[TO_FIRST] += whole if o == 0 and t == 0 else more


@kernel_part
def words_of(order: Ints, trips: Ints, height: Ints, width: Ints, sizes: Ints, found: Ints) -> None:
    """Count the words of x, w, sums out and sums in, with multicast.

    Parameters
    ----------
    order
        Loops over tiles, the outermost first, each once.
    trips
        [8], by loop.
    height, width
        [9], sums of windows.
    found
        [4], the words.
    """
    w_inside, y_inside = False, False
    w_times, y_times = 1, 1
    filters, first, slid, over = -1, -1, 0, False
    for place in range(len(order) - 1, -1, -1):
        d = order[place]
        t = trips[d]
        if t == 1:
            continue
        if d == K:
            filters = AGAIN if over else slid
        elif not over:
            axis = 0 if d in (P, R) else 1 if d in (Q, S) else -1
            if axis < 0 or (slid > 0 and axis != (0 if first in (P, R) else 1)):
                over = True
            else:
                if slid == 0:
                    first = d
                slid += 1
        if d in (N, P, Q):
            if w_inside:
                w_times *= t
            y_inside = True
        elif d in (C, R, S):
            if y_inside:
                y_times *= t
            w_inside = True
        elif d == K:
            w_inside, y_inside = True, True
        else:
            w_inside, y_inside = True, True
    sums, other = (width, height) if first in (Q, S) else (height, width)
    often = trips[K] if filters == AGAIN else 1
    once = sums[ALL]
    if slid == 1:
        of = O_FIRST if first in (P, Q) else T_FIRST
        once = sums[of]
        if filters == 1:
            once += (trips[K] - 1) * sums[of + 1]
    elif slid == 2:
        of = OT_FIRST if first in (P, Q) else TO_FIRST
        once = sums[of]
        if filters == 1:
            once += (trips[K] - 1) * sums[O_AGAIN if first in (P, Q) else T_AGAIN]
        elif filters == 2:
            once += (trips[K] - 1) * sums[of + 1]
    found[X] = sizes[N] * sizes[G] * sizes[C] * once * other[ALL] * often
    found[W] = sizes[G] * sizes[K] * sizes[C] * sizes[R] * sizes[S] * w_times
    finished = sizes[N] * sizes[G] * sizes[K] * sizes[P] * sizes[Q]
    found[OUT] = finished * y_times
    found[IN] = finished * (y_times - 1)
