"""The compiled search for cuts of a chain of layers whose pipeline, as it is played, ends first.

A cut is judged by playing its pipeline (`played_s`): every device works through the slots of its
schedule in order, a message each way takes its link for a while, and what replicas send, and what
is done once a step, goes before, beside and behind the slots (`part_ends`). Of few cuts every one
is played, so the best is found. Of more, those are played that dynamic programming finds: for every
longest time of a part that is worth its messages, the cut with the fewest seconds of them
(`fewest_sent`). The best of these is improved by moving one cut at a time to wherever it ends the
pipeline sooner, until none does.

A chain is cut into *parts*; a device has one of them, or several where its schedule interleaves.
"""

from __future__ import annotations

import numpy as np

from ridgeline._jit import kernel
from ridgeline.parallel.partition.memory_share import emptied, fullest_share, furthest
from ridgeline.parallel.partition.part_ends import (
    BEGIN_S,
    END_S,
    GATHERED_BACK_S,
    GATHERED_S,
    LEAD_BACK_S,
    LEAD_S,
    SUMMED_S,
    TAIL_S,
)

NEVER, AT_BEGIN, FORWARD, BOTH_WAYS = range(4)
"""When weights are gathered: never, before the first micro-batch, forward, backward as well."""
GATHERS, SUMS_EACH, SUMS_WAIT, GATHERS_WAIT = range(4)
"""Places of `how`."""
EQUAL = 1e-9
"""Share up to which two pipelines end at the same time."""


@kernel
def step_cuts(of, memory, every, most, first):  # type: ignore[no-untyped-def]
    """Return [P + 1] the first layer of every part, and the number of layers; `first` if none fits.

    Of cuts that end at the same time, one with the least sum of squares of the parts' times: then
    memory and updates are even, too.

    Parameters
    ----------
    of
        What pipelines are played by.
    memory
        What the devices of a cut hold (`part_memory`): only those that fit are played.
    every
        Whether to play every cut.
    most
        Slots that may be played where not every cut is; what the dynamic program takes counts as
        much as slots that take as long, about.
    first
        [P + 1] cuts to begin with.
    """
    until, send, once, how, total = of.until, of.send, of.once, of.how, of.total
    parts, n = len(first) - 1, until.shape[1] - 1
    best, best_s = first.copy(), np.inf
    if fullest_share(memory, best) <= 1.0:
        best_s = step_s(of, best)
    if every:
        trial = np.arange(parts + 1)
        trial[parts] = n
        while True:
            best_s = kept(of, memory, trial, best, best_s)
            k = parts - 1
            while k > 0 and trial[k] == n - (parts - k):
                k -= 1
            if k <= 0:
                return best
            trial[k] += 1
            for later in range(k + 1, parts):
                trial[later] = trial[later - 1] + 1
    whole, played, each = until.sum(axis=0), 0, of.runs[:, 0].sum()
    cost = part_costs(until, of.issued, once, how, abs(total))
    came = np.zeros((parts + 1, n + 1), np.int64)
    limit, least = max(cost.max(), send.max()), whole[n] / parts
    reach = furthest(memory, parts)
    while played < most:
        sent = fewest_sent(cost, send, reach, limit, came)
        if sent == np.inf or (abs(total) - 1) * least + whole[n] + sent > best_s:
            break  # shorter times of parts cost more messages than they are worth
        trial = cuts_of(came, parts, n)
        best_s = kept(of, memory, trial, best, best_s)
        played += each + parts * n * n // 8
        limit = longest_of(cost, send, trial) * (1.0 - EQUAL)
    if best_s == np.inf:
        if emptied(memory, best) > 1.0:
            return first
        best_s = step_s(of, best)
    moved = True
    while moved and played < most:
        moved = False
        for k in range(1, parts):
            here = best[k]
            trial = best.copy()
            for place in range(best[k - 1] + 1, best[k + 1]):
                trial[k] = place
                best_s = kept(of, memory, trial, best, best_s)
                played += each
            moved = moved or best[k] != here
    return best


@kernel
def kept(of, memory, trial, best, best_s):  # type: ignore[no-untyped-def]
    """Play a cut, if it fits, and make it the best one if it is; return when the best one ends."""
    until, total = of.until, of.total
    longest = 0.0
    for k in range(len(trial) - 1):
        longest = max(longest, (until[:, trial[k + 1]] - until[:, trial[k]]).sum())
    if abs(total) * longest > best_s * (1.0 + EQUAL):
        return best_s
    if fullest_share(memory, trial) > 1.0:
        return best_s
    found_s = step_s(of, trial)
    if found_s < best_s * (1.0 - EQUAL):
        best[:] = trial
        return found_s
    is_equal = found_s <= best_s * (1.0 + EQUAL)
    if is_equal and squares_of(until, trial) < squares_of(until, best) * (1.0 - EQUAL):
        best[:] = trial
    return best_s


