"""The spatial array itself, word by word: it returns the product and the cycles that it took.

Every word crosses a network in one cycle of its own and lands in the registers of the elements that
need it; an element that lacks a word for a multiplication stops the simulation. An element keeps a
word only while it is in its present or its next tile. Partial sums sit in the elements, hop along
chains of neighbours and leave through the network one by one. The control looks at what has
arrived and what is used up, cycle by cycle; nothing is known here of numbers of words, so equal
counts prove the recurrence of `clock`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline._jit import kernel, kernel_part
from ridgeline.errors import RidgelineError
from ridgeline.kernels.spatial.clock import Ints, Machine, Work

Values = NDArray[np.int64]
Flags = NDArray[np.bool_]
N, G, K, C, P, Q, R, S = range(8)


class Plan(NamedTuple):
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


def plan_of(work: Work) -> Plan:
    """Lay down the steps by walking through the loops, in the obvious way."""
    places: list[tuple[int, ...]] = []

    def walk(level: int, offset: list[int]) -> None:
        if level == len(work.of):
            places.append(tuple(offset))
            return
        d = int(work.of[level])
        for i in range(int(work.trips[level])):
            inner = list(offset)
            inner[d] += i * int(work.reach[level])
            if inner[d] < work.sizes[d]:
                walk(level + 1, inner)

    walk(0, [0] * 8)
    at = np.array(places, np.int64)
    moved: Flags = np.ones(at.shape, bool)
    moved[1:] = at[1:] != at[:-1]
    height, width = _any(moved, P, R), _any(moved, Q, S)
    other = _any(moved, N, G, C)
    keeps = np.where(other | (height & width), -1, np.where(height, 0, 1))
    x_new = other | height | width
    x_new[0], keeps[0] = True, -1
    seen: set[tuple[int, ...]] = set()
    again = np.zeros(len(at), bool)
    y_new = _any(moved, N, G, K, P, Q)
    for i in range(len(at)):
        tile = tuple(int(at[i, d]) for d in (N, G, K, P, Q))
        if y_new[i]:
            again[i] = tile in seen
            seen.add(tile)
    return Plan(at, x_new, _any(moved, G, K, C, R, S), y_new, keeps, again)


def _any(moved: Flags, *loops: int) -> Flags:
    """Tell for each step whether one of some loops has moved."""
    return np.asarray(moved[:, loops].any(axis=1), dtype=bool)


class Tiles(NamedTuple):
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


class Network(NamedTuple):
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


class Store(NamedTuple):
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


def element_level_product(
    x: Values, w: Values, work: Work, machine: Machine
) -> tuple[Values, int, list[int]]:
    """Play a nest on the array.

    Parameters
    ----------
    x, w
        [n, g, c, height, width], padding included, and [g, k, c, r, s].

    Returns
    -------
    product : ndarray [n, g, k, p, q]
    cycles : int
        From the first cycle to the one in which the last result leaves.
    words : list of int
        Of x, w, and of partial sums in and out.

    Raises
    ------
    RidgelineError
        If an element was not given what it needs.
    """
    plan = plan_of(work)
    elements = int(np.prod(work.rows) * np.prod(work.columns))
    y = np.zeros([int(work.sizes[d]) for d in (N, G, K, P, Q)], np.int64)
    stores = [
        Store(
            a.ravel(),
            np.array(a.shape, np.int64),
            np.zeros((2, elements, a.size), np.bool_),
            np.zeros((2, elements, a.size), np.bool_),
        )
        for a in (x, w, y)
    ]
    nets = [
        Network(np.zeros((elements * a.size + 1, 2), np.int64), np.array([0, -1, 0, 0]))
        for a in (x, w, y, y)
    ]
    sums = np.zeros((2, elements, y.size), np.int64)
    cycles = _play(
        stores[0], stores[1], stores[2], sums, nets[0], nets[1], nets[2], nets[3],
        _placed(work, elements), plan, _tiles(plan.x_new), _tiles(plan.w_new), _tiles(plan.y_new),
        work, machine,
    )  # fmt: skip
    if cycles < 0:
        raise RidgelineError("an element of the spatial array lacks a word that it needs")
    return y, int(cycles), [int(net.now[TOTAL]) for net in nets]


def _tiles(new: Flags) -> Tiles:
    return Tiles(np.append(np.flatnonzero(new), len(new)), np.cumsum(new) - 1)


def _placed(work: Work, elements: int) -> Ints:
    """[elements, 10]: each element's part of every loop; its places in the chains of sums.

    Loops are digits of the row and column number; those of a sum are between neighbours.
    """
    placed = np.zeros((elements, 10), np.int64)
    columns = int(np.prod(work.columns))
    for element in range(elements):
        row, column = divmod(element, columns)
        placed[element, 8] = row % int(np.prod(work.rows[[C, R, S]]))
        placed[element, 9] = column % int(np.prod(work.columns[[C, R, S]]))
        for d in (S, R, C, Q, P, K, G, N):
            row, i = divmod(row, int(work.rows[d]))
            column, j = divmod(column, int(work.columns[d]))
            placed[element, d] = i * work.columns[d] + j
    return placed


@kernel
def _play(  # noqa: PLR0915 - all that happens in a cycle
    x: Store, w: Store, y: Store, sums: Values,
    x_net: Network, w_net: Network, in_net: Network, out_net: Network,
    placed: Ints, plan: Plan, x_tiles: Tiles, w_tiles: Tiles, y_tiles: Tiles,
    work: Work, machine: Machine,
) -> int:  # fmt: skip
    steps, tiles, columns = len(plan.at), len(y_tiles.first) - 1, 1
    for d in range(8):
        columns *= work.columns[d]
    ready = np.full(steps, -1, np.int64)  # when a pass may begin to bring in operands
    ready[0] = machine.setup
    hops = np.full(2, -1, np.int64)  # cycles until the sums have come together; -1: in use
    done, drained, cycle, spent = 0, 0, 0, -1
    at = np.zeros(8, np.int64)
    while True:
        # What has come to its end by now.
        if spent >= 0 and spent == _longest(done, plan, work):
            spent, done = -1, done + 1
            if done < steps and _barrier(done, plan, machine):
                ready[done] = cycle + machine.setup
            tile = y_tiles.of[done - 1]
            if done == y_tiles.first[tile + 1]:
                hops[_slot(tile, machine.y_double)] = work.hops * machine.hop
        if out_net.now[LENGTH] >= 0 and out_net.now[GONE] == out_net.now[LENGTH]:
            out_net.now[LENGTH] = in_net.now[LENGTH] = -1
            hops[_slot(drained, machine.y_double)] = -1
            drained += 1
            if drained == tiles:
                return cycle
        # What may begin; a tile of no words is there at once.
        while _arrived(x_net, x_tiles) and _may_load(
            x_net, x_tiles, machine.x_double, done, cycle, ready, plan, machine
        ):
            _fetch(0, x_net, x, x_tiles, machine.x_double, machine.x_multicast, placed, plan, work)
        while _arrived(w_net, w_tiles) and _may_load(
            w_net, w_tiles, machine.w_double, done, cycle, ready, plan, machine
        ):
            _fetch(1, w_net, w, w_tiles, machine.w_double, machine.w_multicast, placed, plan, work)
        if out_net.now[LENGTH] < 0 and hops[_slot(drained, machine.y_double)] == 0:
            _sums(out_net, y_tiles.first[drained], y, placed, plan, work)
            if plan.again[y_tiles.first[drained]]:
                _sums(in_net, y_tiles.first[drained], y, placed, plan, work)
        if (
            spent < 0
            and done < steps
            and _has_all(
                done,
                cycle,
                ready,
                drained,
                x_net,
                w_net,
                x_tiles,
                w_tiles,
                y_tiles,
                plan,
                machine,
            )
        ):
            spent = 0
        # What happens in this cycle.
        cycle += 1
        _carry(x_net, x, machine.x_words, _slot(x_net.now[ARRIVED], machine.x_double))
        _carry(w_net, w, machine.w_words, _slot(w_net.now[ARRIVED], machine.w_double))
        slot = _slot(drained, machine.y_double)
        for _ in range(_going(in_net, machine.in_words)):
            word, element = in_net.queue[in_net.now[GONE]]
            sums[slot, element, word] += y.values[word]
            y.values[word] = 0
            in_net.now[GONE] += 1
        for _ in range(_going(out_net, machine.out_words)):
            if in_net.now[LENGTH] >= 0 and out_net.now[GONE] == in_net.now[GONE]:
                break  # the next one has not come in yet
            word, element = out_net.queue[out_net.now[GONE]]
            y.values[word] += sums[slot, element, word]
            sums[slot, element, word] = 0
            out_net.now[GONE] += 1
        for half in range(2):
            if hops[half] > 0:
                _hop(half, hops[half], columns, placed, sums, machine)
                hops[half] -= 1
        if spent >= 0:
            x_slot = _slot(x_tiles.of[done], machine.x_double)
            w_slot = _slot(w_tiles.of[done], machine.w_double)
            y_slot = _slot(y_tiles.of[done], machine.y_double)
            for element in range(len(placed)):
                if _at(spent, element, done, at, placed, plan, work):
                    i, j, k = _x_word(at, work, x), _w_word(at, w), _y_word(at, y)
                    if not (x.held[x_slot, element, i] and w.held[w_slot, element, j]):
                        return -1
                    sums[y_slot, element, k] += x.values[i] * w.values[j]
            spent += 1


@kernel_part
def _slot(tile: int, double: bool) -> int:
    return tile % 2 if double else 0


@kernel_part
def _barrier(step: int, plan: Plan, machine: Machine) -> bool:
    """Tell whether a step begins a pass."""
    w_waits = plan.w_new[step] and not machine.w_double
    return step == 0 or w_waits or (plan.x_new[step] and not machine.x_double)


@kernel_part
def _rested(step: int, done: int, cycle: int, ready: Ints, plan: Plan, machine: Machine) -> bool:
    """Tell whether the pass to which a step belongs has begun."""
    first = step
    while not _barrier(first, plan, machine):
        first -= 1
    return bool(done >= first and ready[first] >= 0 and ready[first] <= cycle)


@kernel_part
def _arrived(net: Network, tiles: Tiles) -> bool:
    """Take note of a tile that has arrived; tell whether there is another one to be brought."""
    if net.now[LENGTH] >= 0 and net.now[GONE] == net.now[LENGTH]:
        net.now[LENGTH] = -1
        net.now[ARRIVED] += 1
    return bool(net.now[LENGTH] < 0 and net.now[ARRIVED] < len(tiles.first) - 1)


@kernel_part
def _may_load(
    net: Network, tiles: Tiles, double: bool, done: int, cycle: int, ready: Ints, plan: Plan,
    machine: Machine,
) -> bool:  # fmt: skip
    """Tell whether the elements have room for the next tile."""
    tile = net.now[ARRIVED]
    if double and tile >= 2 and done < tiles.first[tile - 1]:
        return False
    return _rested(tiles.first[tile], done, cycle, ready, plan, machine)


@kernel_part
def _has_all(
    step: int, cycle: int, ready: Ints, drained: int, x_net: Network, w_net: Network,
    x_tiles: Tiles, w_tiles: Tiles, y_tiles: Tiles, plan: Plan, machine: Machine,
) -> bool:  # fmt: skip
    """Tell whether all that a step needs is in the elements."""
    tile = y_tiles.of[step]
    return (
        _rested(step, step, cycle, ready, plan, machine)
        and x_net.now[ARRIVED] > x_tiles.of[step]
        and w_net.now[ARRIVED] > w_tiles.of[step]
        and drained >= (tile - 1 if machine.y_double else tile)
    )


@kernel_part
def _longest(step: int, plan: Plan, work: Work) -> int:
    """Multiplications of the element that has most of them."""
    most = 1
    for d in range(8):
        most *= min(work.element[d], work.sizes[d] - plan.at[step, d])
    return int(most)


@kernel_part
def _at(
    number: int, element: int, step: int, at: Ints, placed: Ints, plan: Plan, work: Work
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
def _x_word(at: Ints, work: Work, x: Store) -> int:
    height = at[P] * work.window[0] + at[R] * work.window[2]
    width = at[Q] * work.window[1] + at[S] * work.window[3]
    word = (at[N] * x.sizes[1] + at[G]) * x.sizes[2] + at[C]
    return int((word * x.sizes[3] + height) * x.sizes[4] + width)


@kernel_part
def _w_word(at: Ints, w: Store) -> int:
    word = (at[G] * w.sizes[1] + at[K]) * w.sizes[2] + at[C]
    return int((word * w.sizes[3] + at[R]) * w.sizes[4] + at[S])


@kernel_part
def _y_word(at: Ints, y: Store) -> int:
    word = (at[N] * y.sizes[1] + at[G]) * y.sizes[2] + at[K]
    return int((word * y.sizes[3] + at[P]) * y.sizes[4] + at[Q])


@kernel
def _fetch(
    operand: int, net: Network, store: Store, tiles: Tiles, double: bool, multicast: bool,
    placed: Ints, plan: Plan, work: Work,
) -> None:  # fmt: skip
    """Queue what the elements need of the next tile of x (0) or w (1) and do not have."""
    tile = net.now[ARRIVED]
    step, slot = tiles.first[tile], _slot(tile, double)
    needed, held = store.needed[slot], store.held[slot]
    before = store.held[_slot(tile + 1, double)].copy()
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
                word = _x_word(at, work, store) if operand == 0 else _w_word(at, store)
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
    operand: int, number: int, element: int, first: Ints, at: Ints, placed: Ints, work: Work
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
def _sums(net: Network, step: int, y: Store, placed: Ints, plan: Plan, work: Work) -> None:
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
def _going(net: Network, words: int) -> int:
    """Words that a network carries in this cycle."""
    return int(max(0, min(words, net.now[LENGTH] - net.now[GONE])))


@kernel_part
def _carry(net: Network, store: Store, words: int, slot: int) -> None:
    """Bring words of x or w to the elements that need them."""
    for _ in range(_going(net, words)):
        word, element = net.queue[net.now[GONE]]
        for other in range(store.held.shape[1]):
            if (element < 0 or element == other) and store.needed[slot, other, word]:
                store.held[slot, other, word] = True
        net.now[GONE] += 1


@kernel_part
def _hop(
    slot: int, cycles: int, columns: int, placed: Ints, sums: Values, machine: Machine
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
