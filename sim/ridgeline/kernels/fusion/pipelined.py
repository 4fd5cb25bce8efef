"""Fused groups as pipelines over cores: which array or die computes which layer of a group.

A core is an equal part of a device: some of its arrays or grid cores, or a die of a package. Each
layer of a group, with the element-wise ops behind it, is given to a core. All cores compute at
once, each its own step of rows (`pipeline_beats`). Of all allocations the best is found by branch
and bound: a pipeline takes no less than its busiest core computes, than an equal share of all
computing, and than its bytes take to pass the far memory.

Layers in pieces of rows and their allocation to cores are those of A. Symons et al., "Stream",
arXiv:2212.10612, which searches allocations with a genetic algorithm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ridgeline.hardware.device import Device
from ridgeline.kernels.fusion.groups import FusedGroup, FusionPricer, GroupCost, Weights, row_tiles
from ridgeline.kernels.fusion.line_buffers import RowSchedule, row_schedule
from ridgeline.kernels.fusion.pipeline_beats import NO_WORK, Cores, PipelineBeats, StepWork
from ridgeline.workload.graph import Op

Size = tuple[float, float, float]
_ROUNDING = 1e-9


def core_counts(device: Device) -> tuple[int, ...]:
    """Return the numbers of equal cores of a device: its dies; or its arrays, some together."""
    if device.dies is not None:
        return (device.dies.count.value,) if device.dies.count.value > 1 else ()
    arrays = [e.array.count.value for e in device.engines.values() if e.array is not None]
    grids = [e.grid.cores.value for e in device.engines.values() if e.grid is not None]
    number = math.gcd(*arrays, *grids)
    return tuple(count for count in range(2, number + 1) if number % count == 0)


def layers_of(ops: Sequence[Op]) -> tuple[int, ...]:
    """Return the layer of each op: a contraction, and what follows it without one of its own."""
    made_in: dict[str, int] = {}
    layers: list[int] = []
    number = 0
    for op in ops:
        before = [made_in[name] for name in op.inputs if name in made_in]
        if op.loops is not None or not before:
            layer, number = number, number + 1
        else:
            layer = max(before)
        layers.append(layer)
        made_in |= dict.fromkeys(op.outputs, layer)
    return tuple(layers)


@dataclass
class Incumbent:
    """The best that is known, of groups with something before them.

    Attributes
    ----------
    size
        What is least, of a group's costs.
    before, best
        Size of what is before the groups, and of the best group together with it.
    """

    size: Callable[[GroupCost], Size]
    before: Size
    best: Size

    def is_beaten_by(self, cost: GroupCost) -> bool:
        """Tell whether a group of these costs is better."""
        return self._with(cost) < self.best

    def longest_s(self, cost: GroupCost, idle_w: float) -> float:
        """Return a time from which on a group is no better; inf if only other costs decide.

        Parameters
        ----------
        cost
            Of the group in any time.
        idle_w
            By which its energy grows with its time.
        """
        fixed = cost._replace(time_s=0.0, energy_j=cost.energy_j - idle_w * cost.time_s)
        growth = self.size(GroupCost(1.0, idle_w, 0.0, 0.0, 0.0))[0]
        left = self.best[0] - self._with(fixed)[0]
        return (1.0 + _ROUNDING) * left / growth if growth else math.inf

    def take(self, cost: GroupCost) -> None:
        """Remember a better one."""
        self.best = self._with(cost)

    def _with(self, cost: GroupCost) -> Size:
        a, b, c = (x + y for x, y in zip(self.before, self.size(cost), strict=True))
        return a, b, c


class _Searched(NamedTuple):
    """The fastest allocation that takes less than a limit; None: there is none."""

    limit_s: float
    cores: tuple[int, ...] | None


class PipelinedPricer:
    """Prices groups of ops whose layers are computed on several equal cores of a device.

    Parameters
    ----------
    fewer
        The next smaller number of cores. Groups of no more layers leave the rest idle.
    """

    def __init__(self, whole: FusionPricer, count: int, fewer: int) -> None:
        self.whole, self.cores, self.fewer = whole, Cores(whole, count), fewer
        self._searched: dict[tuple[object, int, Weights], _Searched] = {}

    def best(self, first: int, end: int, known: Incumbent) -> FusedGroup | None:
        """Return the best way to compute ops on several cores, which is then the known one.

        None if none beats what is known.
        """
        layers = layers_of(self.whole.graph.ops[first:end])
        region = self.whole.region(first, end) if max(layers) + 1 > max(1, self.fewer) else None
        if region is None or region.sum_bytes:  # sums would be on the cores that make them
            return None
        found: FusedGroup | None = None
        alike = self.whole.likeness(first, end, region)
        for tile in row_tiles(region.rows):
            steps = -(-region.rows // tile)
            hopeful = [
                weights
                for weights, _ in self.whole.weights_of(region)
                if known.is_beaten_by(self.cores.least_cost(region, steps, weights, NO_WORK)(0.0))
            ]
            if not hopeful:
                continue
            schedule = row_schedule(region, tile, "line-buffer")
            work = self.cores.work(first, schedule)
            for weights in hopeful:
                least = self.cores.least_cost(region, steps, weights, work)
                if self.cores.dies is None:
                    fast = self._fastest((alike, tile, weights), layers, schedule, work, known)
                    every = iter(() if fast is None else (fast,))
                else:
                    every = self._allocations(layers, work, least, known)
                for cores in every:
                    beats = PipelineBeats(self.cores, schedule, weights, cores)
                    if not beats.fits:
                        continue
                    cost = beats.cost(work)
                    if known.is_beaten_by(cost):
                        known.take(cost)
                        found = FusedGroup(
                            first, end, tile, "line-buffer", weights, beats.held_bytes,
                            self.whole.flops(self.whole.graph.ops[first:end]), cost,
                            self.cores.count, cores, steps, self.whole.leaving(first, end),
                        )  # fmt: skip
        return found

    def _fastest(
        self,
        way: tuple[object, int, Weights],
        layers: Sequence[int],
        schedule: RowSchedule,
        work: StepWork,
        known: Incumbent,
    ) -> tuple[int, ...] | None:
        """Return the fastest allocation that fits, of cores that share a level.

        None if none is as fast as the known best must be. Layers that repeat are searched once,
        unless less was asked for before.

        Parameters
        ----------
        way
            What the answer follows from but for the limit.
        """
        least = self.cores.least_cost(schedule.region, schedule.steps, way[2], work)
        idle_w = self.whole.device.idle_power.value
        launches_s = len(layers) * self.whole.launch_s
        limit_s = known.longest_s(least(0.0), idle_w) - launches_s
        searched = self._searched.get(way)
        if searched is None or (searched.cores is None and searched.limit_s < limit_s):
            time_s, cores = self.cores.fastest(layers, schedule, work, way[2], limit_s)
            found = None if math.isinf(time_s) else tuple(cores.tolist())
            searched = self._searched[way] = _Searched(limit_s, found)
        return searched.cores

    def _allocations(
        self,
        layers: Sequence[int],
        work: StepWork,
        least: Callable[[float], GroupCost],
        known: Incumbent,
    ) -> Iterator[tuple[int, ...]]:
        """Yield the core of each op, for all allocations that may beat what is known.

        Cores are numbered in the order in which they are first used, neighbours one after the
        other. A single core is left out: the whole device does what it does, and no slower.
        """
        number, batch = max(layers) + 1, self.whole.graph.batch
        layer_s = [0.0] * number
        for layer, op_s in zip(layers, work.time_s, strict=True):
            layer_s[layer] += batch * float(op_s.sum())
        # A layer is on one core.
        least_s, count = max(layer_s), self.cores.count

        def given(cores: list[int], busy_s: list[float]) -> Iterator[tuple[int, ...]]:
            if not known.is_beaten_by(least(max(least_s, *busy_s))):
                return
            at = len(cores)
            if at == number:
                if len(busy_s) > 1:
                    yield tuple(cores[layer] for layer in layers)
                return
            for core in range(min(len(busy_s) + 1, count)):
                after = [*busy_s, 0.0] if core == len(busy_s) else [*busy_s]
                after[core] += layer_s[at]
                yield from given([*cores, core], after)

        return given([0], [layer_s[0]])
