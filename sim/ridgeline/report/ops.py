"""The ops of a step with the time that each takes on a rank, for figures and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ridgeline.kernels import OpCost
from ridgeline.workload.graph import Op, Pass

if TYPE_CHECKING:
    from ridgeline.report.result import Result


class OpTime(NamedTuple):
    """One op of the graph: what it costs once, and its time in the whole step."""

    op: Op
    cost: OpCost
    time_s: float
    step_s: float
    """Over all micro-batches."""


def op_times(result: Result) -> list[OpTime]:
    """Return every op of the graph, in order."""
    details = result.details
    device, repeats = details.cluster.device, details.plan.micro_batches
    times = []
    for op, cost in zip(details.lowered.ops, details.lowered.op_costs, strict=True):
        time_s = cost.time_s(device)
        times.append(OpTime(op, cost, time_s, time_s * (1 if op.pass_ is Pass.UPDATE else repeats)))
    return times
