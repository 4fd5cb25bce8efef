"""The compiled search for cuts of a chain of layers whose pipeline, as it is played, ends first.

A cut is judged by playing its pipeline (`played_s`): every device works through the slots of its
schedule in order, and a message each way takes its link for a while. Of few cuts every one is
played, so the best is found. Of more, those are played that dynamic programming finds: for every
longest time of a part that is worth its messages, the cut with the fewest seconds of them
(`fewest_sent`). The best of these is improved by moving one cut at a time to wherever it ends the
pipeline sooner, until none does.

A chain is cut into *parts*; a device has one of them, or several where its schedule interleaves.
"""

from __future__ import annotations

import numpy as np

from ridgeline._jit import kernel

EQUAL = 1e-9
"""Share up to which two pipelines end at the same time."""


@kernel
def step_cuts(until, send, slots, runs, total, every, most, first):  # type: ignore[no-untyped-def]
    """Return [P + 1] the first layer of every part, and the number of layers.

    Of cuts that end at the same time, one with the least sum of squares of the parts' times: then
    memory and updates are even, too.

    Parameters
    ----------
    until
        [3, N + 1] seconds of all layers before each one, for a micro-batch: forward, backward, and
        the gradients of weights, where the schedule has them apart.
    send
        [2, P, N + 1] seconds of what crosses a cut before each layer where part p begins: forward,
        and back.
    slots
        [S, 4] device, pass, micro-batch and part of every slot of one or two runs, device by
        device.
    runs
        [R, 2] slots and micro-batches of each run. A longer step goes on at the pace at which the
        second run is longer than the first.
    total
        Micro-batches of a step; negative: of one that never flushes, which takes the pace alone.
    every
        Whether to play every cut.
    most
        Slots that may be played where not every cut is; what the dynamic program takes counts as
        much as slots that take as long, about.
    first
        [P + 1] cuts to begin with.
    """
    parts, n = len(first) - 1, until.shape[1] - 1
    best = first.copy()
    best_s = step_s(until, send, slots, runs, total, best)
    if every:
        trial = np.arange(parts + 1)
        trial[parts] = n
        while True:
            best_s = kept(until, send, slots, runs, total, trial, best, best_s)
            k = parts - 1
            while k > 0 and trial[k] == n - (parts - k):
                k -= 1
            if k <= 0:
                return best
            trial[k] += 1
            for later in range(k + 1, parts):
                trial[later] = trial[later - 1] + 1
    whole, played, each = until.sum(axis=0), 0, runs[:, 0].sum()
    came = np.zeros((parts + 1, n + 1), np.int64)
    limit, least = whole[n], whole[n] / parts
    while played < most:
        sent = fewest_sent(whole, send, parts, limit, came)
        if sent == np.inf or (abs(total) - 1) * least + whole[n] + sent > best_s:
            break  # shorter times of parts cost more messages than they are worth
        trial = cuts_of(came, parts, n)
        best_s = kept(until, send, slots, runs, total, trial, best, best_s)
        played += each + parts * n * n // 8
        limit = longest_of(whole, send, trial) * (1.0 - EQUAL)
    moved = True
    while moved and played < most:
        moved = False
        for k in range(1, parts):
            here = best[k]
            trial = best.copy()
            for place in range(best[k - 1] + 1, best[k + 1]):
                trial[k] = place
                best_s = kept(until, send, slots, runs, total, trial, best, best_s)
                played += each
            moved = moved or best[k] != here
    return best


@kernel
def kept(until, send, slots, runs, total, trial, best, best_s):  # type: ignore[no-untyped-def]
    """Play a cut, and make it the best one if it is; return when the best one ends."""
    longest = 0.0
    for k in range(len(trial) - 1):
        longest = max(longest, (until[:, trial[k + 1]] - until[:, trial[k]]).sum())
    if abs(total) * longest > best_s * (1.0 + EQUAL):
        return best_s
    found_s = step_s(until, send, slots, runs, total, trial)
    if found_s < best_s * (1.0 - EQUAL):
        best[:] = trial
        return found_s
    is_equal = found_s <= best_s * (1.0 + EQUAL)
    if is_equal and squares_of(until, trial) < squares_of(until, best) * (1.0 - EQUAL):
        best[:] = trial
    return best_s


@kernel
def step_s(until, send, slots, runs, total, cuts):  # type: ignore[no-untyped-def]
    """Return when the pipeline of a cut ends."""
    ends = np.zeros(2)
    at = 0
    for run in range(len(runs)):
        ends[run] = played_s(until, send, slots[at : at + runs[run, 0]], runs[run, 1], cuts)
        at += runs[run, 0]
    if len(runs) == 1:
        return ends[0]
    pace_s = (ends[1] - ends[0]) / (runs[1, 1] - runs[0, 1])
    return ends[1] + (total - runs[1, 1]) * pace_s if total > 0 else -total * pace_s


