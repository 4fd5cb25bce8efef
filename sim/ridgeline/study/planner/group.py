"""Costs of one kind of plan, by units that a pipeline does not cut."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ridgeline.parallel.stages import balance
from ridgeline.study.planner.links import LEAD, LINK, TRAIL

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
FORWARD, BACKWARD, WEIGHT_GRADIENT, ACCUMULATE, ENERGY = range(5)
"""Columns of `Group.work`."""


class Wait(NamedTuple):
    """That a stage waits for another one.

    Attributes
    ----------
    source
        Number of the stage that it waits for; -1: for none.
    lead_s
        What it can do before.
    trail_s
        What the other one does after that which is waited for.
    """

    source: int
    lead_s: float
    trail_s: float


@dataclass(frozen=True)
class Group:
    """Costs of one kind of plan by unit.

    Attributes
    ----------
    work
        [U, 5] by unit: seconds of one micro-batch forward, backward without gradients of weights,
        gradients of weights, of adding gradients to those of earlier micro-batches; joules.
    held
        [U, 13] bytes: optimizer state, weights that have a copy in another format, what is computed
        with, gradients, other; how much of the first two, of the next and of gradients is of
        experts that ranks share; kept of a micro-batch until the backward pass; most beside it then
        (see `held_by_unit`).
    balanced
        [U] time by which stages are balanced.
    waited
        [U, 2] what of the first two columns of `work` is no op, but waiting for exchanges.
    largest
        Bytes of the largest gradient, or weight that is computed with.
    around
        [3, U, 3] forward, backward, backward without gradients of weights: seconds of the ops
        before the first one that waits for another unit, seconds of the ops of that unit after the
        one that it waits for, and how many units away that is (0: it waits for none).
    """

    work: Floats
    held: Floats
    balanced: Floats
    around: Floats
    waited: Floats
    largest: float
    _cuts: dict[int, Ints] = field(default_factory=dict)

    def cut(self, stages: int) -> Ints:
        """Return [stages + 1] the first unit of every stage, and the number of units."""
        if stages not in self._cuts:
            parts = balance(self.balanced.tolist(), stages)
            self._cuts[stages] = np.array([p.first for p in parts] + [parts[-1].stop], np.int64)
        return self._cuts[stages]

    def by_stage(self, stages: int) -> tuple[Floats, Floats]:
        """Return `work` and `held` summed over the units of each stage: [stages, 5] and [., 13]."""
        first = self.cut(stages)[:-1]
        return np.add.reduceat(self.work, first), np.add.reduceat(self.held, first)

    def seconds(self, direction: int) -> Floats:
        """Return [U] what the blocks of a direction take of each unit."""
        if direction == 0:
            return self.work[:, FORWARD]
        backward = self.work[:, BACKWARD]
        return backward + self.work[:, WEIGHT_GRADIENT] if direction == 1 else backward

    def waits(self, stages: int, direction: int) -> list[Wait]:
        """Return for which other stage each one waits in one direction, and where in its work."""
        cut, around = self.cut(stages).tolist(), self.around[direction].tolist()
        total = np.concatenate(([0.0], np.cumsum(self.seconds(direction)))).tolist()
        found = []
        for a, b in pairwise(cut):
            order = range(a, b) if direction == 0 else range(b - 1, a - 1, -1)
            wait = Wait(-1, 0.0, 0.0)
            for u in order:
                away = int(around[u][LINK])
                v = u - away if direction == 0 else u + away
                if a <= v < b:
                    continue
                source = bisect_right(cut, v) - 1
                if direction == 0:
                    lead, trail = total[u] - total[a], total[cut[source + 1]] - total[v + 1]
                else:
                    lead, trail = total[b] - total[u + 1], total[v] - total[cut[source]]
                wait = Wait(source, lead + around[u][LEAD], trail + around[u][TRAIL])
                break
            found.append(wait)
        return found

    def linked_s(self) -> float:
        """Return seconds of the units that all later ones wait for, forward and backward."""
        both = np.ones(len(self.work), np.bool_)
        seconds = np.zeros(len(self.work))
        for direction in (0, 1):
            around, n = self.around[direction], len(self.work)
            u = n - 1 if direction == 0 else 0
            on = np.zeros(n, np.bool_)
            part = np.zeros(n)
            part += self.seconds(direction)
            while True:
                on[u] = True
                part[u] -= around[u, LEAD]
                away = int(around[u, LINK])
                if away == 0:
                    break
                v = u - away if direction == 0 else u + away
                part[v] -= around[u, TRAIL]
                u = v
            both &= on
            seconds += np.maximum(part, 0.0)
        return float(seconds[both].sum())
