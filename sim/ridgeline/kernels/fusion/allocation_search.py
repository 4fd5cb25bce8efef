"""The allocation of a group's layers to cores that takes least time, of cores that share a level.

All allocations are compared, by branch and bound, in compiled code: of each that may be the best
the rows that are held and every beat are played, as in `pipeline_beats`. Where cores share the
level that holds rows, allocations differ in nothing but time and room, so that the fastest one that
fits is the best by any objective.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline._jit import kernel, kernel_part

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_LOAD = 1


class GroupArrays(NamedTuple):
    """A group's rows and work as arrays, of O ops, T tensors, R reads and S steps of a sample.

    Attributes
    ----------
    layer
        [O] layer of each op.
    op_s
        [O, S] seconds on one core.
    weight_bytes
        [O].
    read_ptr, read_tensor
        [O + 1], [R] tensors that each op reads.
    producer
        [T] op that makes a tensor; -1: it comes from outside.
    made, until
        [T, S] rows that are made in a step, and up to its end.
    row_bytes, stored_bytes
        [T] bytes of a row, and those of it that go to the far memory.
    reader_ptr, reader
        [T + 1], [R] ops that read each tensor.
    pending
        [R, S + 1] first row that such an op still needs.
    """

    layer: Ints
    op_s: Floats
    weight_bytes: Floats
    read_ptr: Ints
    read_tensor: Ints
    producer: Ints
    made: Floats
    until: Floats
    row_bytes: Floats
    stored_bytes: Floats
    reader_ptr: Ints
    reader: Ints
    pending: Floats


class CoreRates(NamedTuple):
    """What cores that share a level have.

    Attributes
    ----------
    number
        Cores.
    batch
        Samples.
    held
        Whether weights are loaded once, before all samples.
    near_rate, far_rate
        B/s of a core's part of the level that holds rows, and of the far memory.
    room_bytes
        Of the level.
    """

    number: int
    batch: int
    held: bool
    near_rate: float
    far_rate: float
    room_bytes: float


@kernel
def fastest_allocation(
    group: GroupArrays, cores: CoreRates, least_s: float, limit_s: float
) -> tuple[float, Ints]:
    """Return the seconds of all beats of the fastest allocation to several cores, and its cores.

    Cores are numbered in the order in which they are first used. A single one is left out: the
    whole device does what it does, and no slower.

    Parameters
    ----------
    least_s
        Seconds that the busiest core is busy with, whatever the allocation.
    limit_s
        Allocations that take as long, or longer, are not looked for; inf of the result: none.
    """
    ops = len(group.layer)
    once_s = group.weight_bytes.sum() / cores.far_rate if cores.held else 0.0
    layers = group.layer.max() + 1
    layer_s = np.zeros(layers)
    for op in range(ops):
        layer_s[group.layer[op]] += cores.batch * group.op_s[op].sum()
    least_s = max(least_s, layer_s.max())
    steps = group.made.shape[1]
    most = _LOAD + 2 * ops + 3 * steps  # beats that are played: as many samples as overlap, and one
    depth, alone, held = np.zeros(ops, np.int64), np.zeros(most), np.zeros(most)
    each_s, far = np.zeros((cores.number, most)), np.zeros(most)
    best_s, best = np.inf, np.zeros(ops, np.int64)
    limit = limit_s
    chosen, of_op = np.zeros(layers, np.int64), np.zeros(ops, np.int64)
    used, busy_s = np.zeros(layers + 1, np.int64), np.zeros(cores.number)
    used[1], busy_s[0] = 1, layer_s[0]
    at, chosen_next = 1, 0
    if layers == 1 or once_s + max(least_s, busy_s[0]) >= limit:
        return best_s, best
    chosen[1] = -1
    while at > 0:
        if chosen[at] >= 0:  # take it back
            busy_s[chosen[at]] -= layer_s[at]
        chosen_next = chosen[at] + 1
        if chosen_next >= min(used[at] + 1, cores.number):
            at -= 1
            continue
        chosen[at] = chosen_next
        busy_s[chosen_next] += layer_s[at]
        if once_s + max(least_s, busy_s.max()) >= limit:
            continue
        used[at + 1] = max(used[at], chosen_next + 1)
        if at + 1 < layers:
            at += 1
            chosen[at] = -1
            continue
        if used[at + 1] < 2:
            continue
        for op in range(ops):
            of_op[op] = chosen[group.layer[op]]
        _set_depths(group, of_op, depth)
        rows_bytes = _held_bytes(group, cores, depth, alone, held)
        if rows_bytes + _held_weights(group, cores, of_op) > cores.room_bytes:
            continue
        time_s = _beats_s(group, cores, of_op, depth, each_s, far)
        if time_s < limit:
            best_s = limit = time_s
            best[:] = of_op
    return best_s, best


@kernel_part
def _set_depths(group: GroupArrays, of_op: Ints, depth: Ints) -> None:
    """Set how many beats each op is behind the first ones."""
    for op in range(len(of_op)):
        depth[op] = 0
        for read in range(group.read_ptr[op], group.read_ptr[op + 1]):
            made_by = group.producer[group.read_tensor[read]]
            if made_by >= 0:
                behind = depth[made_by] + (1 if of_op[made_by] != of_op[op] else 0)
                depth[op] = max(depth[op], behind)


@kernel_part
def _first_reader(group: GroupArrays, tensor: int, of_op: Ints, depth: Ints) -> int:
    """Return the op on the core that reads a tensor first: that core's first one; -1: none."""
    best, found = -1, np.iinfo(np.int64).max
    begin, end = group.reader_ptr[tensor], group.reader_ptr[tensor + 1]
    for place in range(begin, end):
        core, own, seen = of_op[group.reader[place]], group.reader[place], False
        for other in range(begin, end):
            op = group.reader[other]
            if of_op[op] == core:
                seen = seen or other < place
                if depth[op] < depth[own]:
                    own = op
        if not seen and depth[own] < found:
            best, found = own, depth[own]
    return best


