"""Which layers of a network are fused: dynamic programming over where groups end.

Groups are ops that follow each other in the graph. The best schedule of the first j ops is the best
of the first i and one group of those between, or a stretch of ops that are not fused, over all i:

    best(j) = min over i < j of best(i) + min(group(i, j), stretch(i, j))

which is exact, since groups and stretches share nothing but the far memory. Every op by itself, and
the step as it runs without fusion, are among the schedules, so that none is worse than these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np

from ridgeline.errors import RidgelineError, nearest
from ridgeline.hardware.device import Device
from ridgeline.hardware.load import load_device
from ridgeline.kernels.fusion.groups import FusedGroup, FusionPricer, GroupCost, together
from ridgeline.kernels.fusion.pipelined import Incumbent, PipelinedPricer, Size, core_counts
from ridgeline.kernels.fusion.training_order import fusing_order
from ridgeline.units import show
from ridgeline.workload.graph import Graph
from ridgeline.workload.inference_mode import inference_mode
from ridgeline.workload.model import Model

Objective = Literal["time", "energy", "bytes"]
OBJECTIVES = ("time", "energy", "bytes")
MOST_FUSED = 12
"""Ops of a group, at most."""
SIZES: dict[str, Callable[[GroupCost], Size]] = {
    "time": lambda cost: (cost.time_s, cost.energy_j, cost.far_bytes),
    "energy": lambda cost: (cost.energy_j, cost.time_s, cost.far_bytes),
    "bytes": lambda cost: (cost.far_bytes, cost.time_s, cost.energy_j),
}
"""What is compared of costs, by objective."""


@dataclass(frozen=True)
class FusedSchedule:
    """A network cut into fused groups, beside the same layer by layer.

    Attributes
    ----------
    ends
        By group: why the op behind it is not in it.
    layer_by_layer
        What all ops take one after the other, operands in far memory.
    kept_whole
        The same where whole tensors stay on chip between ops, as far as they fit.
    """

    device: Device
    graph: Graph
    level: str
    room_bytes: float
    objective: Objective
    groups: tuple[FusedGroup, ...]
    ends: tuple[str, ...]
    layer_by_layer: GroupCost
    kept_whole: GroupCost

    @property
    def total(self) -> GroupCost:
        """What all groups take together."""
        return together(self.groups).cost

    def to_dict(self) -> dict[str, Any]:
        """Return the schedule as plain data; sizes in bytes, seconds, joules, FLOP."""
        return {
            "device": self.device.name,
            "network": self.graph.name,
            "batch": self.graph.batch,
            "level": self.level,
            "room_bytes": self.room_bytes,
            "objective": self.objective,
            "total": self.total._asdict(),
            "layer_by_layer": self.layer_by_layer._asdict(),
            "kept_whole": self.kept_whole._asdict(),
            "groups": [
                {
                    "ops": [op.name for op in self.graph.ops[group.first : group.end]],
                    "rows": group.rows,
                    "halo": group.halo,
                    "weights": group.weights,
                    "held_bytes": group.held_bytes,
                    "cores": group.cores,
                    "core_of": list(group.core_of),
                    **group.cost._asdict(),
                    **self.roofline(group),
                    "ends": end,
                }
                for group, end in zip(self.groups, self.ends, strict=True)
            ],
        }

    def roofline(self, group: FusedGroup) -> dict[str, float]:
        """Return where a group stands on the device's roofline.

        FLOP per byte of far memory, the FLOP/s that the fastest engine and the far memory's
        bandwidth allow at that, and the FLOP/s that are reached.
        """
        far = self.device.memory[self.device.far_memory].bandwidth
        assert far is not None
        used = {
            self.graph.tensors[op.inputs[0]].format
            for op in self.graph.ops[group.first : group.end]
            if op.loops is not None
        }
        rates = [
            rate.value
            for engine in self.device.engines.values()
            for name, rate in engine.rates.items()
            if not used or name in used
        ]
        peak = max(rates, default=math.inf)
        flops, bytes_ = group.flops, group.cost.far_bytes
        intensity = flops / bytes_ if bytes_ else math.inf
        return {
            "flops": flops,
            "flop_per_byte": intensity,
            "attainable_flop_per_s": min(peak, intensity * far.value),
            "flop_per_s": flops / group.cost.time_s if group.cost.time_s else 0.0,
        }


def fuse(
    model: Model | Graph,
    device: str | Device,
    *,
    batch: int = 1,
    precision: str = "fp32",
    objective: str = "time",
    longest: int = MOST_FUSED,
    training: bool = False,
) -> FusedSchedule:
    """Find which layers of a network are computed together on a device.

    Parameters
    ----------
    model
        A network, or a graph, which is taken as it is.
    device
        A device, or its name or path. A level of it must keep tensors between ops.
    batch, precision
        Of the network: samples, which are computed one after the other in a group, and formats.
    objective
        What is least: "time", "energy" or "bytes" of far memory; ties by the others.
    longest
        Ops of a group, at most.
    training
        Whether a network is fused in a training step, else in inference. What the backward pass
        reads is then written by the forward pass, once.

    Raises
    ------
    RidgelineError
        If the objective is unknown, no level keeps tensors, or no engine does the work.
    """
    if objective not in OBJECTIVES:
        raise RidgelineError(
            f"there is no objective {objective!r}{nearest(objective, OBJECTIVES)} (allowed: "
            f"{', '.join(OBJECTIVES)})"
        )
    if longest < 1:
        raise RidgelineError(f"a group has at least 1 op, found {longest}")
    machine = load_device(device) if isinstance(device, str) else device
    graph = model
    if not isinstance(graph, Graph):
        graph = (
            fusing_order(graph.training(batch, precision))
            if training
            else inference_mode(graph.inference(batch, precision))
        )
    pricer = FusionPricer(graph, machine)
    size = SIZES[objective]
    counts = core_counts(machine)
    pipelined = [
        PipelinedPricer(pricer, count, fewer)
        for fewer, count in zip((0, *counts), counts, strict=False)
    ]
    groups = _best(pricer, pipelined, longest, size)
    return FusedSchedule(
        machine,
        graph,
        pricer.level,
        pricer.room_bytes,
        cast("Objective", objective),
        tuple(groups),
        tuple(_why(pricer, group, len(graph.ops), longest) for group in groups),
        together([pricer.alone(at, at + 1)[0] for at in range(len(graph.ops))]).cost,
        together(pricer.alone(0, len(graph.ops))).cost,
    )


def _best(
    pricer: FusionPricer,
    pipelined: Sequence[PipelinedPricer],
    longest: int,
    size: Callable[[GroupCost], Size],
) -> list[FusedGroup]:
    """Return the groups of the best schedule."""
    ops = len(pricer.graph.ops)
    best: list[Size] = [(0.0, 0.0, 0.0)]
    last: list[list[FusedGroup]] = [[]]
    for end, totals in enumerate(pricer.unfused.totals(), 1):
        columns = np.array([size(GroupCost(*column)) for column in np.eye(totals.shape[1])]).T
        sums = np.array(best) + totals @ columns.T
        stretch = pricer.alone(int(np.lexsort(sums.T[::-1])[0]), end)
        found = [(_after(best[stretch[0].first], size(together(stretch).cost)), stretch)]
        for first in range(max(0, end - longest), end):
            found += [
                (_after(best[first], size(group.cost)), [group])
                for group in pricer.groups(first, end)
            ]
        chosen = min(found, key=lambda each: each[0])
        for first in range(end - 2, max(0, end - longest) - 1, -1):
            for cores in pipelined:
                known = Incumbent(size, best[first], chosen[0])
                if (better := cores.best(first, end, known)) is not None:
                    chosen = known.best, [better]
        best.append(chosen[0])
        last.append(chosen[1])
    groups: list[FusedGroup] = []
    at = ops
    while at:
        groups = [*last[at], *groups]
        at = last[at][0].first
    return groups


def _after(before: Size, more: Size) -> Size:
    a, b, c = (x + y for x, y in zip(before, more, strict=True))
    return a, b, c


def _why(pricer: FusionPricer, group: FusedGroup, ops: int, longest: int) -> str:
    """Say why the op behind a group is not in it."""
    if group.end == ops:
        return "the network ends"
    op = pricer.graph.ops[group.end]
    if not pricer.is_cut(group.end):
        return f"{op.name} ({op.kind}) cannot be cut into rows"
    if group.end - group.first >= longest:
        return f"a group has at most {longest} ops"
    region = pricer.region(group.first, group.end + 1)
    if region is None:
        return f"{op.name} ({op.kind}) does not wait for all of the group"
    least = pricer.least_held(region)
    if least > pricer.room_bytes:
        return (
            f"with {op.name} at least {show(least, 'B')} would be held, {pricer.level} has room "
            f"for {show(pricer.room_bytes, 'B')}"
        )
    return f"with {op.name} it is no better"