@kernel
def step_s(of, cuts):  # type: ignore[no-untyped-def]
    """Return when the pipeline of a cut ends.

    Where it never does, how long a step's share of it is: each device has its own ends besides, and
    sums go on beside it.
    """
    until, once, runs, total = of.until, of.once, of.runs, of.total
    ends = np.zeros(2)
    at = 0
    for run in range(len(runs)):
        ends[run] = played_s(of, of.slots[at : at + runs[run, 0]], runs[run, 1], cuts)
        at += runs[run, 0]
    if len(runs) == 1:
        return ends[0]
    pace_s = (ends[1] - ends[0]) / (runs[1, 1] - runs[0, 1])
    if total > 0:
        return ends[1] + (total - runs[1, 1]) * pace_s
    period_s = -total * pace_s
    for p in range(len(cuts) - 1):
        a, b = cuts[p], cuts[p + 1]
        own_s = once[BEGIN_S, a, b] + once[END_S, a, b]
        work_s = (until[:, b] - until[:, a]).sum()
        period_s = max(period_s, -total * work_s + own_s, once[SUMMED_S, a, b])
    return period_s


@kernel
def played_s(of, slots, micro_batches, cuts):  # type: ignore[no-untyped-def]
    """Return when the last device has done its last slot, and what is done behind it.

    A device begins a slot when it has done the one before and, of the same micro-batch, what it
    needs has come from the neighbouring part. A link takes up a message when it has brought the one
    before, in each direction. What replicas send goes in one queue of each device: weights are
    gathered from when it is free for a slot, one bucket before it begins, all before it ends;
    gradients are
    summed as soon as they are made, in every micro-batch or with the last one. Updates wait for all
    sums of their device, and those of parts that share a weight for each other.
    """
    until, issued, send, once, how = of.until, of.issued, of.send, of.once, of.how
    parts, devices = len(cuts) - 1, slots[len(slots) - 1, 0] + 1
    begin = np.zeros(devices + 1, np.int64)
    device = np.zeros(parts, np.int64)
    makes = max(1, slots[:, 1].max())  # the pass that makes gradients of weights
    for i in range(len(slots)):
        begin[slots[i, 0] + 1] = i + 1
        device[slots[i, 3]] = slots[i, 0]
    at = begin[:devices].copy()
    free, queue = np.zeros(devices), np.zeros(devices)
    made, there = np.zeros(parts), np.zeros(parts)
    begun(once, how, cuts, device, free, queue, there)
    came = np.full((2, parts, micro_batches), -1.0)
    came[0, 0, :] = 0.0
    way = np.zeros((2, parts + 1))
    left = len(slots)
    while left:
        before = left
        for k in range(devices):
            while at[k] < begin[k + 1]:
                which, i, p = slots[at[k], 1], slots[at[k], 2], slots[at[k], 3]
                start, a, b = free[k], cuts[p], cuts[p + 1]
                if which < 2:
                    if came[which, p, i] < 0.0:
                        break
                    start = max(start, came[which, p, i])
                takes = until[which, b] - until[which, a]
                if how[GATHERS] == AT_BEGIN and which == 0:
                    start = max(start, there[p] - (0.0 if how[GATHERS_WAIT] else takes))
                elif which < 2 and how[GATHERS] >= FORWARD + which:
                    start = max(start, gathered_s(once, how, which, a, b, free[k], takes, queue, k))
                issued_s = free[k] + issued[which, b] - issued[which, a]
                free[k] = max(start + takes, issued_s)
                if which == makes:
                    made[p] = free[k]
                    if how[SUMS_EACH]:
                        summed_s = queue[k] + once[SUMMED_S, a, b]
                        queue[k] = max(summed_s, free[k] + once[TAIL_S, a, b])
                        free[k] = queue[k] if how[SUMS_WAIT] else free[k]
                at[k] += 1
                left -= 1
                if which == 0 and p == parts - 1:
                    came[1, p, i] = free[k]
                elif which == 0:
                    way[0, p + 1] = max(way[0, p + 1], free[k]) + send[0, p + 1, b]
                    came[0, p + 1, i] = way[0, p + 1]
                elif which == 1 and p > 0:
                    way[1, p] = max(way[1, p], free[k]) + send[1, p, a]
                    came[1, p - 1, i] = way[1, p]
        if left == before:
            return np.inf  # no slot of any device can begin
    ended(of, cuts, device, made, free, queue)
    return free.max()


@kernel
def gathered_s(once, how, which, a, b, free_s, takes, queue, k):  # type: ignore[no-untyped-def]
    """Return from when a slot can begin whose weights are gathered from when the device is free."""
    asked_s = max(free_s, queue[k])
    queue[k] = asked_s + once[GATHERED_S if which == 0 else GATHERED_BACK_S, a, b]
    if how[GATHERS_WAIT]:
        return queue[k]
    lead_s = once[LEAD_S if which == 0 else LEAD_BACK_S, a, b]
    return max(asked_s + lead_s, queue[k] - takes)


