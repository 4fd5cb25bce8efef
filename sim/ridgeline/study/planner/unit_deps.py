"""Unit dependencies within a micro-batch: which unit waits for which, and where."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ridgeline.study.planner.execution_order import runs_once_per_step
from ridgeline.workload.graph import Graph, Op, Pass

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
LEAD, TRAIL, LINK = range(3)
DIRECTIONS = 3
"""Forward, backward, and backward without gradients of weights."""


def links(graph: Graph, home: Ints, time_s: Floats) -> Floats:
    """Return which unit each one waits for in a micro-batch: see `PlanClass.around`."""
    n = int(home.max(initial=0)) + 1
    around = np.zeros((DIRECTIONS, n, 3))
    for direction in range(DIRECTIONS):
        ops = [i for i, op in enumerate(graph.ops) if _goes(op, graph, direction)]
        every = np.array(ops, np.int64)
        place = {i: at for at, i in enumerate(ops)}
        maker = {name: i for i in ops for name in graph.ops[i].outputs}
        of_unit: dict[int, list[int]] = {}
        for i in ops:
            of_unit.setdefault(int(home[i]), []).append(i)
        for u, mine in of_unit.items():
            for i in mine:
                of = [maker[name] for name in graph.ops[i].inputs if name in maker]
                of = [m for m in of if (home[m] < u if direction == 0 else home[m] > u)]
                if not of:
                    continue
                nearest = min(of, key=lambda m: (abs(int(home[m]) - u), -place[m]))
                v = int(home[nearest])
                # Beside its own: ops of units behind it that come first, as stretches of several
                # units do that are done again.
                behind = home[every] >= u if direction == 0 else home[every] <= u
                around[direction, u] = (
                    time_s[every[behind & (every < i)]].sum(),
                    sum(time_s[k] for k in of_unit[v] if k > nearest),
                    abs(v - u),
                )
                break
    return around


def _goes(op: Op, graph: Graph, direction: int) -> bool:
    """Whether an op is played in the blocks of a direction."""
    if op.pass_ is Pass.UPDATE or runs_once_per_step(op, graph):
        return False
    if direction == 0 or op.pass_ is Pass.FORWARD:
        return direction == 0 and op.pass_ is Pass.FORWARD
    return direction == 1 or op.pass_ is not Pass.WEIGHT_GRADIENT
