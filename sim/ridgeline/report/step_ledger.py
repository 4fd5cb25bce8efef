"""Fill the ledger of a step from its played program: equal tasks are counted together."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ridgeline.kernels import OpCost
from ridgeline.parallel.lower import COLLECTIVE
from ridgeline.report.ledger import KEPT, STATIC, WAITING, WHOLE, Ledger, LedgerEntry
from ridgeline.report.result import Result
from ridgeline.workload.fused_op import FusedOp
from ridgeline.workload.graph import Graph, Op, Pass


def ledger(result: Result) -> Ledger:
    """Return the ledger of a result; equal tasks are counted together, never one by one."""
    details = result.details
    program, lowered = details.timeline.program, details.lowered
    known = {op.name: op for op in lowered.ops}
    keys, of_task = np.unique(
        np.stack([program.label, program.kind, program.cost]), axis=1, return_inverse=True
    )
    times = np.bincount(of_task.ravel(), weights=program.multiplicity, minlength=keys.shape[1])
    sums: dict[tuple[str, ...], tuple[float, float]] = {}
    for label, kind, row, count in zip(*keys.tolist(), times.tolist(), strict=True):
        name, pass_ = program.label_names[label], program.kind_names[kind]
        whole = _Counted(known.get(name), lowered.cost_of_row.get(row), lowered.graph)
        for event in range(program.event_ptr[row], program.event_ptr[row + 1]):
            account = program.accounts[program.event_account[event]]
            place, unit, units = account.place, account.unit, float(program.event_count[event])
            for one, share in whole.layers_at(place, unit, pass_):
                of_op = one.named(name, pass_)
                for operand, tensor, part in _operands(unit, place, share * units, of_op[-1], one):
                    key = (*of_op, operand, tensor, account.component, place, unit)
                    amount, energy_j = sums.get(key, (0.0, 0.0))  # ranks have rows of their own
                    more = count * part
                    sums[key] = amount + more, energy_j + more * account.price_j
        for level, size in whole.cost.kept_bytes.items() if whole.cost is not None else ():
            component = details.cluster.device.memory[level].kind
            key = (*whole.named(name, pass_), WHOLE, "", component, level, KEPT)
            sums[key] = sums.get(key, (0.0, 0.0))[0] + count * size, 0.0
    entries = [LedgerEntry._make((*key, *values)) for key, values in sums.items()]
    return Ledger((*entries, *_static(result)))


class _Counted(NamedTuple):
    """An op of a step, if the task is one, with its price and the graph of its operands."""

    op: Op | None
    cost: OpCost | None
    graph: Graph

    def named(self, label: str, pass_: str) -> tuple[str, str, str, str]:
        """Return the first columns of its rows."""
        if self.op is None:
            return label, "", pass_, pass_
        is_layer = self.op.name != label
        return self.op.name, self.op.layer, self.op.kind, self.op.pass_ if is_layer else pass_

    def layers_at(self, place: str, unit: str, pass_: str) -> list[tuple[_Counted, float]]:
        """Return what has events at a place, and the share of each: of fused layers, these."""
        if not isinstance(self.op, FusedOp) or self.op.layers is None or self.cost is None:
            return [(self, 1.0)]
        events = [(one.flops if unit == "FLOP" else one.traffic_bytes) for one in self.cost.parts]
        counts = [by_place.get(place, 0.0) for by_place in events]
        total = math.fsum(counts)
        if pass_ == COLLECTIVE or not total:
            return [(self, 1.0)]
        layers = zip(self.op.parts, self.cost.parts, strict=True)
        each = [_Counted(op, cost, self.op.layers.graph) for op, cost in layers]
        return [(one, n / total) for one, n in zip(each, counts, strict=True) if n]


def _operands(
    unit: str, place: str, units: float, pass_: str, of: _Counted
) -> Iterator[tuple[str, str, float]]:
    """Split the units of one event into (operand, tensor, units), which sum to them."""
    op, cost, graph = of
    if unit != "B":
        yield WHOLE, "", units
    elif pass_ == COLLECTIVE:
        yield "message", "", units
    elif op is None or cost is None:
        yield WHOLE, "", units
    elif place in cost.moved:
        moved = cost.moved[place]
        for name, size in zip(op.inputs[:2], (moved.a, moved.b), strict=False):
            yield graph.tensors[name].role.value, name, size
        yield from _tensors(op, graph, moved.rest, first_input=2)
        if moved.partial:
            yield "partial-sum", op.outputs[0], moved.partial
    else:
        yield from _tensors(op, graph, units, first_input=0)


def _tensors(
    op: Op, graph: Graph, units: float, first_input: int
) -> Iterator[tuple[str, str, float]]:
    """Split bytes in the ratio in which an op streams its tensors; one used twice stands once."""
    streamed: dict[str, float] = defaultdict(float)
    passes = op.input_passes or (1,) * len(op.inputs)
    written = op.output_passes or (1,) * len(op.outputs)
    for name, times in (
        *zip(op.inputs[first_input:], passes[first_input:], strict=True),
        *zip(op.outputs, written, strict=True),
    ):
        streamed[name] += float(times * graph.tensors[name].bytes)
    total = math.fsum(streamed.values())
    for name, size in streamed.items():
        if size:
            yield graph.tensors[name].role.value, name, units * (size / total)


def _static(result: Result) -> Iterator[LedgerEntry]:
    """Idle power over the step, by what the devices were doing.

    Where tasks of one device overlap, its time is shared out in the ratio of their durations.
    """
    timeline, details = result.details.timeline, result.details
    program, makespan_s = timeline.program, timeline.makespan_s
    power_w = details.cluster.device.idle_power.value
    passes = {pass_.value for pass_ in Pass}
    computing = np.array([name in passes for name in program.kind_names])[program.kind]
    ranks, n_kinds = len(program.rank_multiplicity), len(program.kind_names)
    cell = program.stream_rank[program.stream].astype(np.int64) * n_kinds + program.kind
    busy = np.bincount(
        cell, weights=timeline.durations_s * computing, minlength=ranks * n_kinds
    ).reshape(ranks, n_kinds)
    overlap = np.maximum(1.0, busy.sum(axis=1, keepdims=True) / makespan_s if makespan_s else 1.0)
    device_s = program.rank_multiplicity @ (busy / overlap)
    spent = dict(zip(program.kind_names, device_s.tolist(), strict=True))
    spent = {name: seconds for name, seconds in spent.items() if name in passes}
    whole = details.plan.devices * makespan_s
    spent[WAITING] = max(whole - math.fsum(spent.values()), 0.0)
    for pass_, seconds in spent.items():
        yield LedgerEntry(
            STATIC, "", STATIC, pass_, WHOLE, "", STATIC, "device", "s", seconds, power_w * seconds
        )
