"""Cost cache shared by the searches of one model on one cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ridgeline.parallel.checkpointing.recompute import Mode
from ridgeline.parallel.lower import Moving
from ridgeline.parallel.op_pricer import OpPricer
from ridgeline.parallel.partition.overheads import Overheads
from ridgeline.parallel.sharding.divide import ShardedGraph
from ridgeline.parallel.sharding.tensor_2d import Grid
from ridgeline.study.planner.layer_extrapolation import ReducedModel, RepresentativeGraph
from ridgeline.study.planner.plan_class import Floats, Ints, PlanClass
from ridgeline.workload.model import Model

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
    recompute: Mode
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
    work, balanced, waited, once_s, besides
        Of the units of `told`, as `PlanClass`.
    """

    told: RepresentativeGraph
    home: Ints
    seconds: Floats
    added_s: Floats
    work: Floats
    balanced: Floats
    waited: Floats
    once_s: Floats
    besides: Overheads


@dataclass
class CostCache:
    """What groups on any number of devices of a cluster share, under one stack.

    Attributes
    ----------
    few
        What tells of the model.
    prices
        Of the kinds of devices of the cluster, as slow as this.
    sharded, told, divided, ops, groups
        By key, and by what else they follow from: what it is to move a byte, how slow a device is,
        and the times of collectives inside a group.
    """

    few: ReducedModel
    prices: dict[Slow, OpPricer] = field(default_factory=dict)
    sharded: dict[tuple[GroupKey, Model, Moving], ShardedGraph] = field(default_factory=dict)
    told: dict[tuple[GroupKey, Moving], RepresentativeGraph | None] = field(default_factory=dict)
    divided: dict[tuple[GroupKey, Moving], frozenset[str]] = field(default_factory=dict)
    ops: dict[CostKey, OpCosts] = field(default_factory=dict)
    groups: dict[CostKey, PlanClass] = field(default_factory=dict)
    held: dict[tuple[int, Mode, int], Floats] = field(default_factory=dict)
    energies: dict[int, float] = field(default_factory=dict)  # by identity; `prices` keeps these
    times: dict[int, float] = field(default_factory=dict)  # likewise
