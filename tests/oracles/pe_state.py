"""PE state: registers and networks of the array, and what their words do in a cycle."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline._jit import kernel, kernel_part
from ridgeline.kernels.spatial.cycle_model import CycleMachine, Ints, LayoutArrays

Values = NDArray[np.int64]
Flags = NDArray[np.bool_]
N, G, K, C, P, Q, R, S = range(8)


class ArrayPlan(NamedTuple):
    """What happens in each step, laid down before the first cycle.

    Attributes
    ----------
    at
        [steps, 8], where the array tile of the step begins.
    x_new, w_new, y_new
        [steps], whether the step begins with other tiles.
    keeps
        [steps], the axis along which the window slides (0 height, 1 width), or -1.
    again
        [steps], whether the sums of the tile come back in.
    """

    at: Ints
    x_new: Flags
    w_new: Flags
    y_new: Flags
    keeps: Ints
    again: Flags


class OperandTiles(NamedTuple):
    """The tiles of one operand, one after the other.

    Attributes
    ----------
    first
        [tiles + 1], the step that begins with it; after the last one, the number of steps.
    of
        [steps], the tile that a step uses.
    """

    first: Ints
    of: Ints


class NetworkState(NamedTuple):
    """What a network is about to do.

    Attributes
    ----------
    queue
        Words of the tile that is under way, and the element each is for, or all that need it (-1).
    now
        [4]: tiles that have arrived; length of the queue, -1 if nothing is under way; words that
        have gone; words in all.
    """

    queue: Ints
    now: Ints


ARRIVED, LENGTH, GONE, TOTAL = range(4)


class OperandStore(NamedTuple):
    """Words of one operand.

    Attributes
    ----------
    values
        In the buffer.
    sizes
        Of the operand's axes.
    needed, held
        [2, elements, words], of the tile in each of the elements' two registers.
    """

    values: Values
    sizes: Ints
    needed: Flags
    held: Flags


@kernel_part
def slot_of(tile: int, double: bool) -> int:
    """Return the register, of one or two, that a tile is in."""
    return tile % 2 if double else 0


@kernel_part
def find_place(
    number: int,
    element: int,
    step: int,
    at: Ints,
    placed: Ints,
    plan: ArrayPlan,
    work: LayoutArrays,
) -> bool:
    """Find the place in the nest of an element's next multiplication; False if it has no more."""
    for d in range(7, -1, -1):
        first = plan.at[step, d] + placed[element, d] * work.element[d]
        count = min(work.element[d], work.sizes[d] - first)
        if count <= 0:
            return False
        at[d] = first + number % count
        number //= count
    return number == 0


@kernel_part
def x_word(at: Ints, work: LayoutArrays, x: OperandStore) -> int:
    """Return the number of the image word of an iteration."""
    height = at[P] * work.window[0] + at[R] * work.window[2]
    width = at[Q] * work.window[1] + at[S] * work.window[3]
    word = (at[N] * x.sizes[1] + at[G]) * x.sizes[2] + at[C]
    return int((word * x.sizes[3] + height) * x.sizes[4] + width)


@kernel_part
def w_word(at: Ints, w: OperandStore) -> int:
    """Return the number of the filter word of an iteration."""
    word = (at[G] * w.sizes[1] + at[K]) * w.sizes[2] + at[C]
    return int((word * w.sizes[3] + at[R]) * w.sizes[4] + at[S])


@kernel_part
def y_word(at: Ints, y: OperandStore) -> int:
    """Return the number of the sum of an iteration."""
    word = (at[N] * y.sizes[1] + at[G]) * y.sizes[2] + at[K]
    return int((word * y.sizes[3] + at[P]) * y.sizes[4] + at[Q])


