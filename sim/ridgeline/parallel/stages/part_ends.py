"""The compiled tables of what every part of a chain would have of a step's ends (`overheads`).

For each pair of places a part begins and ends at. Gradients are summed in buckets in the order in
which the backward pass makes them, and weights gathered in that in which they are read; a bucket is
closed when it has reached its least size, or where the part ends. What replicas send goes one after
the other, experts' first.
"""

from __future__ import annotations

import numpy as np

from ridgeline._jit import kernel

BEGIN_S, END_S, SUMMED_S, TAIL_S, LEAD_S, GATHERED_S, LEAD_BACK_S = range(7)
"""Tables: seconds of copies of weights before all else, and of updates after it; of sums of
gradients, and by how much they end after the backward pass; of the first bucket that is gathered,
and of all; of the first one of the backward pass."""
N_TABLES = 7


@kernel
def part_ends(  # type: ignore[no-untyped-def]
    local_s, sent, computed, holds, tied_s, tied_sent, tied_computed, late_s, sizes, sum_s,
    gather_s, bucket, beside,
):  # fmt: skip
    """Return [7, N + 1, N + 1] seconds by table, first unit of a part, and the one behind it.

    Parameters
    ----------
    local_s
        [2, N] seconds of every unit before all else, and after all.
    sent, computed
        [2, N] bytes of gradients, and of weights that are gathered: what all replicas hold, and
        experts.
    holds
        [K, N] units that share each of K weights.
    tied_s, tied_sent, tied_computed
        [2, K] the same of these.
    late_s
        [N] seconds in which gradients of weights are made, with what is between.
    sizes, sum_s, gather_s
        [S], [2, S] as `Replicas`.
    bucket
        Least bytes of a bucket.
    beside
        Whether ops run beside sums.
    """
    n = local_s.shape[1]
    found = np.zeros((N_TABLES, n + 1, n + 1))
    from_the_end(
        local_s, sent, computed, holds, tied_s, tied_sent, tied_computed, late_s, sizes, sum_s,
        gather_s, bucket, beside, found,
    )  # fmt: skip
    if computed.sum() + tied_computed.sum() > 0.0:
        gathered(computed, holds, tied_computed, sizes, gather_s, bucket, found)
    return found


@kernel
def from_the_end(  # type: ignore[no-untyped-def]
    local_s, sent, computed, holds, tied_s, tied_sent, tied_computed, late_s, sizes, sum_s,
    gather_s, bucket, beside, found,
):  # fmt: skip
    """Write the tables of what goes from the end of a part to its beginning."""
    n, tied = local_s.shape[1], len(holds)
    moves = sent.sum() + tied_sent.sum() > 0.0
    gathers = computed.sum() + tied_computed.sum() > 0.0
    seen = np.zeros(tied, np.bool_)
    whole, summed, until = np.zeros(2), np.zeros(2), np.zeros(2)
    open_, lead = np.zeros((2, 2)), np.zeros(2)
    for j in range(1, n + 1):  # backward from the end of a part
        seen[:] = False
        whole[:], summed[:], until[:], open_[:], lead[:] = 0.0, 0.0, 0.0, 0.0, 0.0
        clock = 0.0
        for i in range(j - 1, -1, -1):
            clock += late_s[i]
            whole += local_s[:, i]
            open_[0] += sent[:, i]
            open_[1] += computed[:, i]
            for k in range(tied):
                if holds[k, i] and not seen[k]:
                    seen[k] = True
                    whole += tied_s[:, k]
                    open_[0] += tied_sent[:, k]
                    open_[1] += tied_computed[:, k]
            found[BEGIN_S, i, j], found[END_S, i, j] = whole[0], whole[1]
            if moves:
                ends, more = until.copy(), summed.copy()
                for c in range(2):
                    if open_[0, c] > 0.0:
                        takes = seconds_of(open_[0, c], sizes, sum_s[c])
                        ends[c] = max(ends[c], clock) + takes
                        more[c] += takes
                        if open_[0, c] >= bucket:
                            until[c], summed[c], open_[0, c] = ends[c], more[c], 0.0
                total = more[0] + more[1]
                found[SUMMED_S, i, j] = total
                last = max(ends[0], ends[1] + more[0]) if more[1] > 0.0 else ends[0]
                found[TAIL_S, i, j] = max(last - clock, 0.0) if beside else total
            if gathers:
                found[LEAD_BACK_S, i, j] = first_s(open_[1], lead, bucket, sizes, gather_s)


@kernel
def gathered(computed, holds, tied_computed, sizes, gather_s, bucket, found):  # type: ignore[no-untyped-def]
    """Write the tables of weights that are gathered from the beginning of a part to its end."""
    n, tied = computed.shape[1], len(holds)
    seen = np.zeros(tied, np.bool_)
    summed, open_, lead = np.zeros(2), np.zeros((2, 2)), np.zeros(2)
    for i in range(n):  # forward from the beginning of a part
        seen[:] = False
        summed[:], open_[:], lead[:] = 0.0, 0.0, 0.0
        for j in range(i + 1, n + 1):
            for_all = computed[:, j - 1].copy()
            for k in range(tied):
                if holds[k, j - 1] and not seen[k]:
                    seen[k] = True
                    for_all += tied_computed[:, k]
            open_[0] += for_all
            open_[1] += for_all
            total = summed.sum()
            for c in range(2):
                if open_[0, c] > 0.0:
                    takes = seconds_of(open_[0, c], sizes, gather_s[c])
                    total += takes
                    if open_[0, c] >= bucket:
                        summed[c] += takes
                        open_[0, c] = 0.0
            found[GATHERED_S, i, j] = total
            found[LEAD_S, i, j] = first_s(open_[1], lead, bucket, sizes, gather_s)


@kernel
def first_s(size, lead, bucket, sizes, gather_s):  # type: ignore[no-untyped-def]
    """Return the seconds of the first bucket of both kinds of weights, which grows until it closes.

    Parameters
    ----------
    size
        [2] bytes so far.
    lead
        [2] seconds of a bucket that is closed, written here; 0: it is open yet.
    """
    total = 0.0
    for c in range(2):
        if lead[c] > 0.0:
            total += lead[c]
        elif size[c] > 0.0:
            takes = seconds_of(size[c], sizes, gather_s[c])
            total += takes
            if size[c] >= bucket:
                lead[c] = takes
    return total


@kernel
def seconds_of(size, sizes, seconds):  # type: ignore[no-untyped-def]
    """Return the seconds of a size, in a line between those of the sizes around it."""
    k = 1
    while k < len(sizes) - 1 and size > sizes[k]:
        k += 1
    slope = (seconds[k] - seconds[k - 1]) / (sizes[k] - sizes[k - 1])
    return seconds[k - 1] + (size - sizes[k - 1]) * slope
