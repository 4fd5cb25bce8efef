"""Exposed all-to-all: expert exchange that no compute hides."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from ridgeline.parallel.sharding.shard import COLLECTIVES
from ridgeline.study.planner.execution_order import runs_once_per_step
from ridgeline.workload.graph import Graph, Op, Pass

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def waits(
    graph: Graph, home: Ints, time_s: Floats, added_s: Floats, sent: Mapping[int, float]
) -> Floats:
    """Return [ops, 2] least seconds that ops wait in the forward and in the backward pass.

    An all-to-all begins when that is made which it sends, and ops go on beside it until the first
    one that reads what it brings: that one waits for what is left of it. Those of one rank go one
    after the other, so that their times less what runs beside each may be added up: what runs
    beside two of them is taken off twice. Gradients of weights that read it do not count as the
    first, as a schedule may put them off. What is done again does not wait for the gradient that a
    stage gets, but what reads it may: so the time is that of the op that makes it.

    Parameters
    ----------
    home
        [ops] unit of every op.
    time_s, added_s
        [ops] seconds of every op, or collective that no op runs beside, and of adding its gradients
        to those of earlier micro-batches.
    sent
        Seconds of every collective that ops may run beside, by place; 0: not counted.
    """
    found = np.zeros((len(graph.ops), 2))
    for column, forward in enumerate((True, False) if sent else ()):
        played = [i for i, op in enumerate(graph.ops) if _is_played(op, graph, forward)]
        until = np.zeros(len(graph.ops) + 1)
        until[np.array(played, np.int64) + 1] = (time_s + added_s)[played]
        until = np.cumsum(until)
        maker = {name: i for i in played for name in graph.ops[i].outputs}
        for at, i in enumerate(played):
            if i not in sent:
                continue
            op = graph.ops[i]
            source = max((maker[name] for name in op.inputs if name in maker), default=i)
            reader = _first_reader(graph, played[at + 1 :], op, sent)
            if reader is None or not home[source] == home[i] == home[reader]:
                continue
            own_s = 0.0 if source in sent else float(time_s[source])
            beside_s = until[reader] - until[source] - own_s
            at_once = _is_again(graph.ops[source]) and not _is_again(graph.ops[reader])
            between = (graph.ops[k] for k in played if source < k < reader)
            if at_once and not all(_is_again(one) or one.kind in COLLECTIVES for one in between):
                continue  # what is made between them would be made as late
            found[source if at_once else reader, column] += max(0.0, sent[i] - float(beside_s))
    return found


def _is_played(op: Op, graph: Graph, forward: bool) -> bool:
    """Whether an op is played in the forward, or in the backward pass of a micro-batch."""
    if op.pass_ is Pass.UPDATE or runs_once_per_step(op, graph):
        return False
    return (op.pass_ is Pass.FORWARD) is forward


def _is_again(op: Op) -> bool:
    """Whether an op of the forward pass is repeated for the backward pass."""
    return op.pass_ is Pass.RECOMPUTE


def _first_reader(graph: Graph, later: list[int], of: Op, sent: Mapping[int, float]) -> int | None:
    """Return the first op that has to wait for what an all-to-all brings."""
    brought = set(of.outputs)
    for i in later:
        op = graph.ops[i]
        if op.pass_ is Pass.WEIGHT_GRADIENT or i in sent:
            continue
        if not brought.isdisjoint(op.inputs):
            return i
    return None
