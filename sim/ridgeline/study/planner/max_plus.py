"""Max-plus matrices: longest paths through each stage, and through the schedule of all.

A part of a stage plays a block of ops for each micro-batch. It begins when the block before it has
ended and, from some op on, needs a message of another part. Where replicas share weights, it also
waits for what they gather, and gathers queue with gradients that are scattered. All these are sums
and maxima, so that a block is a matrix: [end, queue, made] by [begin, message, queue], the longest
path from each of these to each of those. The ops of all parts are gone through at once, in order.

`played_s` is the recurrence over the schedule: every stage plays its blocks in turn. A block begins
when the one before has ended and waits for the message of another part, which is sent when its op
there has ended and when the message before has arrived. All are longest paths, so no step of the
engine, which only adds to them, ends earlier.
"""

from __future__ import annotations

import numpy as np

from ridgeline._jit import kernel
from ridgeline.study.planner.dependencies import MADE, READ, RUN

NEVER = -np.inf
BEGIN, MESSAGE, QUEUE = range(3)
"""Columns of a row."""
NOTHING, EARLY, AHEAD = range(3)
"""What is gathered: nothing; all at the beginning of the step; one bucket ahead of its use."""


@kernel
def parts_of(cut, part):  # type: ignore[no-untyped-def]
    """Write into part [U] which part each unit is in, of parts that begin at cut [P + 1]."""
    for p in range(len(cut) - 1):
        part[cut[p] : cut[p + 1]] = p


@kernel
def waits_of(part, reader, maker, source, sent, first, waits, of, size):  # type: ignore[no-untyped-def]
    """Find what each part waits for: its first op that reads what another part makes.

    Parameters
    ----------
    part, reader, maker, source, sent
        [U] part of every unit; as `ScheduleTrace`.
    first, waits, of
        [P] written: the op (event), the op that it waits for, the part of that one; -1: none.
    size
        [P, 2] written: bytes, as `ScheduleTrace.sent`.
    """
    first[:], waits[:], of[:], size[:] = -1, -1, -1, 0.0
    for u in range(len(part)):
        p = part[u]
        if source[u] < 0 or part[source[u]] == p:
            continue
        if first[p] < 0 or reader[u] < first[p]:
            first[p], waits[p], of[p] = reader[u], maker[u], part[source[u]]
            size[p] = sent[u]


@kernel
def bucketed(  # type: ignore[no-untyped-def]
    of, wanted, kind, unit, value, shared, tied, part, least, after, total, ends
):
    """Put what every part reads, or makes, of weights into buckets of a least size.

    Parameters
    ----------
    of
        READ or MADE: a bucket is at its first read, or at the last gradient in it.
    wanted
        [2] which of all weights, and those of experts that ranks share, are moved.
    kind, unit, value, shared, tied, part
        As `ScheduleTrace`; [U] part of every unit.
    least
        Bytes that close a bucket.
    after
        [E] written: the next bucket of the same part and kind of weights; -1: there is none.
    total
        [E] written: bytes of the bucket that is there, 0: none is.
    ends
        [E] written: the bucket (event) of which a read is the last one; -1: of none.

    Returns
    -------
    int array
        [P, 2] first bucket of every part, of what all share and of experts; -1: none.
    """
    n_parts = part.max() + 1
    after[:], total[:], ends[:] = -1, 0.0, -1
    first, last, newest = np.full((3, n_parts, 2), -1)
    open_ = np.zeros((n_parts, 2))
    at = np.full((n_parts, 2), -1)
    counts = np.full((n_parts, tied.max() + 2), -1)  # of what several units have: which counts
    for e in range(len(kind)):
        if kind[e] == of and tied[e] >= 0:
            p = part[unit[e]]
            if of == MADE or counts[p, tied[e]] < 0:
                counts[p, tied[e]] = e
    for e in range(len(kind)):
        p, x = part[unit[e]], shared[e]
        if kind[e] == RUN and of == READ:  # an op reads all of its weights before a bucket closes
            for y in range(2):
                if open_[p, y] >= least:
                    open_[p, y], ends[newest[p, y]] = 0.0, at[p, y]
        if kind[e] != of or not wanted[x] or (tied[e] >= 0 and counts[p, tied[e]] != e):
            continue
        if of == MADE:
            at[p, x] = e
        elif open_[p, x] == 0.0:
            if last[p, x] >= 0:
                after[last[p, x]] = e
            else:
                first[p, x] = e
            at[p, x] = last[p, x] = e
        open_[p, x] += value[e]
        if of == READ:
            total[at[p, x]], newest[p, x] = open_[p, x], e
        elif open_[p, x] >= least:
            total[e], open_[p, x] = open_[p, x], 0.0
    for p in range(n_parts):  # what is left over
        for x in range(2):
            if open_[p, x] > 0.0 and of == MADE:
                total[at[p, x]] = open_[p, x]
            elif open_[p, x] > 0.0:
                ends[newest[p, x]] = at[p, x]
    return first


