"""Bottleneck pruning: shared resources that can never limit a flow are left out.

Resource A *dominates* B if every leg that uses B also uses A, and fills A at least as fast: its
share of A over A's capacity is not less than of B. Then B is never full before A is, whatever
happens to be active, so that dividing A alone gives every flow the same rate. The links of one ring
collective are all alike, and above a host's own link most links of a fat tree without
oversubscription carry a part of what it carries. What is dominated is left out before playing.
"""

from __future__ import annotations

import numpy as np

from ridgeline._jit import kernel
from ridgeline.engine.program import Flags, Floats, Ints
from ridgeline.engine.tables import Records

WIDE = 16
"""In legs with more uses than this only resources that are used exactly alike are looked for."""


def dominant(legs: Records, uses: Records, capacity: Floats) -> Flags:
    """Return which resources have to be divided; of equal ones, the first.

    Parameters
    ----------
    legs, uses
        Tables of LEG and USE.
    capacity
        [R] of all resources, in units a second.
    """
    needed = np.zeros(len(capacity), np.bool_)
    needed[uses["resource"]] = True
    if len(uses) == 0:
        return needed
    owner = np.repeat(np.arange(len(legs)), legs["last_use"] - legs["first_use"])
    order = np.argsort(uses["resource"], kind="stable")  # by resource, then by leg
    speed = uses["share"] / capacity[uses["resource"]]
    ptr = np.concatenate((np.zeros(1, np.int64), np.cumsum(
        np.bincount(uses["resource"], minlength=len(capacity)))))  # fmt: skip
    leg_of, speed_of = owner[order], speed[order]
    key = np.bincount(
        uses["resource"], _mixed(owner) * speed / speed.max(), minlength=len(capacity)
    )
    alike = np.lexsort((np.arange(len(capacity)), key, np.diff(ptr)))
    _leave_out_equals(alike, ptr, leg_of, speed_of, needed)
    _leave_out_dominated(legs["first_use"].copy(), legs["last_use"].copy(),
                         uses["resource"].copy(), speed, ptr, leg_of, speed_of, needed)  # fmt: skip
    return needed


def _mixed(number: Ints) -> Floats:
    """Turn numbers into others between 1 and 2 that look random; equal ones stay equal."""
    spread: Floats = (1.0 + (number * 0.6180339887498949) % 1.0).astype(np.float64)
    return spread


@kernel
def _leave_out_equals(
    alike: Ints, ptr: Ints, leg_of: Ints, speed_of: Floats, needed: Flags
) -> None:
    """Of neighbours in `alike` that the same legs fill equally fast, keep the first."""
    first = -1
    for resource in alike:
        if not needed[resource]:
            continue
        same = first >= 0 and ptr[first + 1] - ptr[first] == ptr[resource + 1] - ptr[resource]
        if same:
            for i in range(ptr[resource + 1] - ptr[resource]):
                a, b = ptr[first] + i, ptr[resource] + i
                if leg_of[a] != leg_of[b] or speed_of[a] != speed_of[b]:
                    same = False
                    break
        if same:
            needed[resource] = False
        else:
            first = resource


@kernel
def _leave_out_dominated(
    first_use: Ints,
    last_use: Ints,
    resource_of: Ints,
    speed: Floats,
    ptr: Ints,
    leg_of: Ints,
    speed_of: Floats,
    needed: Flags,
) -> None:
    for one in range(len(needed)):
        if not needed[one]:
            continue
        shortest = leg_of[ptr[one]]
        for i in range(ptr[one], ptr[one + 1]):
            leg = leg_of[i]
            if last_use[leg] - first_use[leg] < last_use[shortest] - first_use[shortest]:
                shortest = leg
        if last_use[shortest] - first_use[shortest] > WIDE:
            continue
        for candidate in range(first_use[shortest], last_use[shortest]):
            other = resource_of[candidate]
            if other == one or not needed[other]:
                continue
            # both lists of legs ascend: walk them side by side
            j = ptr[other]
            dominates = True
            for i in range(ptr[one], ptr[one + 1]):
                while j < ptr[other + 1] and leg_of[j] < leg_of[i]:
                    j += 1
                if j == ptr[other + 1] or leg_of[j] != leg_of[i] or speed_of[j] < speed_of[i]:
                    dominates = False
                    break
            if dominates:
                needed[one] = False
                break
