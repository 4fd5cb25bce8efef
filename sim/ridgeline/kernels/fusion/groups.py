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
from ridgeline.kernels.cache_residency import Found, keeping, room
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


class GroupPlay(NamedTuple):
    """What all steps of all samples of a group take, part by part, beside their pieces' events.

    Attributes
    ----------
    launch_s
        One launch for each op.
    fill_s, drain_s
        First loads, and last stores of sums.
    ops_s
        The pieces, one after the other; of several cores, their mean. Loads and stores pass the
        level that holds rows, too: `passed_s` of it.
    barrier_s, exchange_s
        Waits for the busiest core; for links between dies, and ways over them.
    stall_s
        Waits for the far memory.
    moved_bytes, fetched_bytes
        Bytes of far memory: loads and stores of the group, and those of pieces by themselves.
    copied_bytes, link_bytes
        Read from one die's level and written to another's; over links between dies.
    """

    launch_s: float
    fill_s: float
    drain_s: float
    ops_s: float
    passed_s: float
    stall_s: float
    moved_bytes: float
    fetched_bytes: float
    barrier_s: float = 0.0
    exchange_s: float = 0.0
    copied_bytes: float = 0.0
    link_bytes: float = 0.0

    @property
    def time_s(self) -> float:
        """Seconds altogether."""
        computing_s = self.ops_s + self.barrier_s
        waiting_s = self.stall_s + self.exchange_s
        return self.launch_s + self.fill_s + self.drain_s + computing_s + waiting_s

    @property
    def far_bytes(self) -> float:
        """Bytes that pass the farthest memory."""
        return self.moved_bytes + self.fetched_bytes

    def waiting_for(self, far_rate: float) -> GroupPlay:
        """Return it with the stalls of a far memory of this rate, which is never overtaken."""
        return self._replace(
            stall_s=self.stall_s + max(0.0, self.far_bytes / far_rate - self.time_s)
        )


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
    steps
        Of a sample.
    results
        Names of what it makes and something behind it reads.
    found
        Of one op by itself: by operand, how many levels that keep tensors do not hold it.
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
    steps: int = 1
    results: frozenset[str] = frozenset()
    found: Found = ()


