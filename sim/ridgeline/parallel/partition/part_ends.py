"""The compiled tables of what every part of a chain would have besides its work (`overheads`).

For each pair of places a part begins and ends at. Gradients are summed in buckets in the order in
which the backward pass makes them, and weights gathered in that in which they are read; a bucket is
closed when it has reached its least size, or where the part ends. What replicas send goes one after
the other, experts' first.
"""

from __future__ import annotations

import numpy as np

from ridgeline._jit import kernel

BEGIN_S, END_S, SUMMED_S, TAIL_S, LEAD_S, GATHERED_S, LEAD_BACK_S, GATHERED_BACK_S = range(8)
"""Tables: seconds of copies of weights before all else, and of updates after it; of sums of
gradients, and by how much they end after the backward pass; of the first bucket of weights that is
gathered, and of all; of those for the backward pass."""
N_TABLES = 8
SUMS, GATHERS, AGAIN = range(3)
"""Rows of what replicas send."""


@kernel
def part_ends(  # type: ignore[no-untyped-def]
    local_s, sent, holds, tied_s, tied_sent, late_s, sizes, seconds, bucket, beside
):
    """Return [8, N + 1, N + 1] seconds by table, first unit of a part, and the one behind it.

    Parameters
    ----------
    local_s
        [2, N] seconds of every unit before all else, and after all.
    sent
        [3, 2, N] bytes that are summed, gathered, and gathered for the backward pass: of what all
        replicas hold, and of experts.
    holds
        [K, N] units that share each of K weights.
    tied_s, tied_sent
        [2, K] and [3, 2, K] the same of these.
    late_s
        [N] seconds in which gradients of weights are made, with what is between.
    sizes, seconds
        [S] bytes that [3, 2, S] seconds are known for.
    bucket
        Least bytes of a bucket.
    beside
        Whether ops run beside sums.
    """
    n = local_s.shape[1]
    found = np.zeros((N_TABLES, n + 1, n + 1))
    total, last, lead = np.zeros(2), np.zeros(2), np.zeros(2)
    for j in range(1, n + 1):
        seen = np.zeros(len(holds), np.bool_)
        state, back = np.zeros((2, 4)), np.zeros((2, 4))
        whole, clock = np.zeros(2), 0.0
        for i in range(j - 1, -1, -1):
            clock += late_s[i]
            whole += local_s[:, i]
            size, more = sent[SUMS, :, i].copy(), sent[AGAIN, :, i].copy()
            for k in range(len(holds)):
                if holds[k, i] and not seen[k]:
                    seen[k] = True
                    whole += tied_s[:, k]
                    size += tied_sent[SUMS, :, k]
                    more += tied_sent[AGAIN, :, k]
            found[BEGIN_S, i, j], found[END_S, i, j] = whole[0], whole[1]
            for c in range(2):
                total[c], last[c], lead[c] = bucketed(
                    state[c], size[c], clock, bucket, sizes, seconds[SUMS, c]
                )
            every = total[0] + total[1]
            found[SUMMED_S, i, j] = every
            ends = max(last[0], last[1] + total[0]) if total[1] > 0.0 else last[0]
            found[TAIL_S, i, j] = max(ends - clock, 0.0) if beside else every
            for c in range(2):
                total[c], last[c], lead[c] = bucketed(
                    back[c], more[c], 0.0, bucket, sizes, seconds[AGAIN, c]
                )
            found[LEAD_BACK_S, i, j] = lead[0] + lead[1]
            found[GATHERED_BACK_S, i, j] = total[0] + total[1]
    for i in range(n):
        seen, state = np.zeros(len(holds), np.bool_), np.zeros((2, 4))
        for j in range(i + 1, n + 1):
            size = sent[GATHERS, :, j - 1].copy()
            for k in range(len(holds)):
                if holds[k, j - 1] and not seen[k]:
                    seen[k] = True
                    size += tied_sent[GATHERS, :, k]
            for c in range(2):
                total[c], last[c], lead[c] = bucketed(
                    state[c], size[c], 0.0, bucket, sizes, seconds[GATHERS, c]
                )
            found[LEAD_S, i, j] = lead[0] + lead[1]
            found[GATHERED_S, i, j] = total[0] + total[1]
    return found


@kernel
def bucketed(state, size, clock, bucket, sizes, seconds):  # type: ignore[no-untyped-def]
    """Add bytes that are ready at a time to the open bucket; return what all buckets take so far.

    As if the part ended here, so that the bucket which is open is closed.

    Parameters
    ----------
    state
        [4] of closed buckets: seconds of all, when the last one ends, seconds of the first one; and
        bytes of the open one. Written.

    Returns
    -------
    tuple of float
        Seconds of all, when the last one ends, seconds of the first one.
    """
    state[3] += size
    if state[3] == 0.0:
        return state[0], state[1], state[2]
    takes = seconds_of(state[3], sizes, seconds)
    total, last = state[0] + takes, max(state[1], clock) + takes
    lead = state[2] if state[2] > 0.0 else takes
    if state[3] >= bucket:
        state[0], state[1], state[2], state[3] = total, last, lead, 0.0
    return total, last, lead


@kernel
def seconds_of(size, sizes, seconds):  # type: ignore[no-untyped-def]
    """Return the seconds of a size, in a line between those of the sizes around it."""
    k = 1
    while k < len(sizes) - 1 and size > sizes[k]:
        k += 1
    slope = (seconds[k] - seconds[k - 1]) / (sizes[k] - sizes[k - 1])
    return seconds[k - 1] + (size - sizes[k - 1]) * slope
