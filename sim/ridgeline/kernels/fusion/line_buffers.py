"""Rows of every tensor of a fused region at every step, and the most bytes that are held at once.

A step computes some more rows of the last op's output, and before that what these need of every
other op, one op after the other. What a step has made is

line-buffer
    kept until nothing needs it any more: every row of every tensor is computed once.
recompute
    thrown away in the same step: rows that two steps need are computed in both.

Tensors from outside are either held, each row loaded once and a step ahead, or streamed to the ops
that read them: rows that two steps need are then read in both.

The reuse and the recompute model of M. Alwani, H. Chen, M. Ferdman, P. Milder, "Fused-layer CNN
accelerators", MICRO 2016, with rows of full width as tiles. L. Mei et al., "DeFiNES", HPCA 2023,
arXiv:2212.05344, tell the two apart for each axis of a tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from ridgeline.kernels.fusion.regions import FusedRegion, Rows, RowWindow

Halo = Literal["line-buffer", "recompute"]


class RowSpans(NamedTuple):
    """By step: rows from one to before another."""

    first: Rows
    end: Rows

    @property
    def rows(self) -> Rows:
        """How many."""
        found: Rows = np.maximum(0, self.end - self.first)
        return found


class PendingRows(NamedTuple):
    """What an op that reads a tensor still needs of it.

    Attributes
    ----------
    first
        By step, and for the time after the last: first row that is read in it or later; all rows
        of the tensor: none is.
    """

    op: int
    first: Rows


@dataclass(frozen=True)
class RowSchedule:
    """What is done with one sample, step by step.

    Attributes
    ----------
    made
        By tensor: rows that are computed; of a tensor from outside, those no step before needed.
    pending
        By tensor: what each op that reads it still needs.
    """

    region: FusedRegion
    halo: Halo
    steps: int
    made: tuple[RowSpans, ...]
    pending: tuple[tuple[PendingRows, ...], ...]

    @property
    def read(self) -> tuple[tuple[RowSpans, ...], ...]:
        """By op and read: rows of the input that the op reads."""
        tensors, made = self.region.tensors, self.made
        return tuple(
            tuple(_behind(r.window, made[op.writes], tensors[r.tensor].rows) for r in op.reads)
            for op in self.region.ops
        )


def row_schedule(region: FusedRegion, tile_rows: int, halo: Halo) -> RowSchedule:
    """Cut a region into steps of so many rows of its last output.

    What leaves the region on the way is written as often as it is computed.
    """
    sizes = [tensor.rows for tensor in region.tensors]
    consumers = region.consumers
    first = np.arange(0, region.rows, tile_rows)
    tiles = RowSpans(first, np.minimum(first + tile_rows, region.rows))
    made: dict[int, RowSpans] = {}
    followers: dict[int, list[int]] = {}
    for op in region.ops:
        if op.follows >= 0:
            followers.setdefault(op.follows, []).append(op.writes)
    following = {t for each in followers.values() for t in each}
    # From the last op to the first: all that read a tensor are known before it is. Sums take the
    # rows of a tensor as it is made.
    for t in sorted(
        set(range(len(sizes))) - following,
        key=lambda t: (t != region.last, -region.tensors[t].producer, t not in followers),
    ):
        readers = [
            (window, made[region.ops[op].writes])
            for op, window in consumers[t]
            if region.ops[op].follows != t
        ]
        again = halo == "recompute" and region.tensors[t].producer >= 0
        made[t] = (
            tiles
            if t == region.last
            else (_recomputed(sizes[t], readers) if again else _once(sizes[t], readers))
        )
        made |= dict.fromkeys(followers.get(t, ()), made[t])
    return RowSchedule(
        region,
        halo,
        len(first),
        tuple(made[t] for t in range(len(sizes))),
        tuple(
            tuple(
                PendingRows(op, _pending(window, made[region.ops[op].writes], sizes[t]))
                for op, window in consumers[t]
            )
            for t in range(len(sizes))
        ),
    )


_Readers = Sequence[tuple[RowWindow, RowSpans]]


def _once(rows: int, readers: _Readers) -> RowSpans:
    end = np.maximum.reduce([window.end(of.end, rows) for window, of in readers])
    end[-1] = rows  # rows that no window reaches are there all the same
    end = np.maximum.accumulate(end)
    return RowSpans(np.concatenate(([0], end[:-1])), end)


def _recomputed(rows: int, readers: _Readers) -> RowSpans:
    found = [_behind(window, of, rows) for window, of in readers]
    end = np.maximum.reduce([span.end for span in found])
    first = np.minimum.reduce([np.where(span.rows > 0, span.first, rows) for span in found])
    return RowSpans(np.minimum(first, end), end)


def _behind(window: RowWindow, of: RowSpans, rows: int) -> RowSpans:
    some = of.rows > 0
    return RowSpans(
        np.where(some, window.first(of.first, rows), 0), np.where(some, window.end(of.end, rows), 0)
    )


def _pending(window: RowWindow, made: RowSpans, rows: int) -> Rows:
    own = np.where(made.rows > 0, window.first(made.first, rows), rows)
    later = np.concatenate((own, [rows]))
    return np.minimum.accumulate(later[::-1])[::-1]


def held_bytes(
    schedule: RowSchedule,
    held_inputs: bool,
    stages: Sequence[int] | None = None,
    *,
    ahead: bool = True,
) -> float:
    """Return the most bytes of one sample's rows that are held at once.

    What nothing in the region reads passes by: no rows of it are held.

    Parameters
    ----------
    held_inputs
        Whether tensors from outside are held, or streamed.
    stages
        By op: the stage of a pipeline that does it, each a step behind the one before. None: all
        ops of a step are done one after the other.
    ahead
        Whether held inputs of a step, and of the next sample, arrive during the step before.
    """
    held = [
        t
        for t, tensor in enumerate(schedule.region.tensors)
        if schedule.pending[t] and (tensor.producer >= 0 or held_inputs)
    ]
    size = [tensor.row_bytes for tensor in schedule.region.tensors]
    if stages is not None:
        beats = np.arange(schedule.steps + max(stages))
        rows = [_piped_rows(schedule, t, beats, stages, ahead) * size[t] for t in held]
        return float(np.sum(rows, axis=0).max()) if rows else 0.0
    most = 0.0
    for op in range(len(schedule.region.ops)):
        rows = [_rows(schedule, t, op, ahead) * size[t] for t in held]
        most = max(most, float(np.sum(rows, axis=0).max())) if rows else most
    return most


def _rows(schedule: RowSchedule, tensor: int, op: int, ahead: bool) -> Rows:
    """Rows of a tensor that are held while an op is done, by step."""
    producer, made = schedule.region.tensors[tensor].producer, schedule.made[tensor]
    readers = schedule.pending[tensor]
    steps = np.arange(schedule.steps)
    if producer < 0:
        first = np.minimum.reduce([need.first[:-1] for need in readers])
        arrived: Rows = np.maximum(0, _arrived(made, steps, ahead) - first)
        return arrived
    if schedule.halo == "recompute":
        return made.rows if producer <= op <= max(need.op for need in readers) else 0 * steps
    first = np.minimum.reduce(
        [need.first[:-1] if need.op >= op else need.first[1:] for need in readers]
    )
    rows: Rows = np.maximum(0, rows_until(made, steps if producer <= op else steps - 1) - first)
    return rows


def _piped_rows(
    schedule: RowSchedule, tensor: int, beats: Rows, stages: Sequence[int], ahead: bool
) -> Rows:
    """Rows of a tensor that are held while all stages work, each at a step of its own."""
    producer, made = schedule.region.tensors[tensor].producer, schedule.made[tensor]
    readers = schedule.pending[tensor]
    first = np.minimum.reduce(
        [need.first[np.clip(beats - stages[need.op], 0, schedule.steps)] for need in readers]
    )
    if producer < 0:
        start = min(stages[need.op] for need in readers)
        arrived: Rows = np.maximum(0, _arrived(made, beats - start, ahead) - first)
        return arrived
    rows: Rows = np.maximum(0, rows_until(made, beats - stages[producer]) - first)
    return rows


def rows_until(made: RowSpans, step: Rows) -> Rows:
    """Return the end of the rows that are made up to a step, this included; before 0: none."""
    rows: Rows = np.where(
        step >= 0, made.end[np.minimum(np.maximum(step, 0), len(made.end) - 1)], 0
    )
    return rows


def _arrived(made: RowSpans, step: Rows, ahead: bool) -> Rows:
    """Rows that have arrived for a step: ahead, those of the next one and the next sample, too."""
    if not ahead:
        return rows_until(made, step)
    begun = np.where(step >= len(made.end) - 1, made.end[0], 0)
    return rows_until(made, step + 1) + begun