@kernel_part
def _held_bytes(
    group: GroupArrays, cores: CoreRates, depth: Ints, alone: Floats, held: Floats
) -> float:
    """Return the most bytes of rows that are held at once, of all samples under way."""
    steps, fill = group.made.shape[1], depth.max()
    samples = min(cores.batch, 2 + -(-fill // steps))
    span, beats = _LOAD + fill + steps, _LOAD + fill + samples * steps
    alone[:span], held[:beats] = 0.0, 0.0
    for tensor in range(len(group.producer)):
        begin, end = group.reader_ptr[tensor], group.reader_ptr[tensor + 1]
        if begin == end:
            continue
        made_by = group.producer[tensor]
        begun = depth[made_by] if made_by >= 0 else -1
        if made_by < 0:
            begun = depth[group.reader[begin]]
            for read in range(begin, end):
                begun = min(begun, depth[group.reader[read]])
            begun -= _LOAD
        for place in range(span):
            beat = place - _LOAD
            step = beat - begun
            if step < 0:
                continue
            until = group.until[tensor, min(step, steps - 1)]
            first = np.inf
            for read in range(begin, end):
                own = min(max(beat - depth[group.reader[read]], 0), steps)
                first = min(first, group.pending[read, own])
            alone[place] += max(0.0, until - first) * group.row_bytes[tensor]
    for sample in range(samples):
        for place in range(span):
            held[sample * steps + place] += alone[place]
    most: float = held[:beats].max()
    return most


@kernel_part
def _held_weights(group: GroupArrays, cores: CoreRates, of_op: Ints) -> float:
    """Return the bytes of weights on chip: all, or on each core of one of its ops and the next."""
    if cores.held:
        every: float = group.weight_bytes.sum()
        return every
    total = 0.0
    for core in range(cores.number):
        first, before, most = -1, -1, 0.0
        for op in range(len(of_op)):
            if of_op[op] != core:
                continue
            if before >= 0:
                most = max(most, group.weight_bytes[before] + group.weight_bytes[op])
            first, before = (op if first < 0 else first), op
        if first >= 0:
            total += max(most, group.weight_bytes[before] + group.weight_bytes[first])
    return total


@kernel_part
def _beats_s(
    group: GroupArrays, cores: CoreRates, of_op: Ints, depth: Ints, busy_s: Floats, far: Floats
) -> float:
    """Return the seconds of all beats of all samples."""
    steps, fill = group.made.shape[1], depth.max()
    samples = min(cores.batch, 2 + -(-fill // steps))
    span, beats = samples * steps, _LOAD + fill + samples * steps
    busy_s[:, :beats], far[:beats] = 0.0, 0.0
    for op in range(len(of_op)):
        core, now = of_op[op], _LOAD + depth[op]
        weights = group.weight_bytes[op]
        more_s = 0.0 if cores.held else weights / cores.near_rate
        if cores.held:
            far[0] += weights
        for i in range(span):
            busy_s[core, now + i] += group.op_s[op, i % steps] + more_s
            if not cores.held:
                far[depth[op] + i] += weights
    for tensor in range(len(group.producer)):
        made_by = group.producer[tensor]
        if made_by < 0:
            first = _first_reader(group, tensor, of_op, depth)
            if first < 0:
                continue
            core, now = of_op[first], _LOAD + depth[first]
            size, early = group.row_bytes[tensor], 1
        else:
            core, now = of_op[made_by], _LOAD + depth[made_by]
            size, early = group.stored_bytes[tensor], 0
        if size == 0.0:
            continue
        for i in range(span):
            moved = group.made[tensor, i % steps] * size
            busy_s[core, now + i] += moved / cores.near_rate
            far[now - early + i] += moved
    total, again = 0.0, 0.0
    for beat in range(beats):
        beat_s = max(busy_s[:, beat].max(), far[beat] / cores.far_rate)
        total += beat_s
        if _LOAD + fill <= beat < _LOAD + fill + steps:
            again += beat_s
    time_s: float = total + (cores.batch - samples) * again
    return time_s
