"""The least time of a step of plans that are cut alike: blocks as matrices, in a schedule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ridgeline.parallel.schedule import SCHEDULES, SlotArrays
from ridgeline.study.planner.execution_order import FORWARD, LATE, MADE, READ, SHORT, WHOLE
from ridgeline.study.planner.pipeline_recurrence import played_s
from ridgeline.study.planner.plan_class import Floats, Ints, PlanClass
from ridgeline.study.planner.stage_max_plus import (
    AHEAD,
    EARLY,
    NEVER,
    NOTHING,
    bucketed,
    parts_of,
    rows,
    waits_of,
)


class RankShares(NamedTuple):
    """Which ranks share what, and how it moves between them.

    Attributes
    ----------
    data
        Data-parallel ranks.
    expert
        How many of them share experts.
    sharding
        As in `Plan`.
    bucket
        Bytes that close a bucket.
    again
        Whether sharded weights are gathered again for the backward pass.
    beside
        Whether gradients are summed beside it; else behind it.
    keeps
        Whether their sums over micro-batches take room beside activations.
    """

    data: int
    expert: int
    sharding: int
    bucket: float = 0.0
    again: bool = True
    beside: bool = True
    keeps: bool = True


class Sends(Protocol):
    """What messages of a pipeline take at least."""

    def message(self, source: int, target: int) -> tuple[float, float]:
        """Return latency and seconds a byte of a message from one stage to another."""

    def in_parts(self, *, back: bool) -> bool:
        """Whether the ranks of an op send in parts what they have alike."""

    def gather_s(self, size_bytes: float) -> float:
        """Return in which time the ranks of an op gather what they got in parts."""

    def contended_s(self, sent_bytes: Floats) -> float:
        """Return what the fullest link needs for [K, K] bytes from each rank of a stage to another.

        Where every rank is simulated.
        """


TimeOf = Callable[[str, str, float], float]
"""Least seconds of a collective, by its name, along which dimension it goes, and its bytes: between
all data-parallel ranks ("data"), or between those that have the same experts ("beyond")."""


class _Rows(NamedTuple):
    """Longest paths through a block of every part (`stage_max_plus.rows`); `made` by who waits."""

    end: Floats
    queue: Floats
    made: Floats


class _Moved(NamedTuple):
    """Buckets of what moves between replicas in one direction, see `stage_max_plus.bucketed`.

    `seconds`: [E] of the collective of the bucket that is there; 0: none is.
    """

    first: Ints
    after: Ints
    ends: Ints
    seconds: Floats


@dataclass
class Timed:
    """One group of plans, cut into the parts of a schedule.

    Attributes
    ----------
    name, stages, chunks
        Of the schedule.
    part
        [U] part of every unit.
    first, of, marks
        [4, P] by direction: the op of every part that waits for another one, that one, and its op
        that is waited for; -1: none.
    sent_s, gather_s
        [2, P] forward and backward: seconds of the message that each part waits for; of gathering
        what came in parts.
    sends
        What messages take.
    """

    group: PlanClass
    name: str
    stages: int
    chunks: int
    part: Ints
    first: Ints
    of: Ints
    marks: Ints
    sent_s: Floats
    gather_s: Floats
    sends: Sends
    _plain: dict[tuple[int, bool], _Rows] = field(default_factory=dict)
    _alone_s: dict[tuple[int, bool, bool], float] = field(default_factory=dict)

    @property
    def splits(self) -> bool:
        """Whether gradients of weights wait."""
        return splits(self.name, self.stages)

    def step_s(self, m: int, shares: RankShares, time_of: TimeOf | None) -> float:
        """Return the least seconds of a step of m micro-batches.

        Without `time_of`, nothing waits for replicas.
        """
        sharding, alone = shares.sharding, shares.data == 1
        adds, whole = sharding < 2 or alone, sharding == 0 or alone
        if time_of is None or alone:  # no more is asked of what ranks share
            if (m, adds, whole) not in self._alone_s:
                self._alone_s[m, adds, whole] = self._played_s(m, adds, whole, shares, None)
            return self._alone_s[m, adds, whole]
        return self._played_s(m, adds, whole, shares, time_of)

    def _played_s(
        self, m: int, adds: bool, whole: bool, shares: RankShares, time_of: TimeOf | None
    ) -> float:
        """Play the schedule."""
        slots = slots_of(self.name, self.stages, m, self.chunks)
        last = m > 1 and self.name != "gpipe"  # which goes back to the first micro-batch
        backward = SHORT if self.splits else WHOLE
        if time_of is None:
            on = [self._rows(FORWARD, later=False)] * 3
            back = [self._rows(backward, later=adds and k > 0) for k in range(3)]
            late = [self._rows(LATE, later=adds and k > 0) for k in range(3)]
        else:
            on, back, late = self._with_replicas(backward, adds, last, shares, time_of)
        phases = (on, back, late)
        end, queue, made = (
            np.array([[rows_[k] for rows_ in phase] for phase in phases]) for k in range(3)
        )
        directions = [FORWARD, backward]
        begin_s, end_s = self._once(whole=whole)
        ends, queues = np.empty(self.stages), np.empty(self.stages)
        found: float = played_s(
            slots.stage_ptr, slots.phase, slots.micro_batch, slots.chunk, m, begin_s, end_s,
            self.of[directions], self.sent_s, self.gather_s, end, queue, made, ends, queues,
        )  # fmt: skip
        return found

    @cached_property
    def contended_s(self) -> float:
        """What the fullest link needs for the messages of a micro-batch, all ranks played."""
        of_parts = self.group.crossing.between(self.part)
        n = (self.chunks, self.stages)
        return self.sends.contended_s(of_parts.reshape(*n, *n).sum(axis=(0, 2)))

    def _once(self, *, whole: bool) -> tuple[Floats, Floats]:
        """Return [K] what stages do before and after all blocks; none of it, where it is shared."""
        if not whole:
            return np.zeros(self.stages), np.zeros(self.stages)
        of_parts = np.zeros((self.stages * self.chunks, 2))
        np.add.at(of_parts, self.part, self.group.once_s)
        of_stages = of_parts.reshape(self.chunks, self.stages, 2).sum(axis=0)
        return of_stages[:, 0].copy(), of_stages[:, 1].copy()

    def _with_replicas(
        self, backward: int, adds: bool, last: bool, shares: RankShares, time_of: TimeOf
    ) -> list[list[_Rows]]:
        """Return the rows of every phase, as `pipeline_recurrence.played_s` takes them."""
        beyond = 1 < shares.expert < shares.data
        wanted = np.array([True, beyond or shares.expert == 1])

        def moved(direction: int, kind: int, op: str) -> _Moved:
            bucket = shares.bucket
            return self._moved(direction, kind, wanted, bucket, lambda *of: time_of(op, *of))

        sharding, ends = shares.sharding, LATE if self.splits else backward
        sums = moved(ends, MADE, "reduce-scatter" if sharding else "all-reduce")
        if not shares.beside and sharding < 2:
            sums = self._behind(ends, sums)
        on = self._rows(FORWARD)
        first = later = on
        if sharding:
            read = moved(FORWARD, READ, "all-gather")
            first = self._rows(FORWARD, gathers=AHEAD if sharding == 3 else EARLY, read=read)
            later = first if sharding == 3 else on
        forward = [first, later, later]
        if sharding < 2:
            back = [self._rows(backward, later=k > 0) for k in range(3)]
            late = [self._rows(LATE, later=k > 0) for k in range(3)]
            (late if self.splits else back)[2] = self._rows(ends, later=last, sums=sums)
            return [forward, back, late]
        gathers = sharding == 3 and shares.again
        again = moved(backward, READ, "all-gather") if gathers else None
        none = None if self.splits else sums
        each = self._rows(backward, gathers=AHEAD if again else NOTHING, read=again, sums=none)
        return [forward, [each] * 3, [self._rows(LATE, sums=sums if self.splits else None)] * 3]

    def _moved(
        self, direction: int, kind: int, wanted: npt.NDArray[np.bool_], least: float,
        time_of: Callable[[str, float], float],
    ) -> _Moved:  # fmt: skip
        """Put weights that are read, or gradients that are made, into buckets."""
        p = self.group.played[direction]
        (after, ends), total = np.empty((2, len(p.kind)), np.int64), np.empty(len(p.kind))
        first = bucketed(
            kind, wanted, p.kind, p.unit, p.value, p.shared, p.tied, self.part, least,
            after, total, ends,
        )  # fmt: skip
        some, seconds = np.flatnonzero(total), np.zeros(len(total))
        beyond = p.shared[some] * int(wanted[1])
        for e, own, size in zip(some.tolist(), beyond.tolist(), total[some].tolist(), strict=True):
            seconds[e] = time_of("beyond" if own else "data", size)
        return _Moved(first, after, ends, seconds)

    def _behind(self, direction: int, sums: _Moved) -> _Moved:
        """Sum the gradients of a part when the last of them is made."""
        p, seconds = self.group.played[direction], np.zeros(len(sums.seconds))
        made = np.flatnonzero(p.kind == MADE)
        of = self.part[p.unit[made]]
        last = np.full(self.stages * self.chunks, -1)
        np.maximum.at(last, of, made)
        np.add.at(seconds, last[of], sums.seconds[made])
        return sums._replace(seconds=seconds)

    def _rows(
        self, direction: int, *, later: bool = False, gathers: int = NOTHING,
        read: _Moved | None = None, sums: _Moved | None = None,
    ) -> _Rows:  # fmt: skip
        """Return the longest paths through a block of every part."""
        plain = read is None and sums is None
        if plain and (direction, later) in self._plain:
            return self._plain[direction, later]
        p, n_parts = self.group.played[direction], self.stages * self.chunks
        nothing = np.zeros(len(p.kind))
        if read is None:
            never = np.full(len(p.kind), -1)
            read = _Moved(np.full((n_parts, 2), -1), never, never, nothing)
        found = _Rows(*(np.full((n_parts, 3), NEVER) for _ in range(3)))
        rows(
            p.kind, p.unit, p.value, p.added_s, p.shared, self.part, later, self.first[direction],
            self.marks[direction], gathers, *read, nothing if sums is None else sums.seconds,
            *found,
        )  # fmt: skip
        if plain:
            self._plain[direction, later] = found
        return found


def splits(name: str, stages: int) -> bool:
    """Whether gradients of weights wait in a schedule of so many stages."""
    return SCHEDULES[name].splits_backward and stages > 1


@lru_cache(maxsize=64)
def slots_of(name: str, stages: int, m: int, chunks: int) -> SlotArrays:
    """Return the slots of a schedule."""
    name = name if stages > 1 or name == "gpipe" else "1f1b"
    return SCHEDULES[name].arrays(stages, m, chunks)


def timed(group: PlanClass, name: str, stages: int, chunks: int, sends: Sends, cut: Ints) -> Timed:
    """Cut a group of plans."""
    n = stages * chunks
    part = np.empty(len(group.work), np.int64)
    parts_of(cut, part)
    first, of, marks = np.full((3, 4, n), -1, np.int64)
    sent_s, gather_s = np.zeros((2, 2, n))
    for direction in (FORWARD, SHORT if splits(name, stages) else WHOLE):
        p, size = group.played[direction], np.zeros((n, 2))
        waits_of(
            part, p.reader, p.maker, p.source, p.sent, first[direction], marks[direction],
            of[direction], size,
        )  # fmt: skip
        back = int(direction != FORWARD)
        for k in np.flatnonzero(of[direction] >= 0).tolist():
            source, target = int(of[direction, k]) % stages, k % stages
            alike, own = size[k]
            whole = not sends.in_parts(back=bool(back))
            if alike and not whole:
                gather_s[back, k] = sends.gather_s(alike)
            if source != target:
                late_s, byte_s = sends.message(source, target)
                sent_s[back, k] = late_s + byte_s * (own + alike / (1 if whole else group.tensor))
    return Timed(group, name, stages, chunks, part, first, of, marks, sent_s, gather_s, sends)