@kernel
def fetch(
    operand: int, net: NetworkState, store: OperandStore, tiles: OperandTiles, double: bool,
    multicast: bool,
    placed: Ints, plan: ArrayPlan, work: LayoutArrays,
) -> None:  # fmt: skip
    """Queue what the elements need of the next tile of x (0) or w (1) and do not have."""
    tile = net.now[ARRIVED]
    step, slot = tiles.first[tile], slot_of(tile, double)
    needed, held = store.needed[slot], store.held[slot]
    before = store.held[slot_of(tile + 1, double)].copy()
    needed[:] = False
    whole, at = plan.at[step].copy(), np.zeros(8, np.int64)
    for element in range(len(placed)):
        # An element without work of its own listens in: the loops on which the operand does not
        # depend may not have come to it.
        count = 1
        for d in range(8):
            count *= work.element[d]
        for number in range(count):
            if _listens(operand, number, element, whole, at, placed, work):
                word = x_word(at, work, store) if operand == 0 else w_word(at, store)
                needed[element, word] = True
    keeps = operand == 0 and plan.keeps[step] >= 0
    net.now[LENGTH], net.now[GONE] = 0, 0
    for word in range(len(store.values)):
        wanted = False
        for element in range(len(placed)):
            has = keeps and needed[element, word] and before[element, word]
            held[element, word] = has
            if needed[element, word] and not has:
                if not multicast:
                    net.queue[net.now[LENGTH], 0] = word
                    net.queue[net.now[LENGTH], 1] = element
                    net.now[LENGTH] += 1
                wanted = True
        if wanted and multicast:
            net.queue[net.now[LENGTH], 0] = word
            net.queue[net.now[LENGTH], 1] = -1
            net.now[LENGTH] += 1
    net.now[TOTAL] += net.now[LENGTH]


@kernel_part
def _listens(
    operand: int, number: int, element: int, first: Ints, at: Ints, placed: Ints, work: LayoutArrays
) -> bool:
    """Find an iteration of an element's tile; False if it is not in the nest."""
    for d in range(7, -1, -1):
        at[d] = first[d] + placed[element, d] * work.element[d] + number % work.element[d]
        number //= work.element[d]
        depends = d != K if operand == 0 else d not in (N, P, Q)
        if at[d] >= work.sizes[d]:
            if depends:
                return False
            at[d] = work.sizes[d] - 1
    return True


@kernel_part
def queue_sums(
    net: NetworkState, step: int, y: OperandStore, placed: Ints, plan: ArrayPlan, work: LayoutArrays
) -> None:
    """Queue the sums of a tile, each with the first element of its chain."""
    net.now[LENGTH], net.now[GONE] = 0, 0
    for word in range(len(y.values)):
        rest = word
        for element in range(len(placed)):
            if placed[element, 8] > 0 or placed[element, 9] > 0:
                continue
            rest, inside = word, True
            for axis in range(4, -1, -1):
                d = (N, G, K, P, Q)[axis]
                place = rest % y.sizes[axis] - plan.at[step, d]
                rest //= y.sizes[axis]
                first = placed[element, d] * work.element[d]
                inside = inside and first <= place and place < first + work.element[d]
            if inside:
                net.queue[net.now[LENGTH], 0] = word
                net.queue[net.now[LENGTH], 1] = element
                net.now[LENGTH] += 1
    net.now[TOTAL] += net.now[LENGTH]


@kernel_part
def going(net: NetworkState, words: int) -> int:
    """Words that a network carries in this cycle."""
    return int(max(0, min(words, net.now[LENGTH] - net.now[GONE])))


@kernel_part
def carry(net: NetworkState, store: OperandStore, words: int, slot: int) -> None:
    """Bring words of x or w to the elements that need them."""
    for _ in range(going(net, words)):
        word, element = net.queue[net.now[GONE]]
        for other in range(store.held.shape[1]):
            if (element < 0 or element == other) and store.needed[slot, other, word]:
                store.held[slot, other, word] = True
        net.now[GONE] += 1


@kernel_part
def hop_on(
    slot: int, cycles: int, columns: int, placed: Ints, sums: Values, machine: CycleMachine
) -> None:
    """Let the sums of the farthest elements, rows first, go to their neighbours."""
    if (cycles - 1) % machine.hop:
        return
    hop = (cycles - 1) // machine.hop + 1  # how many are left, this one included
    across = 0
    for element in range(len(placed)):
        across = max(across, placed[element, 9])
    for element in range(len(placed)):
        to = element
        if hop > across and placed[element, 8] == hop - across:
            to = element - columns
        elif hop <= across and placed[element, 9] == hop and placed[element, 8] == 0:
            to = element - 1
        if to != element:
            for word in range(sums.shape[2]):
                sums[slot, to, word] += sums[slot, element, word]
                sums[slot, element, word] = 0
