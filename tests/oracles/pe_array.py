"""PE array, word by word: returns the product and the cycles that it took.

Every word crosses a network in one cycle of its own and lands in the registers of the elements that
need it; an element that lacks a word for a multiplication stops the simulation. An element keeps a
word only while it is in its present or its next tile. Partial sums sit in the elements, hop along
chains of neighbours and leave through the network one by one. The control looks at what has
arrived and what is used up, cycle by cycle; nothing is known here of numbers of words, so equal
counts prove the recurrence of `clock`.
"""

from __future__ import annotations

import numpy as np

from oracles.pe_state import (
    ARRIVED,
    GONE,
    LENGTH,
    TOTAL,
    ArrayPlan,
    C,
    Flags,
    G,
    K,
    N,
    NetworkState,
    OperandStore,
    OperandTiles,
    P,
    Q,
    R,
    S,
    Values,
    carry,
    fetch,
    find_place,
    going,
    hop_on,
    queue_sums,
    slot_of,
    w_word,
    x_word,
    y_word,
)
from ridgeline._jit import kernel, kernel_part
from ridgeline.errors import RidgelineError
from ridgeline.kernels.spatial.cycle_model import CycleMachine, Ints, LayoutArrays


def plan_of(work: LayoutArrays) -> ArrayPlan:
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
    return ArrayPlan(at, x_new, _any(moved, G, K, C, R, S), y_new, keeps, again)


def _any(moved: Flags, *loops: int) -> Flags:
    """Tell for each step whether one of some loops has moved."""
    return np.asarray(moved[:, loops].any(axis=1), dtype=bool)


