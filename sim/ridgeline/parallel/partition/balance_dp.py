"""Compiled dynamic program for stage balance where only layer times count."""

from __future__ import annotations

import numpy as np

from ridgeline._jit import kernel


@kernel
def even_cuts(until, stages, equal):  # type: ignore[no-untyped-def]
    """Return [stages + 1] the first layer of every stage, and the number of layers.

    The slowest stage is as fast as can be, up to the share `equal`; of these partitions, one with
    the least sum of squares (see `cuts.balance`). No stage of a best partition takes longer than
    its even share and one layer more, so longer ones are not looked at: about N^2 steps in all.

    Parameters
    ----------
    until
        [N + 1] seconds of all layers before each one.
    """
    n = len(until) - 1
    longest = 0.0
    for i in range(n):
        longest = max(longest, until[i + 1] - until[i])
    limit = (until[n] / stages + longest) * (1.0 + 1e-9)
    best = np.full(n + 1, np.inf)
    best[0] = 0.0
    for _ in range(stages):
        after = np.full(n + 1, np.inf)
        for j in range(1, n + 1):
            i = j - 1
            while i >= 0 and until[j] - until[i] <= limit:
                after[j] = min(after[j], max(best[i], until[j] - until[i]))
                i -= 1
        best = after
    bound = best[n] * (1.0 + equal)
    best = np.full(n + 1, np.inf)
    best[0] = 0.0
    came = np.zeros((stages, n + 1), np.int64)
    for stage in range(stages):
        after = np.full(n + 1, np.inf)
        for j in range(1, n + 1):
            i = j - 1
            while i >= 0 and until[j] - until[i] <= bound:
                total = best[i] + (until[j] - until[i]) ** 2
                if total <= after[j]:  # of equally good ones, the first
                    after[j] = total
                    came[stage, j] = i
                i -= 1
        best = after
    cuts = np.empty(stages + 1, np.int64)
    cuts[stages] = n
    for stage in range(stages - 1, -1, -1):
        cuts[stage] = came[stage, cuts[stage + 1]]
    return cuts