@kernel
def rows(  # type: ignore[no-untyped-def]
    kind, unit, value, added_s, shared, part, later, first, marks, gathers, blocks, begun, after,
    ends, read_s, sum_s, end, queue, made,
):  # fmt: skip
    """Write the longest paths through a block of every part.

    Parameters
    ----------
    kind, unit, value, added_s, shared, part
        As `ScheduleTrace`; [U] part of every unit.
    later
        Whether gradients are added to those of earlier micro-batches.
    first
        [P] event that waits for a message; -1: none.
    marks
        [P, Q] events after which something is made; -1: none.
    gathers
        NOTHING, EARLY or AHEAD.
    blocks
        [2] whether no op runs beside a gather (but for early ones), and beside a sum.
    begun, after, ends
        What is gathered, as `bucketed` returns and writes it: early, in the order of `ends`.
    read_s, sum_s
        [E] seconds in which the bucket of weights, or of gradients, that is there is gathered, or
        summed; 0: none is.
    end, queue
        [P, 3] written: longest paths to the end of the block and of the queue of collectives.
    made
        [Q, 3] written: to the ends of the marked ops.
    """
    n_parts = len(end)
    t, n, waits = np.empty(n_parts), np.empty(n_parts), np.empty(n_parts)
    ended, came = np.empty(len(kind)), np.empty(len(kind))
    for column in range(3):
        t[:] = 0.0 if column == BEGIN else NEVER
        n[:] = 0.0 if column == QUEUE else NEVER
        waits[:] = NEVER
        message = 0.0 if column == MESSAGE else NEVER
        if gathers == EARLY:
            for e in range(len(kind)):
                if ends[e] >= 0:
                    p = part[unit[e]]
                    n[p] += read_s[ends[e]]
                    came[ends[e]] = n[p]
        for e in range(len(kind)):
            p = part[unit[e]]
            if kind[e] == READ:
                if read_s[e] == 0.0 or gathers == NOTHING:
                    continue
                if gathers == AHEAD:
                    if begun[p, shared[e]] == e:
                        n[p] = max(n[p], t[p]) + read_s[e]
                        came[e] = n[p]
                    if after[e] >= 0:
                        n[p] = max(n[p], t[p]) + read_s[after[e]]
                        came[after[e]] = n[p]
                    if blocks[0]:
                        t[p] = max(t[p], n[p])
                waits[p] = max(waits[p], came[e])
            elif kind[e] == RUN:
                if first[p] == e:
                    waits[p] = max(waits[p], message)
                t[p] = max(t[p], waits[p]) + value[e]
                waits[p] = NEVER
                more_s = added_s[e] if later else 0.0  # by a kernel behind it, or in its place
                ended[e] = t[p] + min(more_s, 0.0)
                t[p] += more_s
            elif sum_s[e] > 0.0:
                n[p] = max(n[p], t[p]) + sum_s[e]
                if blocks[1]:
                    t[p] = n[p]
        end[:, column], queue[:, column] = t, n
        for q in range(len(marks)):
            made[q, column] = ended[marks[q]] if marks[q] >= 0 else NEVER


@kernel
def through(row, begin, message, queue):  # type: ignore[no-untyped-def]
    """Return the longest path to one place, of what each comes from."""
    return max(row[BEGIN] + begin, row[MESSAGE] + message, row[QUEUE] + queue)


@kernel
def played_s(  # type: ignore[no-untyped-def]
    stage_ptr, phase, micro_batch, chunk, n_micro_batches, begin_s, end_s, of, sent_s, gather_s,
    end, queue, made, ends, queues,
):  # fmt: skip
    """Return when the last stage has ended; 0 if the schedule can not be played.

    Parameters
    ----------
    stage_ptr, phase, micro_batch, chunk
        As `SlotArrays`.
    begin_s, end_s
        [K] what a stage does before its first block, and after its last one.
    of
        [2, P] of which part each one waits, forward and backward; -1: of none.
    sent_s, gather_s
        [2, P] seconds of the message; what is done with it when it has come, before it is read.
    end, queue, made
        [3, 3, P, 3] rows (`stage_max_plus.rows`) of every phase: of the first micro-batch, of all
        others, of the block that is played last; those of `cost_cache` by the part that waits.
    ends, queues
        [K] written: when a stage has ended its blocks, and its queue.
    """
    n_stages = len(stage_ptr) - 1
    n_parts, m = of.shape[1], n_micro_batches
    begin = np.full((2, n_parts, m), np.nan)  # of every block that has been played
    came = np.full((2, n_parts, m), NEVER)
    queued = np.full((2, n_parts, m), NEVER)
    link = np.full((2, n_parts), NEVER)  # when the last message has arrived
    left = np.full((3, n_parts), m)
    at = stage_ptr[:-1].copy()
    ends[:] = begin_s
    queues[:] = begin_s
    moved = True
    while moved:
        moved = False
        for s in range(n_stages):
            while at[s] < stage_ptr[s + 1]:
                k = at[s]
                d, b = phase[k], micro_batch[k]
                p = chunk[k] * n_stages + s
                message = NEVER
                if d < 2 and of[d, p] >= 0:
                    q = of[d, p]
                    if np.isnan(begin[d, q, b]):
                        break
                    row = made[d, 0 if b == 0 else 1, p]
                    is_made = through(row, begin[d, q, b], came[d, q, b], queued[d, q, b])
                    link[d, p] = max(link[d, p], is_made) + sent_s[d, p]
                    message = link[d, p] + gather_s[d, p]
                kind = 0 if b == 0 else 1
                n = queues[s]
                if d < 2:
                    begin[d, p, b], came[d, p, b], queued[d, p, b] = ends[s], message, n
                left[d, p] -= 1
                t = ends[s]
                ends[s] = through(end[d, kind, p], t, message, n)
                which = 2 if left[d, p] == 0 else kind
                queues[s] = max(n, through(queue[d, which, p], t, message, n))
                at[s] += 1
                moved = True
    last = 0.0
    for s in range(n_stages):
        if at[s] < stage_ptr[s + 1]:
            return 0.0
        last = max(last, max(ends[s], queues[s]) + end_s[s])
    return last