def element_level_product(
    x: Values, w: Values, work: LayoutArrays, machine: CycleMachine
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
        OperandStore(
            a.ravel(),
            np.array(a.shape, np.int64),
            np.zeros((2, elements, a.size), np.bool_),
            np.zeros((2, elements, a.size), np.bool_),
        )
        for a in (x, w, y)
    ]
    nets = [
        NetworkState(np.zeros((elements * a.size + 1, 2), np.int64), np.array([0, -1, 0, 0]))
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


def _tiles(new: Flags) -> OperandTiles:
    return OperandTiles(np.append(np.flatnonzero(new), len(new)), np.cumsum(new) - 1)


def _placed(work: LayoutArrays, elements: int) -> Ints:
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
def _play(
    x: OperandStore, w: OperandStore, y: OperandStore, sums: Values,
    x_net: NetworkState, w_net: NetworkState, in_net: NetworkState, out_net: NetworkState,
    placed: Ints, plan: ArrayPlan, x_tiles: OperandTiles, w_tiles: OperandTiles,
    y_tiles: OperandTiles,
    work: LayoutArrays, machine: CycleMachine,
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
                hops[slot_of(tile, machine.y_double)] = work.hops * machine.hop
        if out_net.now[LENGTH] >= 0 and out_net.now[GONE] == out_net.now[LENGTH]:
            out_net.now[LENGTH] = in_net.now[LENGTH] = -1
            hops[slot_of(drained, machine.y_double)] = -1
            drained += 1
            if drained == tiles:
                return cycle
        # What may begin; a tile of no words is there at once.
        while _arrived(x_net, x_tiles) and _may_load(
            x_net, x_tiles, machine.x_double, done, cycle, ready, plan, machine
        ):
            fetch(0, x_net, x, x_tiles, machine.x_double, machine.x_multicast, placed, plan, work)
        while _arrived(w_net, w_tiles) and _may_load(
            w_net, w_tiles, machine.w_double, done, cycle, ready, plan, machine
        ):
            fetch(1, w_net, w, w_tiles, machine.w_double, machine.w_multicast, placed, plan, work)
        if out_net.now[LENGTH] < 0 and hops[slot_of(drained, machine.y_double)] == 0:
            queue_sums(out_net, y_tiles.first[drained], y, placed, plan, work)
            if plan.again[y_tiles.first[drained]]:
                queue_sums(in_net, y_tiles.first[drained], y, placed, plan, work)
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
        carry(x_net, x, machine.x_words, slot_of(x_net.now[ARRIVED], machine.x_double))
        carry(w_net, w, machine.w_words, slot_of(w_net.now[ARRIVED], machine.w_double))
        slot = slot_of(drained, machine.y_double)
        for _ in range(going(in_net, machine.in_words)):
            word, element = in_net.queue[in_net.now[GONE]]
            sums[slot, element, word] += y.values[word]
            y.values[word] = 0
            in_net.now[GONE] += 1
        for _ in range(going(out_net, machine.out_words)):
            if in_net.now[LENGTH] >= 0 and out_net.now[GONE] == in_net.now[GONE]:
                break  # the next one has not come in yet
            word, element = out_net.queue[out_net.now[GONE]]
            y.values[word] += sums[slot, element, word]
            sums[slot, element, word] = 0
            out_net.now[GONE] += 1
        for half in range(2):
            if hops[half] > 0:
                hop_on(half, hops[half], columns, placed, sums, machine)
                hops[half] -= 1
        if spent >= 0:
            x_slot = slot_of(x_tiles.of[done], machine.x_double)
            w_slot = slot_of(w_tiles.of[done], machine.w_double)
            y_slot = slot_of(y_tiles.of[done], machine.y_double)
            for element in range(len(placed)):
                if find_place(spent, element, done, at, placed, plan, work):
                    i, j, k = x_word(at, work, x), w_word(at, w), y_word(at, y)
                    if not (x.held[x_slot, element, i] and w.held[w_slot, element, j]):
                        return -1
                    sums[y_slot, element, k] += x.values[i] * w.values[j]
            spent += 1


@kernel_part
def _barrier(step: int, plan: ArrayPlan, machine: CycleMachine) -> bool:
    """Tell whether a step begins a pass."""
    w_waits = plan.w_new[step] and not machine.w_double
    return step == 0 or w_waits or (plan.x_new[step] and not machine.x_double)


@kernel_part
def _rested(
    step: int, done: int, cycle: int, ready: Ints, plan: ArrayPlan, machine: CycleMachine
) -> bool:
    """Tell whether the pass to which a step belongs has begun."""
    first = step
    while not _barrier(first, plan, machine):
        first -= 1
    return bool(done >= first and ready[first] >= 0 and ready[first] <= cycle)


@kernel_part
def _arrived(net: NetworkState, tiles: OperandTiles) -> bool:
    """Take note of a tile that has arrived; tell whether there is another one to be brought."""
    if net.now[LENGTH] >= 0 and net.now[GONE] == net.now[LENGTH]:
        net.now[LENGTH] = -1
        net.now[ARRIVED] += 1
    return bool(net.now[LENGTH] < 0 and net.now[ARRIVED] < len(tiles.first) - 1)


@kernel_part
def _may_load(
    net: NetworkState, tiles: OperandTiles, double: bool, done: int, cycle: int, ready: Ints,
    plan: ArrayPlan,
    machine: CycleMachine,
) -> bool:  # fmt: skip
    """Tell whether the elements have room for the next tile."""
    tile = net.now[ARRIVED]
    if double and tile >= 2 and done < tiles.first[tile - 1]:
        return False
    return _rested(tiles.first[tile], done, cycle, ready, plan, machine)


@kernel_part
def _has_all(
    step: int, cycle: int, ready: Ints, drained: int, x_net: NetworkState, w_net: NetworkState,
    x_tiles: OperandTiles, w_tiles: OperandTiles, y_tiles: OperandTiles, plan: ArrayPlan,
    machine: CycleMachine,
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
def _longest(step: int, plan: ArrayPlan, work: LayoutArrays) -> int:
    """Multiplications of the element that has most of them."""
    most = 1
    for d in range(8):
        most *= min(work.element[d], work.sizes[d] - plan.at[step, d])
    return int(most)