class FusedPiece(NamedTuple):
    """What one op on some rows takes, its operands on chip.

    Attributes
    ----------
    cost
        Its price as an op by itself, with a launch and without sums.
    """

    time_s: float
    energy_j: float
    far_bytes: float
    cost: OpCost


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

    Parameters
    ----------
    results
        Tensors that something behind the graph reads; None: its loss.

    Raises
    ------
    RidgelineError
        If no level of the device keeps tensors.
    """

    def __init__(self, graph: Graph, device: Device, results: frozenset[str] | None = None) -> None:
        levels = keeping(device)
        if not levels:
            raise RidgelineError(_without_level(device))
        self.graph, self.device = graph, device
        self.results = frozenset({graph.loss}) if results is None else results
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
        self._keys = [described(op, graph, ()).key for op in graph.ops]
        self._groups: dict[object, tuple[FusedGroup, ...]] = {}
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
        ops, place = self.graph.ops, self.unfused.place
        return [
            FusedGroup(
                at, at + 1, 0, "line-buffer", "streamed", 0.0, self.flops(ops[at : at + 1]), cost,
                found=place(at, first, end),
            )
            for at, cost in enumerate(costs, first)
        ]  # fmt: skip

    def flops(self, ops: Iterable[Op]) -> float:
        """Return the FLOP of ops."""
        return float(sum(op.matrix_flops + op.vector_flops for op in ops))

    def region(self, first: int, end: int) -> FusedRegion | None:
        """Return ops that follow each other as a region; None if they cannot be cut into rows."""
        if any(self._windows[at] is None for at in range(first, end)):
            return None
        return region_of(self.graph.ops[first:end], self.graph, self.leaving(first, end))

    def leaving(self, first: int, end: int) -> frozenset[str]:
        """Name what ops that follow each other make and something behind them reads."""
        return frozenset(
            name
            for op in self.graph.ops[first:end]
            for name in op.outputs
            if self._read_last.get(name, end) >= end or name in self.results
        )

    def likeness(self, first: int, end: int, region: FusedRegion) -> object:
        """Return what all costs of a region follow from: equal for layers that repeat."""
        tensors = tuple(tensor._replace(name="") for tensor in region.tensors)
        return tuple(self._keys[first:end]), region.ops, tensors

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
        """Price all ways to compute some ops together that fit: rows a step, halo, weights.

        Layers that repeat are priced once.
        """
        region = self.region(first, end)
        if region is None:
            return
        alike = self.likeness(first, end, region)
        if alike not in self._groups:
            self._groups[alike] = tuple(self._priced_groups(first, end, region))
        known = self._groups[alike]
        if known and known[0].first != first:
            results = self.leaving(first, end)
            known = tuple(replace(one, first=first, end=end, results=results) for one in known)
        yield from known

    def _priced_groups(self, first: int, end: int, region: FusedRegion) -> Iterator[FusedGroup]:
        flops, results = self.flops(self.graph.ops[first:end]), self.leaving(first, end)
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
                    yield FusedGroup(
                        first, end, tile, halo, weights, held, flops, cost,
                        steps=schedule.steps, results=results,
                    )  # fmt: skip

    def pieces(
        self, first: int, schedule: RowSchedule
    ) -> Iterator[tuple[int, FusedPiece, NDArray[np.bool_]]]:
        """Yield the place of an op in a region, a piece of it, and the steps of a sample with it.

        Parameters
        ----------
        first
            Place of the region's first op in the graph.
        """
        for place, op in enumerate(schedule.region.ops):
            made = schedule.made[op.writes].rows
            for rows in np.unique(made).tolist():
                if rows:
                    yield place, self.piece(first + place, rows), made == rows

    def _cost(self, first: int, schedule: RowSchedule, weights: Weights) -> GroupCost:
        play, ops_j = self.play(first, schedule, weights)
        return self.cost_of(play, ops_j)

    def play(self, first: int, schedule: RowSchedule, weights: Weights) -> tuple[GroupPlay, float]:
        """Play a group whose ops have all of the device; return also the pieces' joules."""
        region, steps = schedule.region, schedule.steps
        ops_s, ops_j, ops_far = np.zeros(steps), 0.0, 0.0
        for _, piece, where in self.pieces(first, schedule):
            count = int(where.sum())
            ops_s[where] += piece.time_s
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
        return (
            self._played(ops_s, load, store, ops_far, once, len(region.ops), region.sum_bytes),
            self.graph.batch * ops_j,
        )

    def _played(
        self,
        ops_s: Floats,
        load: Floats,
        store: Floats,
        ops_far: float,
        once: float,
        launches: int,
        sums: float = 0.0,
    ) -> GroupPlay:
        """Play the steps of all samples: each step's ops beside the next one's loads.

        Weights that are held are loaded before all of them, and sums are stored behind them.
        """
        batch = self.graph.batch
        passed_s = (load + store) / self.near_rate  # loads and stores pass the level, too
        ops_s = ops_s + passed_s
        following = np.append(load[1:], load[0])
        steady = np.maximum(0.0, (following + store) / self.far_rate - ops_s).sum()
        following[-1] = 0.0
        last = np.maximum(0.0, (following + store) / self.far_rate - ops_s).sum()
        return GroupPlay(
            launch_s=launches * self.launch_s,
            fill_s=(once + float(load[0])) / self.far_rate,
            drain_s=sums / self.far_rate,
            ops_s=batch * float(ops_s.sum()),
            passed_s=batch * float(passed_s.sum()),
            stall_s=(batch - 1) * float(steady) + float(last),
            moved_bytes=once + batch * float((load + store).sum()) + sums,
            fetched_bytes=batch * ops_far,
        ).waiting_for(self.far_rate)

    def cost_of(self, play: GroupPlay, pieces_j: float, link_j: float = 0.0) -> GroupCost:
        """Return what a group takes.

        Parameters
        ----------
        pieces_j
            Joules of all pieces.
        link_j
            Of a byte over a link between dies.
        """
        energy_j = (
            pieces_j
            + play.moved_bytes * (self.far_j + self.near_j)
            + play.copied_bytes * 2 * self.near_j
            + play.link_bytes * link_j
            + self.device.idle_power.value * play.time_s
        )
        return GroupCost(
            play.time_s,
            energy_j,
            play.far_bytes,
            play.ops_s + play.barrier_s,
            play.far_bytes / self.far_rate,
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
            known = known._replace(
                time_s=known.time_s + sums / self.near_rate,
                energy_j=known.energy_j + sums * self.near_j,
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
        time_s = cost.spans(self.rates).time_s - self.launched_s(cost)
        energy = op_energy_j(cost, self.device)
        far_bytes = cost.traffic_bytes.get(self.device.far_memory, 0.0)
        return FusedPiece(time_s, energy["total"] - energy["static"], far_bytes, cost)

    def launched_s(self, cost: OpCost) -> float:
        """Return the part of an op's latency that a group has once, not in every step."""
        launch_s = self.launch_s if cost.latency_parts is None else cost.latency_parts.launch_s
        return min(launch_s, cost.latency_s)


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
