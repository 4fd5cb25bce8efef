"""Memory of the devices of a pipeline that is cut somewhere: tables of all parts, and their sums.

A device holds the states of its parts (weights, optimizer, sums of gradients), what the forward
pass keeps of every micro-batch that has not gone back yet, as its schedule has them, and what the
backward pass of one has besides. Where that of gradients of weights comes later, what it reads
stays until then. All but the last is exact up to where tensors begin and end; it is the most that
an op of a unit has.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ridgeline.parallel.partition.memory_footprint import (
    BESIDE,
    COMPUTED,
    EARLY,
    EXPERT_COMPUTED,
    EXPERT_GRADIENT,
    EXPERT_STATE,
    GATHERED,
    GRADIENT,
    KEPT,
    LATE,
    LATE_GRADIENTS,
    MASTER,
    OTHER,
    SCATTERED,
    STATE,
    UnitMemory,
)
from ridgeline.parallel.schedule import SCHEDULES

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
DEVICE, BACK, SUMS, VERSIONS, BETWEEN = range(5)
"""Columns of `PartMemory.moments`."""
_NEVER = 2**62


class DeviceRoom(NamedTuple):
    """What the devices of a pipeline have room for.

    Attributes
    ----------
    capacity_bytes
        Of each stage's smallest device, without what the program takes besides tensors.
    keeps_sums
        Whether sums of gradients over micro-batches are there from the first one on; else from when
        they are made.
    """

    capacity_bytes: tuple[float, ...]
    keeps_sums: bool = True


class PartMemory(NamedTuple):
    """What the devices of a cut hold (`memory_share`), of N units on K devices of C parts each.

    Attributes
    ----------
    states, gradients, weights
        [N + 1, N + 1] bytes of the part from one unit to before another: of all states but
        gradients; of sums of gradients; of one version of the weights that it computes with.
    beside
        [N + 1, N + 1] bytes of an op of its backward pass beside what is kept.
    kept
        [2, N + 1] bytes of all units before each one, of a micro-batch: from its forward to its
        backward pass, and from there to the gradients of weights.
    moments
        [R, 4 + 2 C] moments of a step: the device; which of its parts goes back then (-1: none);
        whether sums of gradients are there; versions of weights but the newest; of each part the
        micro-batches between their forward and backward passes, and from there to the gradients of
        weights.
    part_of
        [K, C] parts of each device.
    capacity
        [K] bytes of each device.
    """

    states: Floats
    gradients: Floats
    weights: Floats
    beside: Floats
    kept: Floats
    moments: Ints
    part_of: Ints
    capacity: Floats


def unlimited(n_units: int) -> PartMemory:
    """Return the memory of devices that have room for everything."""
    none = np.zeros((n_units + 1, n_units + 1))
    moments, parts = np.zeros((0, 6), np.int64), np.zeros((0, 1), np.int64)
    kept = np.zeros((2, n_units + 1))
    return PartMemory(none, none, none, none, kept, moments, parts, np.zeros(0))


def part_memory(
    units: UnitMemory,
    holds: npt.NDArray[np.bool_],
    zero_stage: int,
    ranks: tuple[int, int],
    room: DeviceRoom,
    order: tuple[str, int, int],
) -> PartMemory:
    """Return what the devices of a cut hold, if their ranks share states by ZeRO's stages.

    Parameters
    ----------
    holds
        [T, N] which units share each of the weights of ``units.shared``.
    zero_stage, ranks
        As `overheads.Replicas` has them.
    order
        Schedule, micro-batches, and parts of each device.
    """
    schedule, micro_batches, chunks = order
    devices = len(room.capacity_bytes)
    sums_from = int(not room.keeps_sums) if micro_batches > 1 else _NEVER

    def table(columns: tuple[int, ...], of_experts: int, least: int) -> Floats:
        """Return bytes of every part, of which experts are shared by fewer ranks."""

        def mine(rows: Floats) -> Floats:
            whole: Floats = rows[:, columns].sum(axis=1)
            if of_experts < 0 or zero_stage < least:
                return whole
            experts = rows[:, of_experts]
            found: Floats = (whole - experts) / ranks[0] + experts / ranks[1]
            return found

        return _of_parts(mine(units.held), holds, mine(units.shared))

    weights = table((COMPUTED,), EXPERT_COMPUTED, 3)
    states = table((OTHER,), -1, 0) + table((STATE, MASTER), EXPERT_STATE, 1) + weights
    column = (BESIDE, BESIDE, SCATTERED, GATHERED)[zero_stage if max(ranks) > 1 else 0]
    kept = np.zeros((2, len(units.held) + 1))
    kept[:, 1:] = np.cumsum(
        [units.held[:, KEPT], units.held[:, LATE] + units.held[:, LATE_GRADIENTS]], axis=1
    )
    moments, part_of = _moments(schedule, devices, micro_batches, chunks, sums_from)
    return PartMemory(
        states,
        table((GRADIENT,), EXPERT_GRADIENT, 2),
        weights,
        _beside(units.held, column),
        kept,
        moments,
        part_of,
        np.array(room.capacity_bytes),
    )


def _of_parts(each: Floats, holds: npt.NDArray[np.bool_], shared: Floats) -> Floats:
    """Return [N + 1, N + 1] sums over the units of a part, with what it shares with others."""
    until = np.concatenate(([0.0], np.cumsum(each)))
    found: Floats = until[None, :] - until[:, None]
    for holders, size in zip(holds, shared.tolist(), strict=True):
        count = np.concatenate(([0], np.cumsum(holders)))
        found += size * (count[None, :] > count[:, None])
    return found


def _beside(held: Floats, column: int) -> Floats:
    """Return [N + 1, N + 1] the most that an op of a part's backward pass has beside what is kept.

    Of what is kept, all of later units is gone then, and of those before what is `EARLY`.
    """
    n = len(held)
    until = np.cumsum(held[:, KEPT])
    gone = np.concatenate(([0.0], np.cumsum(held[:, EARLY])))
    most = held[:, column] + until - gone[:-1]
    found = np.zeros((n + 1, n + 1))
    for i in range(n):
        found[i, i + 1 :] = np.maximum.accumulate(most[i:]) - until[i:] + gone[i]
    return np.maximum(found, 0.0)


@lru_cache(maxsize=64)
def _moments(
    name: str, devices: int, micro_batches: int, chunks: int, sums_from: int
) -> tuple[Ints, Ints]:
    """Return `PartMemory.moments`, without those that hold less than others, and `part_of`.

    Parameters
    ----------
    sums_from
        Backward passes that a device has done when sums of gradients are there.
    """
    schedule = SCHEDULES[name]
    if not schedule.flushes:  # what is in flight comes from steps before
        micro_batches = max(micro_batches, 2 * devices)
    arrays = schedule.arrays(devices, micro_batches, chunks)
    found = []
    for k in range(devices):
        mine = slice(arrays.stage_ptr[k], arrays.stage_ptr[k + 1])
        phase, chunk = arrays.phase[mine], arrays.chunk[mine]
        done = np.zeros((3, len(phase) + 1, chunks), np.int64)
        for which in range(3):
            slots = np.flatnonzero(phase == which)
            done[which, slots + 1, chunk[slots]] = 1
        before = np.cumsum(done, axis=1)[:, :-1]
        last = 2 if schedule.splits_backward else 1
        older = schedule.weight_versions(k, devices, micro_batches, chunks) - 1
        rows = np.zeros((len(phase) + 1, BETWEEN + 2 * chunks), np.int64)
        rows[:, DEVICE], rows[:, VERSIONS] = k, older
        rows[:-1, BACK] = np.where(phase == 1, chunk, -1)
        rows[:-1, SUMS] = before[last].sum(axis=1) >= sums_from
        rows[:-1, BETWEEN : BETWEEN + chunks] = before[0] - before[1]
        rows[:-1, BETWEEN + chunks :] = (before[1] - before[2]) * schedule.splits_backward
        rows[-1, BACK], rows[-1, SUMS] = -1, 1
        found += _not_less(np.unique(rows, axis=0))
    part_of = [[schedule.part(c, k, devices) for c in range(chunks)] for k in range(devices)]
    return np.array(found, np.int64), np.array(part_of, np.int64)


def _not_less(rows: Ints) -> list[Ints]:
    """Return the moments of a device that no other one holds more than, or as much."""
    columns = [SUMS, *range(BETWEEN, rows.shape[1])]
    kept: list[Ints] = []
    order = np.argsort(-rows[:, columns].sum(axis=1), kind="stable")
    for row in rows[order]:
        if not any(
            bool((other[columns] >= row[columns]).all()) and row[BACK] in {-1, other[BACK]}
            for other in kept
        ):
            kept.append(row)
    return kept
