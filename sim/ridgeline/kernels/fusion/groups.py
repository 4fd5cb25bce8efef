"""Time, energy and far-memory bytes of a fused group of layers on one device.

Between the layers of a group rows stay in the farthest level on chip that keeps tensors. A step
computes some rows of the last layer and what they need of the others (`line_buffers`), each op as a
piece by itself that finds its operands on chip (`row_ops`, priced like any other op). Meanwhile the
far memory brings the next step's rows of what comes from outside, and takes the rows that leave:

    time = first load + sum over steps of max(ops, (next load + store) / bandwidth)

Weights of the group are held, loaded once for all samples, or, where they do not fit beside the
rows, streamed: all of them in every step, one layer ahead. Where the level has no room for weights
at all, each op fetches its own. A group is launched once for each op.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import RidgelineError
from ridgeline.hardware.device import Device
from ridgeline.kernels.cache_residency import keeping, room
from ridgeline.kernels.cost import OpCost, op_energy_j, peak_rates, price_of_place
from ridgeline.kernels.fusion.line_buffers import Halo, RowSchedule, held_bytes, row_schedule
from ridgeline.kernels.fusion.regions import (
    FusedRegion,
    RowWindow,
    region_of,
    sum_bytes,
    windows,
)
from ridgeline.kernels.fusion.row_ops import on_rows
from ridgeline.kernels.fusion.unfused import UnfusedStretches
from ridgeline.kernels.op_signature import OpSignature, described
from ridgeline.kernels.pricing import price_all
from ridgeline.workload.graph import Graph, Op

Weights = Literal["held", "streamed"]
Floats = NDArray[np.float64]


class GroupCost(NamedTuple):
    """What a group of layers takes, for all samples.

    Attributes
    ----------
    far_bytes
        That pass the farthest memory.
    compute_s, far_s
        Time of all ops, and of all loads and stores, each alone.
    """

    time_s: float
    energy_j: float
    far_bytes: float
    compute_s: float
    far_s: float


@dataclass(frozen=True)
class FusedGroup:
    """Consecutive layers that are computed together, and how.

    Attributes
    ----------
    first, end
        Places of its ops in the graph.
    rows
        Of the last layer's output in a step; 0: one op by itself, as it is priced alone.
    halo
        What is done with rows that two steps need.
    weights
        Whether weights stay on chip.
    held_bytes
        The most that is held on chip at once.
    cores
        Equal cores of the device that the group is given to; 1: each op has all of the device.
    core_of
        Of several cores: by op, the one that computes it.
    flops
        Of the layers' contractions and vector work, without what is computed twice.
    """

    first: int
    end: int
    rows: int
    halo: Halo
    weights: Weights
    held_bytes: float
    flops: float
    cost: GroupCost
    cores: int = 1
    core_of: tuple[int, ...] = ()


class FusedPiece(NamedTuple):
    """What one op on some rows takes, its operands on chip."""

    time_s: float
    energy_j: float
    far_bytes: float


def _without_level(device: Device) -> str:
    """Say why no level keeps tensors, and which could."""
    far = device.far_memory
    if device.memory[far].kind == "sram":
        return (
            f"{device.name} has no memory behind {far}, where all tensors are on chip as they are"
        )
    able = [
        name
        for name, level in device.memory.items()
        if level.kind == "sram"
        and keeping(
            device.model_copy(
                update={"memory": device.memory | {name: level.model_copy(update={"keeps": True})}}
            )
        )
    ]
    hint = "; the memories of its cores keep what all ops need"
    if able:
        hint = f"; set one, device.memory.{able[-1]}.keeps=true"
    return f"{device.name} describes no level on chip that keeps tensors between ops{hint}"


class FusionPricer:
    """Prices groups of a graph's ops on a device; pieces that are alike are priced once.

    Raises
    ------
    RidgelineError
        If no level of the device keeps tensors.
    """

    def __init__(self, graph: Graph, device: Device) -> None:
        levels = keeping(device)
        if not levels:
            raise RidgelineError(_without_level(device))
        self.graph, self.device = graph, device
        self.level = levels[-1]
        self.room_bytes = room(device, self.level)
        self.rates = peak_rates(device)
        far = device.memory[device.far_memory]
        assert far.bandwidth is not None
        self.far_rate = far.bandwidth.value * far.achievable.value
        self.far_j = price_of_place(device, device.far_memory).price_j
        near = device.memory[self.level]
        self.near_rate = (
            math.inf if near.bandwidth is None else near.bandwidth.value * near.achievable.value
        )
        self.near_j = price_of_place(device, self.level).price_j
        self.launch_s = device.launch_latency.value
        self._on_chip, self._far = len(levels) - 1, len(levels)
        self.takes_weights = "b" in near.holds
        self._windows = [windows(op, graph) for op in graph.ops]
        self._pieces: dict[tuple[int, int], FusedPiece] = {}
        self._kinds: dict[OpSignature, FusedPiece] = {}
        read_last = {name: at for at, op in enumerate(graph.ops) for name in op.inputs}
        self._read_last = read_last

    def priced(self, kinds: Sequence[OpSignature]) -> Floats:
        """Return what ops by themselves cost, a `GroupCost` in each row."""
        far, found = self.device.far_memory, []
        for cost in price_all(kinds, self.device):
            spans = cost.spans(self.rates)
            energy_j = op_energy_j(cost, self.device)["total"]
            far_bytes, far_s = cost.traffic_bytes.get(far, 0.0), spans.memory_s.get(far, 0.0)
            found.append(GroupCost(spans.time_s, energy_j, far_bytes, spans.compute_s, far_s))
        return np.array(found)

    @cached_property
    def unfused(self) -> UnfusedStretches:
        """What ops cost that are in no group."""
        return UnfusedStretches(self.graph, self.device, self.priced)

    def alone(self, first: int, end: int) -> list[FusedGroup]:
        """Return ops that follow each other, each by itself, between two groups."""
        costs = [GroupCost(*row.tolist()) for row in self.unfused.each(first, end)]
        ops = self.graph.ops
        return [
            FusedGroup(
                at, at + 1, 0, "line-buffer", "streamed", 0.0, self.flops(ops[at : at + 1]), cost
            )
            for at, cost in enumerate(costs, first)
        ]

    def flops(self, ops: Iterable[Op]) -> float:
        """Return the FLOP of ops."""
        return float(sum(op.matrix_flops + op.vector_flops for op in ops))

    def region(self, first: int, end: int) -> FusedRegion | None:
        """Return ops that follow each other as a region; None if they cannot be cut into rows."""
        if any(self._windows[at] is None for at in range(first, end)):
            return None
        ops = self.graph.ops[first:end]
        leaving = frozenset(
            name
            for op in ops
            for name in op.outputs
            if self._read_last.get(name, end) >= end or name == self.graph.loss
        )
        return region_of(ops, self.graph, leaving)

    def is_cut(self, at: int) -> bool:
        """Tell whether an op can be cut into rows."""
        return self._windows[at] is not None

    def least_held(self, region: FusedRegion) -> float:
        """Return the fewest bytes with which a region can be computed."""
        schedule = row_schedule(region, 1, "line-buffer")
        again = row_schedule(region, 1, "recompute")
        rows = min(held_bytes(schedule, True), held_bytes(again, True))
        return rows + region.sum_bytes + min(size for _, size in self.weights_of(region))

    def weights_of(self, region: FusedRegion) -> Sequence[tuple[Weights, float]]:
        """Return the bytes of weights on chip: all, or those of an op and of the next one."""
        if not self.takes_weights:
            return (("streamed", 0.0),)
        sizes = [op.weight_bytes for op in region.ops]
        pairs = [size + after for size, after in zip(sizes, [*sizes[1:], sizes[0]], strict=True)]
        return ("held", math.fsum(sizes)), ("streamed", max(pairs))

    def groups(self, first: int, end: int) -> Iterator[FusedGroup]:
        """Price all ways to compute some ops together that fit: rows a step, halo, weights."""
        region = self.region(first, end)
        if region is None:
            return
        flops = self.flops(self.graph.ops[first:end])
        again = end - first > 1 and not region.sum_bytes  # sums count every row once
        halos: tuple[Halo, ...] = ("line-buffer", "recompute") if again else ("line-buffer",)
        for halo in halos:
            for tile in row_tiles(region.rows):
                schedule = row_schedule(region, tile, halo)
                rows_bytes = held_bytes(schedule, True) + region.sum_bytes
                fitting = [
                    (weights, rows_bytes + size)
                    for weights, size in self.weights_of(region)
                    if rows_bytes + size <= self.room_bytes
                ]
                if not fitting:
                    break  # larger tiles hold no less
                for weights, held in fitting:
                    cost = self._cost(first, schedule, weights)
                    yield FusedGroup(first, end, tile, halo, weights, held, flops, cost)

    def _cost(self, first: int, schedule: RowSchedule, weights: Weights) -> GroupCost:
        region, steps = schedule.region, schedule.steps
        ops_s, ops_j, ops_far = np.zeros(steps), 0.0, 0.0
        for place, op in enumerate(region.ops):
            made = schedule.made[op.writes].rows
            for rows in np.unique(made).tolist():
                if rows:
                    piece = self.piece(first + place, rows)
                    count = int((made == rows).sum())
                    ops_s[made == rows] += piece.time_s
                    ops_j += count * piece.energy_j
                    ops_far += count * piece.far_bytes
        load, store = np.zeros(steps), np.zeros(steps)
        for tensor, made_rows, size in zip(
            region.tensors, schedule.made, stored_bytes(region), strict=True
        ):
            if tensor.producer < 0:
                load += made_rows.rows * tensor.row_bytes
            else:
                store += made_rows.rows * size
        weight_bytes = math.fsum(op.weight_bytes for op in region.ops)
        once = weight_bytes if weights == "held" else 0.0
        if weights == "streamed" and self.takes_weights:  # else ops fetch them themselves
            load += weight_bytes
        return self._played(
            ops_s, load, store, (ops_j, ops_far), once, len(region.ops), region.sum_bytes
        )

    def _played(
        self,
        ops_s: Floats,
        load: Floats,
        store: Floats,
        ops: tuple[float, float],
        once: float,
        launches: int,
        sums: float = 0.0,
    ) -> GroupCost:
        """Play the steps of all samples: each step's ops beside the next one's loads.

        Weights that are held are loaded before all of them, and sums are stored behind them.
        """
        batch, ops_j, ops_far = self.graph.batch, *ops
        ops_s = ops_s + (load + store) / self.near_rate  # loads and stores pass the level, too
        following = np.append(load[1:], load[0])
        steady = float(np.maximum(ops_s, (following + store) / self.far_rate).sum())
        following[-1] = 0.0
        last = float(np.maximum(ops_s, (following + store) / self.far_rate).sum())
        ends_s = (once + float(load[0]) + sums) / self.far_rate
        time_s = launches * self.launch_s + ends_s + (batch - 1) * steady + last
        moved = once + batch * float((load + store).sum()) + sums
        far_bytes = moved + batch * ops_far
        time_s = max(time_s, far_bytes / self.far_rate)
        energy_j = (
            batch * ops_j
            + moved * (self.far_j + self.near_j)
            + self.device.idle_power.value * time_s
        )
        return GroupCost(
            time_s, energy_j, far_bytes, batch * float(ops_s.sum()), far_bytes / self.far_rate
        )

    def piece(self, at: int, rows: int) -> FusedPiece:
        """Price an op on some rows, its operands on chip."""
        known = self._pieces.get((at, rows))
        if known is None:
            known = self._pieces[at, rows] = self._priced(self._kind(at, rows), at)
        return known

    def _priced(self, kind: OpSignature, at: int) -> FusedPiece:
        """Price a piece; equal ones of other layers are priced once.

        Sums are read from the level before what a piece adds is written there.
        """
        known = self._kinds.get(kind)
        if known is None:
            known = self._kinds[kind] = self._of_cost(price_all((kind,), self.device)[0])
        op = self.graph.ops[at]
        if sums := sum_bytes(op, self.graph):
            time_s, energy_j, far_bytes = known
            known = FusedPiece(
                time_s + sums / self.near_rate, energy_j + sums * self.near_j, far_bytes
            )
        return known

    def _kind(self, at: int, rows: int) -> OpSignature:
        found: tuple[RowWindow | None, ...] | None = self._windows[at]
        assert found is not None
        op, graph = on_rows(self.graph.ops[at], self.graph, found, rows)
        static = self._on_chip if self.takes_weights else self._far
        at_inputs = [float(static if window is None else self._on_chip) for window in found]
        return described(op, graph, (*at_inputs, *(float(self._on_chip) for _ in op.outputs)))

    def _of_cost(self, cost: OpCost) -> FusedPiece:
        """Return the price of a piece; a group is launched once, not in every step."""
        launch_s = self.launch_s if cost.latency_parts is None else cost.latency_parts.launch_s
        time_s = cost.spans(self.rates).time_s - min(launch_s, cost.latency_s)
        energy = op_energy_j(cost, self.device)
        far_bytes = cost.traffic_bytes.get(self.device.far_memory, 0.0)
        return FusedPiece(time_s, energy["total"] - energy["static"], far_bytes)


def together(groups: Sequence[FusedGroup]) -> FusedGroup:
    """Return groups that follow each other as one, which takes what they take together."""
    first, last = groups[0], groups[-1]
    cost = GroupCost(*(math.fsum(part) for part in zip(*(g.cost for g in groups), strict=True)))
    flops = math.fsum(group.flops for group in groups)
    held = max(group.held_bytes for group in groups)
    return replace(first, end=last.end, held_bytes=held, flops=flops, cost=cost)


def stored_bytes(region: FusedRegion) -> list[float]:
    """Return the bytes that each row of each tensor of a region sends to the far memory.

    What something outside reads, what the op writes besides, and results that nothing reads.
    """
    return [
        tensor.beside_bytes + (tensor.row_bytes if tensor.leaves or not readers else 0.0)
        for tensor, readers in zip(region.tensors, region.consumers, strict=True)
    ]


def row_tiles(rows: int) -> list[int]:
    """Return rows a step to try: powers of two, and all."""
    return [*(1 << power for power in range((rows - 1).bit_length())), rows]
