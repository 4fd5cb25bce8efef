"""Compiled sums of `part_memory`: how full the devices of a cut are, how far parts can reach."""

from __future__ import annotations

import numpy as np

from ridgeline._jit import kernel
from ridgeline.parallel.partition.part_memory import BACK, BETWEEN, DEVICE, SUMS, VERSIONS

ORDERS = (2, 8, 32)
SHIFTS = (-4, -1, 1, 4)
ROUNDING = 1e-9


@kernel
def fullest_share(memory, cuts):  # type: ignore[no-untyped-def]
    """Return the bytes of the fullest device of a cut, over its capacity; of none, 0."""
    most = 0.0
    for r in range(len(memory.moments)):
        most = max(most, moment_share(memory, r, cuts))
    return most


@kernel
def moment_share(memory, r, cuts):  # type: ignore[no-untyped-def]
    """Return the bytes of the device of a moment then, over its capacity."""
    k, total = memory.moments[r, DEVICE], 0.0
    for c in range(memory.part_of.shape[1]):
        p = memory.part_of[k, c]
        total += part_bytes(memory, r, c, cuts[p], cuts[p + 1])
    return total / memory.capacity[k]


@kernel
def part_bytes(memory, r, c, a, b):  # type: ignore[no-untyped-def]
    """Return the bytes of units a to b, as part c of a device, at a moment."""
    moment, chunks = memory.moments[r], memory.part_of.shape[1]
    total = memory.states[a, b] + moment[VERSIONS] * memory.weights[a, b]
    if moment[SUMS]:
        total += memory.gradients[a, b]
    if moment[BACK] == c:
        total += memory.beside[a, b]
    total += moment[BETWEEN + c] * (memory.kept[0, b] - memory.kept[0, a])
    return total + moment[BETWEEN + chunks + c] * (memory.kept[1, b] - memory.kept[1, a])


@kernel
def furthest(memory, parts):  # type: ignore[no-untyped-def]
    """Return [P, N + 1] where a part that begins at a unit ends at most; that unit: it has no room.

    Parts hold more, the earlier they begin and the later they end. What other parts of the device
    hold is left out.
    """
    n = memory.kept.shape[1] - 1
    found = np.full((parts, n + 1), n)
    for r in range(len(memory.moments)):
        k = memory.moments[r, DEVICE]
        for c in range(memory.part_of.shape[1]):
            p, b = memory.part_of[k, c], 0
            for a in range(n):
                b = max(a, b)
                while b < n and part_bytes(memory, r, c, a, b + 1) <= memory.capacity[k]:
                    b += 1
                found[p, a] = min(found[p, a], b)
    return found


@kernel
def emptied(memory, cuts):  # type: ignore[no-untyped-def]
    """Move cuts until all devices fit, or no move helps; return the fullest one's share.

    Neighbouring cuts are moved together, by one unit or by several, where that lowers the norm of
    the shares at all moments: of the second order first, then of higher ones, which count the
    fullest devices alone.
    """
    parts = len(cuts) - 1
    trial = cuts.copy()
    for order in ORDERS:
        least, moved = norm_of(memory, cuts, order), True
        while moved and fullest_share(memory, cuts) > 1.0:
            moved = False
            for first in range(1, parts):
                for last in range(first, parts):
                    for by in SHIFTS:
                        if cuts[first] + by <= cuts[first - 1] or cuts[last] + by >= cuts[last + 1]:
                            continue
                        trial[:] = cuts
                        trial[first : last + 1] += by
                        found = norm_of(memory, trial, order)
                        if found < least * (1.0 - ROUNDING):
                            cuts[:], least, moved = trial, found, True
    return fullest_share(memory, cuts)


@kernel
def norm_of(memory, cuts, order):  # type: ignore[no-untyped-def]
    """Return the sum of powers of the shares at all moments."""
    total = 0.0
    for r in range(len(memory.moments)):
        total += moment_share(memory, r, cuts) ** order
    return total
