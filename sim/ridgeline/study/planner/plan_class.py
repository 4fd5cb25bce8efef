"""Plan class: costs of plans of one kind, by units that a pipeline does not cut, and their cache.

Plans of one `GroupKey` have the same ops. What searches of one model on one cluster share is kept
in a `CostCache`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ridgeline.parallel.lower import Moving
from ridgeline.parallel.op_pricer import OpPricer
from ridgeline.parallel.partition.overheads import Overheads
from ridgeline.parallel.partition.partition_dp import (
    Pace,
    balance,
    balance_step,
    crowded_share,
)
from ridgeline.parallel.sharding.divide import ShardedGraph
from ridgeline.parallel.sharding.tensor_2d import Grid
from ridgeline.parallel.shorter_cut import are_tried
from ridgeline.study.planner.dependencies import LEAD, LINK, TRAIL, Crossing, ScheduleTrace
from ridgeline.study.planner.extrapolation import ReducedModel, RepresentativeGraph
from ridgeline.workload.model import Model

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
FORWARD, BACKWARD, WEIGHT_GRADIENT, ACCUMULATE, ENERGY = range(5)
"""Columns of `PlanClass.work`."""


def _by_layers(starts: Floats, stages: int) -> Ints:
    """Return [stages + 1] the first unit of every stage of equally many layers, and the number."""
    of = np.append(np.flatnonzero(starts), len(starts))
    parts = balance([1.0] * (len(of) - 1), stages)
    return of[[0, *(part.stop for part in parts)]].astype(np.int64)


class PlacedOps(NamedTuple):
    """Collectives of groups that lie unlike in their nodes, so that some take longer than others.

    Attributes
    ----------
    members, apart
        Ranks of a group, and how far they are apart.
    least_s
        Seconds of those of a micro-batch, of all units, in groups that are fastest at them.
    ratio
        [kinds] how much longer groups of each kind (`CommBounds.kinds`) take at least.
    more_s
        [kinds, ops] how many seconds longer groups of each kind take for every op; [0, 0]: not
        known, as nothing is priced yet.
    """

    members: int
    apart: int
    least_s: float
    ratio: Floats
    more_s: Floats


@dataclass(frozen=True)
class PlanClass:
    """Costs of one kind of plan by unit.

    Attributes
    ----------
    work
        [U, 5] by unit: seconds of one micro-batch forward, backward without gradients of weights,
        gradients of weights, of adding gradients to those of earlier micro-batches; joules.
    held
        [U, 15] bytes: optimizer state, weights that have a copy in another format, what is computed
        with, gradients, other; how much of the first two, of the next and of gradients is of
        experts that ranks share; kept of a micro-batch until the backward pass; most beside it then
        (see `unit_memory`).
    balanced
        [U, 3] seconds by which stages are balanced: forward, backward, gradients of weights.
    send_bytes
        [U] bytes that cross a cut behind each unit (`chain.Unit`).
    waited
        [U, 2] what of the first two columns of `work` is no op, but waiting for exchanges.
    tensor
        Ranks that share every op.
    played
        The ops in order, by direction.
    once_s
        [U, 2] seconds of what is done once a step, before all else and after it.
    crossing
        What units read of others.
    issued_s
        [U] seconds in which the host launches the ops of a micro-batch.
    besides
        What units have besides the work of a micro-batch.
    starts
        [U] 1 where a layer begins, if stages have equally many layers; None: equal times.
    named
        The same by every cut that a plan can name; None: not known.
    placed
        Collectives among its ops that some groups take longer for than `work` says.
    around
        [3, U, 3] forward, backward, backward without gradients of weights: seconds of the ops, of
        it and of units behind it, before its first one that waits for another unit; seconds of the
        ops of that unit after the one that it waits for; how many units away that is (0: it waits
        for none).
    """

    work: Floats
    held: Floats
    balanced: Floats
    around: Floats
    waited: Floats
    tensor: int
    played: tuple[ScheduleTrace, ...]
    once_s: Floats
    crossing: Crossing
    issued_s: Floats
    send_bytes: Floats
    besides: Overheads
    starts: Floats | None = None
    named: tuple[Floats, ...] | None = ()
    placed: tuple[PlacedOps, ...] = ()
    _cuts: dict[tuple[int, Pace | None], tuple[Ints, ...]] = field(default_factory=dict)

    def cuts(self, stages: int, pace: Pace | None = None) -> tuple[Ints, ...]:
        """Return each [stages + 1] the first unit of every stage, and the number of units.

        Several where one is taken when they have been played (`shorter_cut`); none where these are
        not known.
        """
        known = stages, pace
        if known not in self._cuts:
            if self.starts is not None:
                found: tuple[Ints, ...] = (_by_layers(self.starts, stages),)
            elif pace is None:
                parts = balance(self.balanced.sum(axis=1).tolist(), stages)
                found = (np.array([0, *(part.stop for part in parts)], np.int64),)
            else:
                found = self._played_cuts(stages, pace)
            self._cuts[known] = found
        return self._cuts[known]

    def _played_cuts(self, stages: int, pace: Pace) -> tuple[Ints, ...]:
        """Return the cut of `balance_step`, and where links count the others."""
        send_bytes = self.send_bytes.tolist()
        parts = balance_step(self.balanced, stages, send_bytes, pace, self.besides)
        best = [0, *(part.stop for part in parts)]
        share = crowded_share(self.balanced, best, send_bytes, pace, self.besides)
        own = np.array(best, np.int64)
        if not are_tried(share):
            return (own,)
        if self.named is None:
            return ()
        others = (_by_layers(starts, stages) for starts in self.named if starts.sum() >= stages)
        return (own, *others)

    def by_stage(self, cut: Ints) -> tuple[Floats, Floats]:
        """Return `work` and `held` summed over the units of each stage: [stages, 5] and [., 14]."""
        first = cut[:-1]
        return np.add.reduceat(self.work, first), np.add.reduceat(self.held, first)

    def seconds(self, direction: int) -> Floats:
        """Return [U] what the blocks of a direction take of each unit."""
        if direction == 0:
            return self.work[:, FORWARD]
        backward = self.work[:, BACKWARD]
        return backward + self.work[:, WEIGHT_GRADIENT] if direction == 1 else backward

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


BEST = -1
"""In the place of a kind of device: for each op the one that is best at it."""


class GroupKey(NamedTuple):
    """Plans of one key have the same ops.

    Attributes
    ----------
    kind
        Number of the kind of device whose times count: one that every stage of the plans has.
    """

    micro_batch: int
    tensor: int
    sequence: bool
    recompute: str
    expert: int
    context: int = 1
    ring: bool = False
    grid: Grid | None = None
    images: tuple[int, int] = (1, 1)
    kind: int = BEST


Slow = tuple[int, float, float]
"""Number of a kind of device of a cluster, and as of `op_pricer.OpPricer`: how much slower than
a typical device, and what it waits for before each op."""
CostKey = tuple[GroupKey, Moving, tuple[Slow, ...], tuple[float, ...]]
"""All that the costs of a group follow from."""


class OpCosts(NamedTuple):
    """What the ops of a group take.

    Attributes
    ----------
    told
        The graph.
    home
        [ops] unit of every op.
    seconds, added_s
        [ops] of a micro-batch; of adding its gradients to those of earlier ones.
    work, waited, once_s
        Of the units of `told`, as `PlanClass`.
    placed
        As `PlanClass`.
    """

    told: RepresentativeGraph
    home: Ints
    seconds: Floats
    added_s: Floats
    work: Floats
    waited: Floats
    once_s: Floats
    placed: tuple[PlacedOps, ...]


@dataclass
class CostCache:
    """What groups on any number of devices of a cluster share, under one stack.

    Attributes
    ----------
    few
        What tells of the model.
    prices
        Of the kinds of devices of the cluster, as slow as this.
    first
        Number of layers that is tried first for each kind of group (`PlanPricer._first_told`).
    sharded, told, divided, ops, groups
        By key, and by what else they follow from: what it is to move a byte, how slow a device is,
        and the times of collectives inside a group.
    exchanges
        By ranks that share experts: all-to-alls of one sample, and how many of each there are.
    """

    few: ReducedModel
    prices: dict[Slow, OpPricer] = field(default_factory=dict)
    first: dict[GroupKey, int] = field(default_factory=dict)
    sharded: dict[tuple[GroupKey, Model, Moving], ShardedGraph] = field(default_factory=dict)
    told: dict[tuple[GroupKey, Moving], RepresentativeGraph | None] = field(default_factory=dict)
    divided: dict[tuple[GroupKey, Moving], frozenset[str]] = field(default_factory=dict)
    ops: dict[CostKey, OpCosts] = field(default_factory=dict)
    groups: dict[CostKey, PlanClass] = field(default_factory=dict)
    held: dict[tuple[int, str, int], Floats] = field(default_factory=dict)
    exchanges: dict[int, dict[tuple[str, float], float]] = field(default_factory=dict)
    energies: dict[int, float] = field(default_factory=dict)  # by identity; `prices` keeps these
    times: dict[int, float] = field(default_factory=dict)  # likewise
