"""Asynchronous pipelines that never flush: one update's share of the stream of micro-batches.

A pipeline that waits for no step to end (PipeDream; continuous propagation) fills once a run.
What repeats is a period: every stage does the forward passes and the backward passes of as many
micro-batches as an update has, of different ones at the same time. So a period is played in which
everything that comes from outside of a task's own stage was made in the period before: what one
micro-batch waits for, the one before it has left. The length of the period is then that of the
slowest stage, message or sum of gradients, which is what PipeDream's planner minimises (Narayanan
et al., SOSP 2019, section 3.1).

At its beginning a stage holds what the micro-batches under way have left, and the versions of the
weights that they have met (sections 3.2 and 3.3).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from ridgeline.engine.blocks import NOTHING
from ridgeline.engine.program import Ints
from ridgeline.parallel.schedule import SCHEDULES, Orders, Slot
from ridgeline.workload.graph import Graph, Op, Pass, Role
from ridgeline.workload.liveness import MemoryEntry

_MANY = 2**31  # micro-batches of a stream


def is_endless(schedule: str, stages: int) -> bool:
    """Whether steps follow each other without a pause."""
    return stages > 1 and not SCHEDULES[schedule].flushes


def steady_orders(counts: Sequence[int], micro_batches: int) -> Orders:
    """Return a forward and a backward pass in turn, on every replica of every stage."""
    return [
        [Slot(phase, i) for i in range(replica, micro_batches, count) for phase in ("F", "B")]
        for count in counts
        for replica in range(count)
    ]


def period_before(tasks: Ints) -> Ints:
    """Return what each micro-batch meets of the one before it: [M, ...], the first one nothing."""
    shifted = np.roll(tasks, 1, axis=0)
    shifted[0] = NOTHING
    return shifted


def under_way(
    schedule: str, depth: int, graph: Graph, forward: Sequence[Sequence[MemoryEntry]]
) -> Mapping[str, int]:
    """Return the bytes by kind that a stage holds of micro-batches under way when a period begins.

    Parameters
    ----------
    depth
        Micro-batches under way on the stage; as many as there are stages from it on, where all have
        as many replicas.
    forward
        What each op of the forward pass of a micro-batch takes and gives back.
    """
    how = SCHEDULES[schedule]
    others = how.in_flight(0, depth, _MANY, 1) - 1
    left = Counter({kind: others * size for kind, size in left_by(forward).items()})
    older = how.weight_versions(0, depth, _MANY, 1) - 1
    left["weights"] += older * sum(graph.tensors[name].bytes for name in _met(graph))
    return left


def left_by(forward: Sequence[Sequence[MemoryEntry]]) -> Counter[str]:
    """Return the bytes by kind that the forward pass of a micro-batch leaves."""
    left: Counter[str] = Counter()
    for entry in (entry for entries in forward for entry in entries):
        left[entry.kind] += entry.start_bytes + entry.end_bytes
    return left


def _met(graph: Graph) -> set[str]:
    """Weights, or copies of them, that ops of a micro-batch read."""
    weights = {Role.WEIGHT, Role.WEIGHT_COPY}
    ops = (op for op in graph.ops if op.pass_ is not Pass.UPDATE and not _copies(op, graph))
    return {name for op in ops for name in op.inputs if graph.tensors[name].role in weights}


def _copies(op: Op, graph: Graph) -> bool:
    return bool(op.outputs) and graph.tensors[op.outputs[0]].role is Role.WEIGHT_COPY
