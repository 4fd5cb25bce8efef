"""Parallel rings, in one dimension or several, on shares of the payload.

A lane of extents (q0, q1, ...) reduces and scatters along rings of q0 positions, then of q1 with a
q0-th of the data, and so on; it gathers in the opposite order. That is the plain ring for one
dimension, the 2D torus algorithm for two (Mikami et al., arXiv:1811.05233, 2018), and BlueConnect
for any number (Cho et al., MLSys 2019). Where all positions of a dimension are linked, everyone
sends to all others of it at once instead, in one round (as ASTRA-sim's "direct").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ridgeline.network.algorithm import CollectiveGroup
from ridgeline.network.message_schedule import (
    Ints,
    MessageRounds,
    MessageSchedule,
    advanced,
    make_script,
    make_step,
    merged,
    together,
)
from ridgeline.network.paths import Routes
from ridgeline.network.topology import Floats


@dataclass(frozen=True, slots=True)
class Lane:
    """Positions on a grid of rings.

    Attributes
    ----------
    extents
        Of the dimensions, in the order in which data are scattered.
    position
        [p] position at each place of the grid, in row-major order: the last dimension is innermost.
    share
        Of the payload.
    direction
        +1 or -1: to the next or to the previous on every ring.
    routes
        Links from every place to the next one along the first dimension; None: as routed.
    complete
        Dimensions in which everyone sends to all others at once.
    """

    extents: tuple[int, ...]
    position: Ints
    share: float = 1.0
    direction: int = 1
    routes: Routes | None = None
    complete: frozenset[int] = frozenset()

    def pass_along(self, dimension: int, base: int, *, scatter: bool) -> MessageRounds:
        """Add up along one dimension, or pass on what everyone has, by rings or all at once."""
        if dimension in self.complete:
            return self.exchange(dimension, base, scatter=scatter)
        return self.ring(dimension, base, scatter=scatter)

    def exchange(self, dimension: int, base: int, *, scatter: bool) -> MessageRounds:
        """Send to all others of one dimension at once; afterwards all is as after `ring`."""
        q = self.extents[dimension]
        chunk = math.prod(self.extents[dimension + 1 :])
        place, further = np.divmod(np.arange(len(self.position) * (q - 1)), q - 1)
        x = place // chunk % q
        y = (x + 1 + further) % q
        before = base + place // (chunk * q) * (chunk * q)
        return make_step(
            self.position[place],
            self.position[place + (y - x) * chunk],
            before + (y if scatter else x) * chunk,
            chunk,
            base=before,
            span=chunk * q,
            combine=scatter,
        )

    def ring(self, dimension: int, base: int, *, scatter: bool) -> MessageRounds:
        """Go round all rings of one dimension, adding up what is passed on (or only passing on).

        Afterwards the position at place x of its ring has the sum of chunk x (or all chunks).
        """
        q = self.extents[dimension]
        chunk = math.prod(self.extents[dimension + 1 :])
        place = np.arange(len(self.position))
        x = place // chunk % q
        before = base + place // (chunk * q) * (chunk * q)
        after = place + ((x + self.direction) % q - x) * chunk
        return make_step(
            self.position[place],
            self.position[after],
            before + ((x - self.direction) % q if scatter else x) * chunk,
            chunk,
            base=before,
            span=chunk * q,
            shift=-self.direction * chunk,
            combine=scatter,
            repeat=q - 1,
            routes=self.routes if dimension == 0 else None,
        )


def lanes_script(group: CollectiveGroup, op: str, lanes: Sequence[Lane]) -> MessageSchedule:
    """Return the script of an all-reduce, a reduce-scatter or an all-gather on some lanes."""
    steps = together(_timelines(group.n, op, lanes, 0))
    return make_script(_sizes(group, lanes), steps, owner=_owners(lanes))


def streamed(
    group: CollectiveGroup, op: str, streaming: Sequence[Lane], last: Sequence[Lane]
) -> MessageSchedule:
    """Return the script of lanes whose rounds stream through each other, and then of others.

    A lane that is cut into many pieces has some of them in every round at once. Such lanes are one
    round of many waves: data pass them all, and every link is as busy as all of them make it. The
    lanes of `last` are sent round by round.
    """
    waves = []
    for timeline in _timelines(group.n, op, streaming, 0):
        number = 0
        for step in timeline:
            for turn in range(step.repeat):
                wave = np.full(len(step.source), number, np.int64)
                waves.append(replace(advanced(step, turn, 1), wave=wave))
                number += 1
    steps = [merged(waves)] if waves else []
    steps += together(_timelines(group.n, op, last, len(streaming)))
    lanes = (*streaming, *last)
    return make_script(_sizes(group, lanes), steps, owner=_owners(lanes))


def _timelines(n: int, op: str, lanes: Sequence[Lane], first: int) -> list[list[MessageRounds]]:
    """Return the steps of every lane; slots of the first are those of lane number `first`."""
    timelines = []
    for number, lane in enumerate(lanes, first):
        dimensions = range(len(lane.extents))
        steps = []
        if op != "all-gather":
            steps += [lane.pass_along(d, number * n, scatter=True) for d in dimensions]
        if op != "reduce-scatter":
            steps += [lane.pass_along(d, number * n, scatter=False) for d in reversed(dimensions)]
        timelines.append([step for step in steps if step.repeat])
    return timelines


def _owners(lanes: Sequence[Lane]) -> Ints:
    return np.concatenate([lane.position for lane in lanes])


def _sizes(group: CollectiveGroup, lanes: Sequence[Lane]) -> Floats:
    return np.concatenate([lane.share * group.part_bytes[lane.position] for lane in lanes])
