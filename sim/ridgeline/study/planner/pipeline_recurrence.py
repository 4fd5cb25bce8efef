"""Pipeline recurrence: earliest end of a schedule, with blocks as matrices.

Every stage plays its blocks in the order of the schedule. A block begins when the one before has
ended and waits for the message of another part, which is sent when its op there has ended and when
the message before has arrived. Both are longest paths (`stage_max_plus`), so no step of the
engine, which only adds to them, ends earlier.
"""

from __future__ import annotations

import numpy as np

from ridgeline._jit import kernel
from ridgeline.study.planner.stage_max_plus import BEGIN, MESSAGE, NEVER, QUEUE


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
