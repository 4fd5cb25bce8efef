"""Partition by dynamic programming: contiguous stages of little unequal time.

Dynamic programming over all cuts (Narayanan et al., PipeDream, SOSP 2019, section 3.1): the slowest
stage, or the slowest link between two, bounds the rate of a pipeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import comb
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ridgeline.errors import RidgelineError
from ridgeline.parallel.partition.overheads import ALONE, Overheads, Replicas, of_parts
from ridgeline.parallel.partition.part_memory import (
    DEVICE,
    DeviceRoom,
    PartMemory,
    part_memory,
    unlimited,
)
from ridgeline.parallel.schedule import SCHEDULES

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_EQUAL = 1e-12  # relative: sums of the same layers in another order


@dataclass(frozen=True, slots=True)
class StageLayers:
    """Layers first:stop on so many devices, which share the micro-batches."""

    first: int
    stop: int
    replicas: int = 1


def balance(time_s: Sequence[float], stages: int) -> tuple[StageLayers, ...]:
    """Cut a chain of N layers into contiguous stages so that the slowest is as fast as can be.

    Of all such partitions, one with the least sum of squares of the stage times is returned, so
    that the others are even too.

    Parameters
    ----------
    time_s
        [N] forward and backward time of every layer for one micro-batch.
    stages
        At most N; none is empty.

    Raises
    ------
    RidgelineError
        If there are fewer layers than stages.
    """
    from ridgeline.parallel.partition.balance_dp import even_cuts

    n = len(time_s)
    if not 1 <= stages <= n:
        raise RidgelineError(f"{n} layers cannot be cut into {stages} stages")
    until = np.concatenate(([0.0], np.cumsum(np.asarray(time_s, np.float64))))
    return tuple(StageLayers(i, j) for i, j in pairwise(even_cuts(until, stages, _EQUAL).tolist()))


class Pace(NamedTuple):
    """What a step is besides the work of its stages, as far as cuts depend on it.

    Attributes
    ----------
    schedule
        By name.
    micro_batches
        Of a step.
    late_s, byte_s
        [P - 1] seconds of a message behind each part: ``late_s + byte_s * bytes``.
    chunks
        Parts of the chain on each stage of the pipeline.
    returns
        Whether there is a backward pass.
    replicas
        Ranks that hold the same weights; None: there are none.
    room
        Memory of the devices; None: for everything.
    """

    schedule: str
    micro_batches: int
    late_s: tuple[float, ...]
    byte_s: tuple[float, ...]
    chunks: int = 1
    returns: bool = True
    replicas: Replicas | None = None
    room: DeviceRoom | None = None

    @property
    def added_share(self) -> float:
        """Share of the micro-batches whose gradients are added to those of earlier ones.

        Where ranks share gradients, these are summed as they arrive.
        """
        of = self.replicas
        shared = of is not None and of.zero_stage >= 2 and max(of.ranks) > 1
        return 0.0 if shared else 1.0 - 1.0 / self.micro_batches

    @property
    def gathers(self) -> tuple[bool, bool]:
        """Whether weights are gathered for each forward, and each backward pass."""
        of = self.replicas
        each = of is not None and of.zero_stage == 3 and max(of.ranks) > 1
        return each, each and of is not None and of.again

    def send_s(self, send_bytes: npt.ArrayLike) -> Floats:
        """Return [2, P, N + 1] what the cut before each part costs before each layer, each way."""
        sizes = np.concatenate(([0.0], np.asarray(send_bytes, np.float64)))
        late_s, byte_s = np.array(self.late_s), np.array(self.byte_s)
        found: Floats = np.zeros((2, len(late_s) + 1, len(sizes)))
        found[: 1 + self.returns, 1:] = late_s[:, None] + byte_s[:, None] * sizes
        return found


_MOST_PLAYED = 2_000_000
"""Slots of pipelines that are played to find a cut: some ten milliseconds."""


def balance_step(
    time_s: npt.ArrayLike,
    parts: int,
    send_bytes: Sequence[float],
    pace: Pace,
    besides: Overheads | None = None,
) -> tuple[StageLayers, ...]:
    """Cut a chain of N layers into parts so that the step is as short as can be (`simulated_cuts`).

    Of the cuts that fit into the devices' memory, if it is known and any does.

    Parameters
    ----------
    time_s
        [N, 3] time of every layer for one micro-batch: forward, backward, gradients of weights.
    parts
        At most N; none is empty.
    send_bytes
        [N] bytes that cross a cut behind each layer, in one direction; the last is not used.
    besides
        What the layers have besides this work; None: nothing.

    Raises
    ------
    RidgelineError
        If there are fewer layers than parts.
    """
    from ridgeline.parallel.partition.memory_share import fullest_share
    from ridgeline.parallel.partition.simulated_cuts import step_cuts

    work = np.asarray(time_s, np.float64)
    first = balance(work.sum(axis=1).tolist(), parts)
    if parts == 1:
        return first
    known = np.array([0, *(stage.stop for stage in first)], np.int64)
    played = _played(work, parts, send_bytes, pace, besides)
    runs = played.runs
    every = comb(len(work) - 1, parts - 1) * int(runs[:, 0].sum()) <= _MOST_PLAYED
    cuts = step_cuts(played, unlimited(len(work)), every, _MOST_PLAYED, known)
    memory = _memory(pace, besides)
    if memory is not None and fullest_share(memory, cuts) > 1.0:
        fitting = step_cuts(played, memory, every, _MOST_PLAYED, known)
        cuts = fitting if fullest_share(memory, fitting) <= 1.0 else cuts
    return tuple(StageLayers(i, j) for i, j in pairwise(cuts.tolist()))


def _memory(pace: Pace, besides: Overheads | None) -> PartMemory | None:
    """Return what the devices of cuts hold, if it is known, and what they have room for."""
    if pace.room is None or besides is None or besides.memory is None:
        return None
    order = pace.schedule, pace.micro_batches, pace.chunks
    of = pace.replicas or ALONE
    memory, holds = besides.memory, besides.holds
    return part_memory(memory, holds, of.zero_stage, of.ranks, pace.room, order)


def memory_shares(where: Sequence[int], pace: Pace, besides: Overheads | None) -> tuple[float, ...]:
    """Return what each device holds of a cut, over its capacity; empty where it is not known.

    Parameters
    ----------
    where
        [P + 1] the first layer of every part, and the number of layers.
    """
    from ridgeline.parallel.partition.memory_share import fullest_share

    memory, cuts = _memory(pace, besides), np.array(where, np.int64)
    if memory is None:
        return ()
    of_device = (memory.moments[:, DEVICE] == k for k in range(len(memory.capacity)))
    return tuple(
        float(fullest_share(memory._replace(moments=memory.moments[mine]), cuts))
        for mine in of_device
    )


def best_cut(
    time_s: npt.ArrayLike,
    parts: int,
    send_bytes: Sequence[float],
    pace: Pace,
    besides: Overheads | None = None,
) -> list[int]:
    """Return [P + 1] the first layer of every part of `balance_step`, and the number of layers."""
    stages = balance_step(time_s, parts, send_bytes, pace, besides)
    return [0, *(stage.stop for stage in stages)]


def step_share(
    time_s: npt.ArrayLike,
    cuts: tuple[Sequence[int], Sequence[int]],
    send_bytes: Sequence[float],
    pace: Pace,
    besides: Overheads | None = None,
) -> float:
    """Return the seconds of the pipeline of the first of two cuts over those of the second.

    Parameters
    ----------
    cuts
        Two of [P + 1] the first layer of every part, and the number of layers.
    """
    from ridgeline.parallel.partition.simulated_cuts import step_s

    parts = len(cuts[0]) - 1
    played = _played(np.asarray(time_s, np.float64), parts, send_bytes, pace, besides)
    found_s = [float(step_s(played, np.array(cut, np.int64))) for cut in cuts]
    return found_s[0] / found_s[1] if found_s[1] else 1.0


def crowded_share(
    time_s: npt.ArrayLike,
    where: Sequence[int],
    send_bytes: Sequence[float],
    pace: Pace,
    besides: Overheads | None = None,
) -> float:
    """Return by what share a pipeline is longer if all that it sends takes twice as long.

    Messages between parts, sums of gradients and gathers of weights: as they do on links that each
    shares with one other.

    Parameters
    ----------
    where
        [P + 1] the first layer of every part, and the number of layers.
    """
    from ridgeline.parallel.partition.part_ends import BEGIN_S, END_S
    from ridgeline.parallel.partition.simulated_cuts import step_s

    cuts = np.array(where, np.int64)
    played = _played(np.asarray(time_s, np.float64), len(where) - 1, send_bytes, pace, besides)
    once = 2.0 * played.once
    once[[BEGIN_S, END_S]] = played.once[[BEGIN_S, END_S]]
    found_s = float(step_s(played, cuts))
    crowded_s = float(step_s(played._replace(send=2.0 * played.send, once=once), cuts))
    return crowded_s / found_s - 1.0 if found_s else 0.0


class _Played(NamedTuple):
    """What pipelines of P parts of N layers are played by (`simulated_cuts`).

    Attributes
    ----------
    until
        [3, N + 1] seconds of all layers before each one, for a micro-batch: forward, backward, and
        the gradients of weights, where the schedule has them apart.
    issued
        [3, N + 1] the same of the host, which issues their ops when the device is free.
    send
        [2, P, N + 1] seconds of what crosses a cut before each layer where part p begins: forward,
        and back.
    once
        [8, N + 1, N + 1] as `part_ends`.
    how
        [4] when weights are gathered, whether gradients are summed in every micro-batch, whether
        ops wait for these sums, whether they wait for gathers.
    held
        [K, N + 1] of each of K weights that units share, how many of those before each place do.
    tie_s
        [K] seconds in which two devices add up its gradients.
    slots
        [S, 4] device, pass, micro-batch and part of every slot of one or two runs, device by
        device.
    runs
        [R, 2] slots and micro-batches of each run. A longer step goes on at the pace at which the
        second run is longer than the first.
    total
        Micro-batches of a step; negative: of one that never flushes, which takes the pace alone.
    """

    until: Floats
    issued: Floats
    send: Floats
    once: Floats
    how: Ints
    held: Ints
    tie_s: Floats
    slots: Ints
    runs: Ints
    total: int


def _played(
    work: Floats, parts: int, send_bytes: Sequence[float], pace: Pace, besides: Overheads | None
) -> _Played:
    """Return what pipelines are played by."""
    schedule = SCHEDULES[pace.schedule]
    if besides is not None:
        work = work.copy()
        work[:, 2] += besides.added_s * pace.added_share
        work[:, :2] += besides.copied_s * pace.gathers
    made_s = work[:, 2] if schedule.splits_backward else work[:, 1] + work[:, 2]
    parts_have = of_parts(besides, pace.replicas, made_s)
    until, issued = np.zeros((2, 3, len(work) + 1))
    for total_s, each in ((until, work), (issued, None if besides is None else besides.issued_s)):
        if each is not None:
            total_s[:, 1:] = np.cumsum(each, axis=0).T
            if not schedule.splits_backward:
                total_s[1:] = total_s[1] + total_s[2], np.zeros(len(work) + 1)
    slots, runs = _slots(pace.schedule, parts // pace.chunks, pace.micro_batches, pace.chunks)
    total = pace.micro_batches if schedule.flushes else -pace.micro_batches
    return _Played(until, issued, pace.send_s(send_bytes), *parts_have, slots, runs, total)


@lru_cache(maxsize=64)
def _slots(name: str, stages: int, micro_batches: int, chunks: int) -> tuple[Ints, Ints]:
    """Return the slots of one or two runs of a pipeline (`simulated_cuts`).

    Two where there are so many micro-batches, or the pipeline never ends, that their pace tells of
    the others.
    """
    schedule = SCHEDULES[name]
    few = micro_batches <= 4 * stages and schedule.flushes
    found, runs = [], []
    for count in (micro_batches,) if few else (2 * stages, 3 * stages):
        arrays = schedule.arrays(stages, count, chunks)
        stage = np.repeat(np.arange(stages), np.diff(arrays.stage_ptr))
        part_of = [[schedule.part(c, k, stages) for k in range(stages)] for c in range(chunks)]
        part = np.array(part_of, np.int64)[arrays.chunk, stage]
        columns = (stage, arrays.phase, arrays.micro_batch, part)
        found.append(np.stack(columns, axis=1).astype(np.int64))
        runs.append((len(stage), count))
    return np.concatenate(found), np.array(runs, np.int64)


def _between(each: Floats) -> Floats:
    """[N + 1, N + 1] Sum of the layers i:j at [i, j]."""
    total = np.concatenate(([0.0], np.cumsum(each)))
    return total[None, :] - total[:, None]


def _partition(costs: Sequence[Floats], combine: np.ufunc) -> tuple[float, list[int]]:
    """Return the least combined cost of a path through all layers, and its cuts.

    ``best[k][j] = min_i combine(best[k - 1][i], costs[k][i, j])``, in O(K N^2).
    """
    n = len(costs[0]) - 1
    best = np.full(n + 1, np.inf)
    best[0] = 0.0
    came = []
    for cost in costs:
        total = combine(best[:, None], cost)
        came.append(np.argmin(total, axis=0))
        best = np.min(total, axis=0)
    cuts = [n]
    for origin in reversed(came):
        cuts.append(int(origin[cuts[-1]]))
    return float(best[n]), cuts[::-1]


def balance_given(
    time_s: Sequence[float],
    replicas: Sequence[int],
    *,
    send_s: npt.ArrayLike,
    sync_s: npt.ArrayLike,
) -> tuple[StageLayers, ...]:
    """Cut a chain of N layers into K stages with so many replicas each.

    The recurrence of `balance_replicated` where the replicas are given: the slowest stage,
    ``max(work, sync) / r``, or link is as fast as can be, and then the others even.

    Parameters
    ----------
    time_s
        [N] forward and backward time of every layer for one micro-batch.
    replicas
        [K] of every stage.
    send_s
        [N, K - 1] time that a cut behind each layer costs a micro-batch on each link.
    sync_s
        [N, K] time in which the replicas of each stage make the gradients of a layer equal.

    Raises
    ------
    RidgelineError
        If there are fewer layers than stages.
    """
    n, stages = len(time_s), len(replicas)
    if not 1 <= stages <= n:
        raise RidgelineError(f"{n} layers cannot be cut into {stages} stages")
    work = _between(np.asarray(time_s, np.float64))
    sync = np.asarray(sync_s, np.float64).reshape(n, stages)
    send = np.zeros((n + 1, stages))  # behind the last stage nothing is sent
    send[1:, :-1] = np.asarray(send_s, np.float64).reshape(n, stages - 1)
    costs = []
    for stage, count in enumerate(replicas):
        cost = np.maximum(np.maximum(work, _between(sync[:, stage])) / count, send[:, stage])
        cost[np.tril_indices(n + 1)] = np.inf
        costs.append(cost)
    least, _ = _partition(costs, np.maximum)
    bound = least * (1 + _EQUAL)
    _, cuts = _partition([np.where(c <= bound, c**2, np.inf) for c in costs], np.add)
    return tuple(
        StageLayers(i, j, count) for (i, j), count in zip(pairwise(cuts), replicas, strict=True)
    )


def balance_replicated(
    time_s: Sequence[float],
    devices: int,
    *,
    send_s: Sequence[float],
    sync_s: npt.ArrayLike,
    overlap: bool = True,
) -> tuple[tuple[StageLayers, ...], float]:
    """Cut a chain of N layers into stages and give each some of the devices.

    The recurrence of PipeDream: the best pipeline of layers 0:j on m devices is the best one of
    layers 0:i on m - r devices, a link, and layers i:j on r devices, which takes
    ``max(work, sync) / r`` for a micro-batch, or the sum of both over r; O(N^2 M^2).

    Parameters
    ----------
    time_s
        [N] forward and backward time of every layer for one micro-batch.
    send_s
        [N] time to send what crosses a cut behind each layer, both ways together.
    sync_s
        [N, M] time in which r devices make the gradients of a layer equal, at [layer, r - 1].
    overlap
        Whether a stage works on micro-batches while gradients are made equal.

    Returns
    -------
    tuple of Stage, float
        Stages that use all devices, and seconds a micro-batch. Of equally fast pipelines, one
        with few stages.
    """
    n = len(time_s)
    if devices < 1 or n < 1:
        raise RidgelineError(f"{n} layers cannot be put on {devices} devices")
    work = _between(np.asarray(time_s, np.float64))
    sync = np.asarray(sync_s, np.float64).reshape(n, devices)
    both = np.maximum if overlap else np.add
    shared = [both(work, _between(sync[:, r])) / (r + 1) for r in range(devices)]
    send = np.asarray(send_s, np.float64)
    none = np.zeros(n + 1, np.int64)
    best = [_Best(part[0].copy(), none.copy(), none.copy()) for part in shared]
    for m in range(devices):
        for r in range(m):
            _improve(best[m], best[m - 1 - r].time_s, shared[r], send, r)
    stages: list[StageLayers] = []
    stop, m = n, devices - 1
    while stop:
        first, replicas = int(best[m].first[stop]), int(best[m].replicas[stop]) or m + 1
        stages.append(StageLayers(first, stop, replicas))
        stop, m = first, m - replicas
    return tuple(reversed(stages)), float(best[devices - 1].time_s[n])


@dataclass
class _Best:
    """Of layers 0:j, the time of the best pipeline, its last stage's first layer and replicas.

    0 replicas: one stage on all devices.
    """

    time_s: Floats
    first: npt.NDArray[np.int64]
    replicas: npt.NDArray[np.int64]


def _improve(best: _Best, before: Floats, last: Floats, send: Floats, r: int) -> None:
    """Try all pipelines whose last stage has r + 1 devices."""
    inner = np.maximum(before[1:], send)[:, None]  # at [i - 1]: layers 0:i, and the link behind
    total = np.maximum(inner, last[1:])
    j = np.arange(len(send) + 1)
    total[j[1:, None] >= j] = np.inf  # no empty stage
    first = np.argmin(total, axis=0)
    time = total[first, j]
    better = time < best.time_s * (1 - _EQUAL)
    best.time_s[better] = time[better]
    best.first[better] = first[better] + 1
    best.replicas[better] = r + 1