@kernel
def played_s(until, send, slots, micro_batches, cuts):  # type: ignore[no-untyped-def]
    """Return when the last device has done its last slot.

    A device begins a slot when it has done the one before and, of the same micro-batch, what it
    needs has come from the neighbouring part. A link takes up a message when it has brought the one
    before, in each direction.
    """
    parts, devices = len(cuts) - 1, slots[len(slots) - 1, 0] + 1
    begin = np.zeros(devices + 1, np.int64)
    for i in range(len(slots)):
        begin[slots[i, 0] + 1] = i + 1
    at = begin[:devices].copy()
    free = np.zeros(devices)
    came = np.full((2, parts, micro_batches), -1.0)
    came[0, 0, :] = 0.0
    way = np.zeros((2, parts + 1))
    left = len(slots)
    while left:
        before = left
        for k in range(devices):
            while at[k] < begin[k + 1]:
                which, i, p = slots[at[k], 1], slots[at[k], 2], slots[at[k], 3]
                start = free[k]
                if which < 2:
                    if came[which, p, i] < 0.0:
                        break
                    start = max(start, came[which, p, i])
                free[k] = start + until[which, cuts[p + 1]] - until[which, cuts[p]]
                at[k] += 1
                left -= 1
                if which == 0 and p == parts - 1:
                    came[1, p, i] = free[k]
                elif which == 0:
                    way[0, p + 1] = max(way[0, p + 1], free[k]) + send[0, p + 1, cuts[p + 1]]
                    came[0, p + 1, i] = way[0, p + 1]
                elif which == 1 and p > 0:
                    way[1, p] = max(way[1, p], free[k]) + send[1, p, cuts[p]]
                    came[1, p - 1, i] = way[1, p]
        if left == before:
            return np.inf  # no slot of any device can begin
    return free.max()


@kernel
def squares_of(until, cuts):  # type: ignore[no-untyped-def]
    """Return the sum of squares of the parts' times."""
    total = 0.0
    for k in range(len(cuts) - 1):
        total += (until[:, cuts[k + 1]] - until[:, cuts[k]]).sum() ** 2
    return total


@kernel
def longest_of(whole, send, cuts):  # type: ignore[no-untyped-def]
    """Return the longest time of a part, or of a message."""
    longest = 0.0
    for k in range(len(cuts) - 1):
        longest = max(longest, whole[cuts[k + 1]] - whole[cuts[k]])
        if k:
            longest = max(longest, send[0, k, cuts[k]], send[1, k, cuts[k]])
    return longest


@kernel
def cuts_of(came, parts, n):  # type: ignore[no-untyped-def]
    """Return the first layer of every part, and the number of layers."""
    cuts = np.zeros(parts + 1, np.int64)
    for k in range(parts):
        cuts[k + 1] = came[k, cuts[k]]
    cuts[parts] = n
    return cuts


@kernel
def fewest_sent(whole, send, parts, longest, came):  # type: ignore[no-untyped-def]
    """Return the fewest seconds of messages where no part or message takes longer.

    inf if there is no such cut. ``came[k, i]`` is where part k ends if it begins with layer i; of
    equal ones that with the least sum of squares from there on.
    """
    n = len(whole) - 1
    sent = np.full(n + 1, np.inf)
    squares = np.zeros(n + 1)
    sent[n] = 0.0
    rounding = EQUAL * (whole[n] + 1e-300)
    for k in range(parts - 1, -1, -1):
        after, sums = np.full(n + 1, np.inf), np.zeros(n + 1)
        for i in range(k, n - (parts - 1 - k)):
            last = n if k == parts - 1 else n - (parts - 1 - k)
            for j in range(n if k == parts - 1 else i + 1, last + 1):
                if whole[j] - whole[i] > longest:
                    break
                if sent[j] == np.inf:
                    continue
                total = sent[j]
                if j < n:
                    if max(send[0, k + 1, j], send[1, k + 1, j]) > longest:
                        continue
                    total += send[0, k + 1, j] + send[1, k + 1, j]
                square = squares[j] + (whole[j] - whole[i]) ** 2
                if total < after[i] - rounding or (
                    total <= after[i] + rounding and square < sums[i] * (1.0 - EQUAL)
                ):
                    after[i], sums[i] = total, square
                    came[k, i] = j
        sent, squares = after, sums
    return sent[0]
