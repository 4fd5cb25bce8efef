"""The compiled dynamic program that cuts a chain of layers where the step is shortest.

A step of m micro-batches on K stages takes the work and the messages of one micro-batch through all
stages, and m - 1 times the *period* in which the pipeline takes up another one. The period is at
least what each stage works, and what each message takes, for a micro-batch. Where a stage goes back
to a micro-batch as soon as it can (1F1B and its like) only K - k of them are between stage k and
the end of the pipeline, so that many periods are at least a round trip: all work and messages from
stage k on (D. Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", ICML 2021,
Section 3.2, describe the order).

For a given period the fewest seconds of messages are found by dynamic programming from the last
stage on; less of them never hurts a round trip. A shorter period can only cost more messages. So
all periods that are worth their messages are passed through, from the longest to the shortest.
"""

from __future__ import annotations

import numpy as np

from ridgeline._jit import kernel

EQUAL = 1e-12


@kernel
def step_cuts(until, send, stages, weight, returns, first):  # type: ignore[no-untyped-def]
    """Return [stages + 1] the first layer of every stage, and the number of layers.

    Of the cuts whose step is the shortest, up to rounding, one with the least sum of squares of the
    stages' times.

    Parameters
    ----------
    until
        [N + 1] seconds of all layers before each one, for a micro-batch.
    send
        [stages, N + 1] seconds of what crosses a cut before each layer where stage k begins, both
        ways together.
    weight
        Periods of a step.
    returns
        Whether stages go back to a micro-batch as soon as they can.
    first
        [stages + 1] some cuts, by which longer periods are left out.
    """
    n = len(until) - 1
    least = until[n] / stages
    for i in range(n):
        least = max(least, until[i + 1] - until[i])
    best_period = period_of(until, send, first, returns)
    sent = 0.0
    for k in range(1, stages):
        sent += send[k, first[k]]
    best = weight * best_period + sent
    fewest = 0.0
    for k in range(1, stages):
        fewest += send[k, 1:n].min()
    limit = (best - fewest) / weight * (1.0 + 1e-9)
    came = np.zeros((stages + 1, n + 1), np.int64)
    while True:
        sent = fewest_sent(until, send, stages, limit, returns, came)
        if sent == np.inf:
            break
        cuts = cuts_of(came, stages, n)
        period = period_of(until, send, cuts, returns)
        total = weight * period + sent
        if total < best * (1.0 - EQUAL):
            best, best_period = total, period
        if weight * least + sent >= best:
            break  # a shorter period costs at least as many messages
        limit = period * (1.0 - 1e-9)
    fewest_sent(until, send, stages, best_period * (1.0 + EQUAL), returns, came)
    return cuts_of(came, stages, n)


@kernel
def cuts_of(came, stages, n):  # type: ignore[no-untyped-def]
    """Return the first layer of every stage, and the number of layers."""
    cuts = np.zeros(stages + 1, np.int64)
    for k in range(stages):
        cuts[k + 1] = came[k, cuts[k]]
    cuts[stages] = n
    return cuts


@kernel
def period_of(until, send, cuts, returns):  # type: ignore[no-untyped-def]
    """Return the period of a pipeline that is cut so."""
    stages = len(cuts) - 1
    period, sent = 0.0, 0.0
    for k in range(stages - 1, -1, -1):
        if k < stages - 1:
            sent += send[k + 1, cuts[k + 1]]
            period = max(period, send[k + 1, cuts[k + 1]])
        period = max(period, until[cuts[k + 1]] - until[cuts[k]])
        if returns:
            period = max(period, (until[cuts[stages]] - until[cuts[k]] + sent) / (stages - k))
    return period


@kernel
def fewest_sent(until, send, stages, period, returns, came):  # type: ignore[no-untyped-def]
    """Return the fewest seconds of messages for a period, inf if there is no such cut.

    ``came[k, i]`` is where stage k ends if it begins with layer i; of equal ones that with the
    least sum of squares from there on.
    """
    n = len(until) - 1
    sent = np.full(n + 1, np.inf)
    squares = np.zeros(n + 1)
    sent[n] = 0.0
    rounding = EQUAL * (until[n] + 1e-300)
    for k in range(stages - 1, -1, -1):
        after, sums = np.full(n + 1, np.inf), np.zeros(n + 1)
        room = period * (stages - k) - until[n]
        for i in range(k, n - (stages - 1 - k)):
            last = n if k == stages - 1 else n - (stages - 1 - k)
            for j in range(n if k == stages - 1 else i + 1, last + 1):
                if until[j] - until[i] > period:
                    break
                more = 0.0 if j == n else send[k + 1, j]
                if sent[j] == np.inf or more > period:
                    continue
                total = sent[j] + more
                if returns and total - until[i] > room:
                    continue
                square = squares[j] + (until[j] - until[i]) ** 2
                if total < after[i] - rounding or (
                    total <= after[i] + rounding and square < sums[i] * (1.0 - EQUAL)
                ):
                    after[i], sums[i] = total, square
                    came[k, i] = j
        sent, squares = after, sums
    return sent[0]
