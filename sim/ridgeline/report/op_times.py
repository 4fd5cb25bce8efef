"""Op times of a step on a rank, for figures and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ridgeline.kernels import OpCost
from ridgeline.kernels.breakdown import TimeBreakdown, time_breakdown
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


class OpRow(NamedTuple):
    """One op of a step as a row of a table: its time in the step, and the parts of it.

    Attributes
    ----------
    step_s
        Over all micro-batches.
    share
        Of the step's time; what overlaps counts in full.
    limited_by
        What takes the largest part.
    parts
        Of one execution.
    """

    op: str
    kind: str
    pass_: str
    layer: str
    step_s: float
    share: float
    limited_by: str
    parts: TimeBreakdown
    executions: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; the parts of ``time_s`` are those of the step."""
        return {
            "op": self.op,
            "kind": self.kind,
            "pass": self.pass_,
            "layer": self.layer,
            "share": self.share,
            "limited_by": self.limited_by,
            "time_s": scaled(self.parts.to_dict(), self.executions),
        }


def scaled(parts: dict[str, Any], count: float) -> dict[str, Any]:
    """Multiply the parts of a time, stalls by level among them."""
    return {
        name: {level: count * s for level, s in value.items()} if name == "stall" else count * value
        for name, value in parts.items()
    }


def longest_ops(result: Result, most: int) -> list[OpRow]:
    """Return the ops that take longest over the step, the longest first, with the parts of each."""
    from ridgeline.report.accounting import limiting

    device = result.details.cluster.device
    timed = sorted((t for t in op_times(result) if t.time_s), key=lambda t: -t.step_s)[:most]
    return [
        OpRow(
            t.op.name,
            t.op.kind,
            t.op.pass_.value,
            t.op.layer,
            t.step_s,
            t.step_s / result.step_time_s,
            limiting(t.cost, device),
            time_breakdown(t.cost, device),
            t.step_s / t.time_s,
        )
        for t in timed
    ]
