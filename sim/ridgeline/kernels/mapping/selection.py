"""Selection among evaluated mappings: by time, energy and traffic.

Of all that take the least time, but for rounding, the one with the least energy is taken; of these
the one with the least traffic; of these the one that is listed first. The choice is made among all
of them at once, so that it does not depend on the order in which they were played.
"""

from __future__ import annotations

import numpy as np

from ridgeline._jit import kernel
from ridgeline.kernels.mapping.footprint import Floats, Ints
from ridgeline.kernels.mapping.pipeline import (
    ENERGY,
    FOUND_FIELDS,
    TIME,
    TRAFFIC,
    Goal,
    key_of,
)

TIED = 1e-13
"""Times, and energies, that differ by less do so by rounding."""


@kernel
def twice(found: Floats, whose: Ints) -> tuple[Floats, Ints]:
    """Make room for twice as many mappings."""
    n = len(found)
    more, of_more = np.empty((2 * n, FOUND_FIELDS)), np.empty((2 * n, 2), np.int64)
    for i in range(n):
        of_more[i, 0], of_more[i, 1] = whose[i, 0], whose[i, 1]
        for field in range(FOUND_FIELDS):
            more[i, field] = found[i, field]
    return more, of_more


@kernel
def winnow(found: Floats, whose: Ints, kept: int, goal: Goal, least: float) -> int:
    """Keep what takes no more than the least; return how many that are."""
    still = 0
    for i in range(kept):
        if key_of(found[i, TIME], found[i, ENERGY], goal) <= least * (1 + TIED):
            whose[still, 0], whose[still, 1] = whose[i, 0], whose[i, 1]
            for field in range(found.shape[1]):
                found[still, field] = found[i, field]
            still += 1
    return still


@kernel
def best_of(found: Floats, whose: Ints, goal: Goal) -> int:
    """Choose by the goal, time, energy and traffic; then by the order of listing.

    Parameters
    ----------
    found
        [mappings, at least FOUND_FIELDS].
    whose
        [mappings, 2], the combination and the order of the loops that each is of.
    """
    level = np.empty(len(found), np.bool_)  # those that are no worse in all keys so far
    level[:] = True
    least = np.inf
    for i in range(len(found)):
        least = min(least, key_of(found[i, TIME], found[i, ENERGY], goal))
    for i in range(len(found)):
        level[i] = key_of(found[i, TIME], found[i, ENERGY], goal) <= least * (1 + TIED)
    for key in (TIME, ENERGY, TRAFFIC):
        least = np.inf
        for i in range(len(found)):
            if level[i]:
                least = min(least, found[i, key])
        for i in range(len(found)):
            level[i] = level[i] and found[i, key] <= least * (1 + TIED)
    top = -1
    for i in range(len(found)):
        if level[i] and (
            top < 0
            or whose[i, 0] < whose[top, 0]
            or (whose[i, 0] == whose[top, 0] and whose[i, 1] < whose[top, 1])
        ):
            top = i
    return top
