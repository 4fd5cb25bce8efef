"""Bruck's algorithms: ⌈lg p⌉ rounds for any number of ranks.

Bruck, Ho, Kipnis, Upfal and Weathersby, IEEE Trans. Parallel Distrib. Syst. 8(11), 1997.
"""

from __future__ import annotations

import numpy as np

from ridgeline.network.algorithm import CollectiveGroup, algorithm
from ridgeline.network.message_schedule import MessageSchedule, make_script, make_step


def _powers(n: int) -> list[int]:
    return [1 << i for i in range((n - 1).bit_length())]


@algorithm("all-gather", "bruck")
def all_gather_bruck(group: CollectiveGroup) -> MessageSchedule:
    """⌈lg p⌉α + (p-1)/p Sβ: in round k everyone sends all that it has to the one 2^k before it."""
    n = group.n
    position = np.arange(n)
    steps = [
        make_step(position, (position - hop) % n, position, min(hop, n - hop), span=n)
        for hop in _powers(n)
    ]
    return make_script(group.part_bytes, steps, owner=position)


@algorithm("all-to-all", "bruck", automatic=False)
def all_to_all_bruck(group: CollectiveGroup) -> MessageSchedule:
    """⌈lg p⌉α + about S/2 ⌈lg p⌉β: data for d positions further take the hops that d is the sum of.

    In round k everyone sends, in one message to the one 2^k after it, whatever still has bit k of
    its distance before it.
    """
    n = group.n
    origin, distance = np.divmod(np.arange(n * n), n)  # of every slot
    owner = (origin + distance) % n
    steps = []
    for hop in _powers(n):
        moving = np.flatnonzero(distance & hop)
        here = (origin[moving] + distance[moving] % hop) % n
        steps.append(make_step(here, (here + hop) % n, moving, span=n * n))
    return make_script(group.pair_bytes[origin * n + owner], steps, owner=owner, origin=origin)


@algorithm("barrier", "dissemination")
def barrier_dissemination(group: CollectiveGroup) -> MessageSchedule:
    """⌈lg p⌉α: everyone tells the one 2^k after it (Hensgen, Finkel and Manber, 1988)."""
    n = group.n
    position = np.arange(n)
    steps = [
        make_step(position, (position + hop) % n, 0, span=1, combine=True) for hop in _powers(n)
    ]
    return make_script(np.zeros(1), steps)
