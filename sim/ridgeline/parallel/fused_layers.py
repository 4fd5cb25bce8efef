"""Fused layers of a step: groups of its ops as one op each, where a stack asks for them.

The graph of a device is cut as `kernels.fusion` finds best for the device, and stays as it is where
its step is no better so. Ops between the groups find their operands where that schedule says.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from ridgeline.errors import ConfigError
from ridgeline.kernels.fusion.groups import FusedGroup, GroupCost
from ridgeline.kernels.fusion.schedule import SIZES, FusedSchedule, fuse
from ridgeline.kernels.fusion.training_order import fusing_order
from ridgeline.parallel.op_pricer import EqualDevice, OpPricer
from ridgeline.parallel.plan.resolved import ResolvedPlan
from ridgeline.workload.fused_op import FusedOp, FusedRows, fused_op, with_fused_ops
from ridgeline.workload.graph import Graph, Same


def with_fused_layers(
    graph: Graph, plan: ResolvedPlan, prices: OpPricer, *, several_kinds: bool
) -> Graph:
    """Return the graph of a device with groups of layers as one op each, if its step is better so.

    Parameters
    ----------
    several_kinds
        Whether the step has devices of several kinds.

    Raises
    ------
    RidgelineError
        If no level of the device keeps tensors between ops, or devices are of several kinds.
    """
    objective = plan.stack.kernels.fused_layers
    if objective is None:
        return graph
    if several_kinds:
        raise ConfigError(
            "layers are fused for one kind of device, and the cluster has several",
            field="software.kernels.fused_layers",
        )
    fused = _fused(Same(graph), EqualDevice(prices.device), objective)
    count = plan.micro_batches
    size, staying = SIZES[objective], prices.staying(graph, count, 1)
    apart = size(_cost(prices.totals(graph, count, staying)))
    return fused if size(_cost(prices.totals(fused, count))) < apart else graph


def _cost(totals: tuple[float, float, float]) -> GroupCost:
    return GroupCost(*totals, 0.0, 0.0)


@lru_cache(maxsize=8)
def _fused(same: Same, device: EqualDevice, objective: str) -> Graph:
    """Find the groups; the same graph is searched once for equal devices."""
    ordered = fusing_order(same.graph)
    found = fuse(ordered, device.device, objective=objective)
    groups = [group for group in found.groups if group.rows]
    if not groups:
        return same.graph
    spans = {(group.first, group.end): _as_op(group, found) for group in groups}
    ops = list(ordered.ops)
    for group in found.groups:
        if not group.rows:
            ops[group.first] = replace(ops[group.first], found=group.found)
    return with_fused_ops(replace(ordered, ops=tuple(ops)), spans)


def _as_op(group: FusedGroup, found: FusedSchedule) -> FusedOp:
    how = FusedRows(group.rows, group.halo, group.weights, group.cores, group.core_of, group.steps)
    return fused_op(found.graph.ops[group.first : group.end], found.graph, group.results, how)
