"""What PyTorch's caching allocator reserves of a device, beyond the tensors that are there.

It gives no memory back to the device: a tensor gets the smallest free block that is large enough,
of which the rest stays a free block, and a new segment of the device where there is none. Blocks
that are free side by side in a segment become one. What is lost are blocks too small for what comes
next, and the rounding of sizes (c10/cuda/CUDACachingAllocator.cpp: tensors to 512 B; up to 1 MiB in
segments of 2 MiB, below 10 MiB in segments of 20 MiB, else in segments of whole 2 MiB; blocks of
small tensors are divided down to 512 B, others where more than 1 MiB is left). All is on one
stream. Where the device is full, free segments go back to it before a new one is made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ridgeline._jit import kernel, kernel_part
from ridgeline.workload.liveness import MemoryPlan

Ints = npt.NDArray[np.int64]
_ROUND, _SMALL, _SMALL_SEGMENT = 512, 2**20, 2 * 2**20
_MIDDLE, _MIDDLE_SEGMENT = 10 * 2**20, 20 * 2**20
_NONE = -1
_STEPS = 2
_SIZE, _BEFORE, _AFTER, _FREE, _KIND = range(5)  # rows of blocks; a kind: 1 of small tensors, 0


@dataclass(frozen=True)
class Life:
    """When the tensors of one part of the model are there.

    Attributes
    ----------
    held
        Bytes of what is there all the time.
    sizes
        Bytes of all else: sums of gradients, and the tensors of one micro-batch.
    n_sums
        How many of them are sums, which all micro-batches share.
    events
        By phase, k + 1 where tensor k is made, -(k + 1) where it is given back, in order.
    begun
        Bytes of what is there for a moment before the first step.
    """

    held: Ints
    sizes: Ints
    n_sums: int
    events: Mapping[int, Ints]
    begun: Ints


def life_of(
    memory: MemoryPlan,
    phases: Mapping[int, Sequence[int]],
    *,
    lasting: bool,
    begun: Sequence[int] = (),
) -> Life:
    """Return what happens in the phases of a part, of the ops that each consists of.

    Parameters
    ----------
    lasting
        Sums of gradients are there all the time; else from the first backward pass of a step on.
    begun
        Bytes of what is there for a moment before the first step.
    """
    held = (*memory.held, *(size for _, _, size in memory.sums if lasting))
    sums = () if lasting else memory.sums
    starts: dict[int, list[int]] = {}
    ends: dict[int, list[int]] = {}
    for k, (first, last, _) in enumerate((*sums, *memory.spans), start=1):
        starts.setdefault(first, []).append(k)
        ends.setdefault(last, []).append(-k)
    events = {
        phase: np.array([k for i in ops for k in (*starts.get(i, ()), *ends.get(i, ()))], np.int64)
        for phase, ops in phases.items()
    }
    sizes = np.array([size for _, _, size in (*sums, *memory.spans)], np.int64)
    before = np.array(begun, np.int64)
    return Life(np.array(held, np.int64), sizes, len(sums), events, begun=before)


def lost_bytes(
    lives: Sequence[Life], phase: Ints, chunk: Ints, micro_batch: Ints, room: float = math.inf
) -> int:
    """Return what a device's first steps leave reserved, beyond the most that tensors take.

    Sums of gradients count as tensors that are there all the time, as in a simulation; so it is
    less than nothing where they are given back before the step is fullest.

    Parameters
    ----------
    lives
        Of each chunk of the model on the device.
    phase, chunk, micro_batch
        Of all that the device does, in order.
    room
        Bytes that may be reserved.
    """
    most = max(len(life.sizes) for life in lives)
    nothing = np.zeros(0, np.int64)
    stream, sizes, changes = [nothing], [nothing], [nothing]
    for p, c, m in zip(phase.tolist(), chunk.tolist(), micro_batch.tolist(), strict=True):
        events = lives[c].events.get(p, nothing)
        tensor = np.abs(events) - 1
        summed = tensor < lives[c].n_sums
        turn = np.where(summed, 0, m)
        stream.append(events + np.sign(events) * (turn * len(lives) + c) * most)
        sizes.append(lives[c].sizes[tensor])
        changes.append(np.where(summed, 0, np.sign(events) * sizes[-1]))
    held = np.concatenate([life.held for life in lives])
    begun = np.concatenate([life.begun for life in lives])
    before = np.arange(len(begun)) + 1 + len(lives) * most * (int(micro_batch.max(initial=0)) + 2)
    stream[0] = np.stack((before, -before), axis=1).reshape(-1)
    sizes[0] = np.repeat(begun, 2)
    events, size = (
        np.concatenate((one[0], *_STEPS * one[1:])).astype(np.int64) for one in (stream, sizes)
    )
    reserved = played(held, events, size, room)
    sums = sum(int(life.sizes[: life.n_sums].sum()) for life in lives)
    taken = int(np.cumsum(np.concatenate(changes)).max(initial=0))
    return int(reserved) - (int(held.sum()) + sums + taken)


@kernel
def played(held: Ints, events: Ints, sizes: Ints, room: float) -> int:
    """Return the bytes that are reserved when all events have happened.

    Where a new segment has no room, all that are free are given back to the device before. Where it
    has none even so, it is the most that was reserved: the device is too small.

    Parameters
    ----------
    held
        Bytes of what is allocated first and stays.
    events, sizes
        Positive numbers: that tensor, of so many bytes, is allocated, unless it is there; negative:
        given back.
    room
        Bytes that may be reserved; what tensors need is reserved all the same.
    """
    most = len(held) + len(events) + 1
    blocks = np.full((5, 2 * most), _NONE, np.int64)
    blocks[_FREE] = 0
    counts = np.zeros(2, np.int64)  # blocks, and of these such as have become part of others
    unused = np.zeros(2 * most, np.int64)
    block_of = np.full(np.abs(events).max() + 1 if len(events) else 1, _NONE, np.int64)
    reserved = beyond = 0
    for at in range(-len(held), len(events)):
        event = 0 if at < 0 else events[at]
        size = held[at] if at < 0 else sizes[at]
        there = event != 0 and block_of[abs(event)] != _NONE
        if event >= 0 and not there:
            wanted = max(-(-size // _ROUND), 1) * _ROUND
            best = _smallest(blocks, counts[0], wanted)
            if best == _NONE:
                if reserved + _segment(wanted) > room:
                    reserved -= _give_segments_back(blocks, counts, unused)
                best = _number(counts, unused)
                reserved += _begin_segment(blocks, best, wanted)
                if reserved > room:
                    beyond = max(beyond, reserved)
            _divide(blocks, best, wanted, counts, unused)
            if event:
                block_of[event] = best
        elif event < 0 and there:
            _give_back(blocks, block_of[-event], counts, unused)
            block_of[-event] = _NONE
    return max(reserved, beyond)


@kernel_part
def _smallest(blocks: Ints, n: int, wanted: int) -> int:
    """Return the smallest free block that has room, of those for tensors of this size."""
    best = _NONE
    for b in range(n):
        if blocks[_FREE, b] and blocks[_SIZE, b] >= wanted:
            fits = (blocks[_KIND, b] == 1) == (wanted <= _SMALL)
            if fits and (best == _NONE or blocks[_SIZE, b] < blocks[_SIZE, best]):
                best = b
    return best


@kernel_part
def _number(counts: Ints, unused: Ints) -> int:
    """Return the number of a new block."""
    if counts[1]:
        counts[1] -= 1
        return int(unused[counts[1]])
    counts[0] += 1
    return int(counts[0] - 1)


@kernel_part
def _segment(wanted: int) -> int:
    """Return the bytes of a segment that is made for a tensor."""
    if _SMALL < wanted < _MIDDLE:
        return _MIDDLE_SEGMENT
    return -(-wanted // _SMALL_SEGMENT) * _SMALL_SEGMENT


@kernel_part
def _give_segments_back(blocks: Ints, counts: Ints, unused: Ints) -> int:
    """Give all segments that are one free block back to the device, and return their bytes."""
    given = 0
    for b in range(counts[0]):
        if blocks[_FREE, b] and blocks[_BEFORE, b] == _NONE and blocks[_AFTER, b] == _NONE:
            given += blocks[_SIZE, b]
            blocks[_FREE, b] = 0
            unused[counts[1]] = b
            counts[1] += 1
    return int(given)


@kernel_part
def _begin_segment(blocks: Ints, b: int, wanted: int) -> int:
    """Make a new segment one free block, and return its bytes."""
    size = _segment(wanted)
    blocks[_SIZE, b], blocks[_KIND, b] = size, 1 if wanted <= _SMALL else 0
    blocks[_BEFORE, b] = blocks[_AFTER, b] = _NONE
    return size


@kernel_part
def _divide(blocks: Ints, b: int, wanted: int, counts: Ints, unused: Ints) -> None:
    """Take the front of a block, and leave the rest free, if that is large enough."""
    blocks[_FREE, b] = 0
    rest = blocks[_SIZE, b] - wanted
    if rest < _ROUND or (wanted > _SMALL and rest <= _SMALL):
        return
    part, behind = _number(counts, unused), blocks[_AFTER, b]
    blocks[_SIZE, b], blocks[_SIZE, part] = wanted, rest
    blocks[_FREE, part], blocks[_KIND, part] = 1, blocks[_KIND, b]
    blocks[_BEFORE, part], blocks[_AFTER, part] = b, behind
    blocks[_AFTER, b] = part
    if behind != _NONE:
        blocks[_BEFORE, behind] = part


@kernel_part
def _give_back(blocks: Ints, b: int, counts: Ints, unused: Ints) -> None:
    """Free a block, and make it one with its neighbours that are free."""
    blocks[_FREE, b] = 1
    for first in (b, blocks[_BEFORE, b]):
        if first == _NONE or not blocks[_FREE, first]:
            continue
        second = blocks[_AFTER, first]
        if second == _NONE or not blocks[_FREE, second]:
            continue
        blocks[_SIZE, first] += blocks[_SIZE, second]
        behind = blocks[_AFTER, second]
        blocks[_AFTER, first] = behind
        if behind != _NONE:
            blocks[_BEFORE, behind] = first
        blocks[_FREE, second] = 0
        unused[counts[1]] = second
        counts[1] += 1