@kernel
def begun(once, how, cuts, device, free, queue, there):  # type: ignore[no-untyped-def]
    """Write when every device has made its copies of weights, and each part has its weights."""
    for p in range(len(cuts) - 1):
        k, a, b = device[p], cuts[p], cuts[p + 1]
        free[k] += once[BEGIN_S, a, b]
        if how[GATHERS] == AT_BEGIN:
            queue[k] = max(queue[k], free[k]) + once[GATHERED_S, a, b]
            there[p] = queue[k]


@kernel
def ended(of, cuts, device, made, free, queue):  # type: ignore[no-untyped-def]
    """Write when every device has done its updates, behind its last slot and all sums."""
    once, how, held, tie_s = of.once, of.how, of.held, of.tie_s
    parts, devices = len(cuts) - 1, len(free)
    free[:] = np.maximum(free, queue)
    if not how[SUMS_EACH]:
        for p in range(parts - 1, -1, -1):
            k, a, b = device[p], cuts[p], cuts[p + 1]
            if once[SUMMED_S, a, b] > 0.0:
                queue[k] = max(queue[k] + once[SUMMED_S, a, b], made[p] + once[TAIL_S, a, b])
                free[k] = max(free[k], queue[k])
    together = np.zeros(devices, np.bool_)
    for t in range(len(tie_s)):
        together[:] = False
        last = 0.0
        for p in range(parts):
            if held[t, cuts[p + 1]] > held[t, cuts[p]]:
                together[device[p]] = True
                last = max(last, free[device[p]])
        if together.sum() > 1:
            free[together] = last + tie_s[t]
    for p in range(parts):
        free[device[p]] += once[END_S, cuts[p], cuts[p + 1]]


@kernel
def part_costs(until, issued, once, how, micro_batches):  # type: ignore[no-untyped-def]
    """Return [N + 1, N + 1] seconds of a part for each micro-batch, its share of ends included."""
    n = until.shape[1] - 1
    found = np.zeros((n + 1, n + 1))
    for i in range(n):
        for j in range(i + 1, n + 1):
            work = np.maximum(until[:, j] - until[:, i], issued[:, j] - issued[:, i])
            gathered = once[GATHERED_S, i, j]
            ends = once[BEGIN_S, i, j] + once[END_S, i, j] + once[TAIL_S, i, j]
            each = work.sum()
            if how[GATHERS] >= FORWARD:
                each = max(work[0] + once[LEAD_S, i, j], gathered)
                back = once[GATHERED_BACK_S, i, j] if how[GATHERS] == BOTH_WAYS else 0.0
                lead = once[LEAD_BACK_S, i, j] if how[GATHERS] == BOTH_WAYS else 0.0
                if how[SUMS_EACH]:
                    back += once[SUMMED_S, i, j]
                each += max(work[1] + work[2] + lead, back)
            elif how[SUMS_EACH]:
                each = work[0] + max(work[1] + work[2], once[SUMMED_S, i, j])
            found[i, j] = each + ends / micro_batches
    return found


@kernel
def squares_of(until, cuts):  # type: ignore[no-untyped-def]
    """Return the sum of squares of the parts' times."""
    total = 0.0
    for k in range(len(cuts) - 1):
        total += (until[:, cuts[k + 1]] - until[:, cuts[k]]).sum() ** 2
    return total


@kernel
def longest_of(cost, send, cuts):  # type: ignore[no-untyped-def]
    """Return the longest time of a part, or of a message."""
    longest = 0.0
    for k in range(len(cuts) - 1):
        longest = max(longest, cost[cuts[k], cuts[k + 1]])
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
def fewest_sent(cost, send, reach, longest, came):  # type: ignore[no-untyped-def]
    """Return the fewest seconds of messages where no part or message takes longer.

    inf if there is no such cut. Parts end where they have room, at most (`furthest`).
    ``came[k, i]`` is where part k ends if it begins with layer i; of equal ones that with the least
    sum of squares from there on.
    """
    n, parts = len(cost) - 1, len(reach)
    sent = np.full(n + 1, np.inf)
    squares = np.zeros(n + 1)
    sent[n] = 0.0
    rounding = EQUAL * (cost[0, n] + 1e-300)
    for k in range(parts - 1, -1, -1):
        after, sums = np.full(n + 1, np.inf), np.zeros(n + 1)
        for i in range(k, n - (parts - 1 - k)):
            last = n if k == parts - 1 else n - (parts - 1 - k)
            for j in range(n if k == parts - 1 else i + 1, min(last, reach[k, i]) + 1):
                if cost[i, j] > longest or sent[j] == np.inf:
                    continue
                total = sent[j]
                if j < n:
                    if max(send[0, k + 1, j], send[1, k + 1, j]) > longest:
                        continue
                    total += send[0, k + 1, j] + send[1, k + 1, j]
                square = squares[j] + cost[i, j] ** 2
                if total < after[i] - rounding or (
                    total <= after[i] + rounding and square < sums[i] * (1.0 - EQUAL)
                ):
                    after[i], sums[i] = total, square
                    came[k, i] = j
        sent, squares = after, sums
    return sent[0]
