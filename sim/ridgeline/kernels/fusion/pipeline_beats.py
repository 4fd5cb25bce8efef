"""Beats of a fused group over several cores: what each core computes, holds and passes on.

In a beat every core computes the steps of its ops, one op after the other. An op that reads what
another core makes is one beat behind it. Samples follow each other without a pause.

    beat = max(busiest core, bytes of far memory / bandwidth, busiest link) + way over the links
    time = launches + sum of all beats, from the one that loads the first rows

Far memory brings what the next beat reads and takes what this one makes. Rows are held where they
are read, until nothing there needs them. Arrays share the level that holds rows: its whole room
counts, and nothing is copied in it. A die has a room of its own. What another die reads is sent
while it is made; there, room is set aside for it from the beginning of the beat.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline.hardware.dies import DIE_LINKS
from ridgeline.hardware.equal_parts import equal_part
from ridgeline.kernels.cost import price_of_place
from ridgeline.kernels.fusion.allocation_search import CoreRates, GroupArrays, fastest_allocation
from ridgeline.kernels.fusion.groups import (
    FusionPricer,
    GroupCost,
    GroupPlay,
    Weights,
    stored_bytes,
)
from ridgeline.kernels.fusion.line_buffers import RowSchedule, rows_until
from ridgeline.kernels.fusion.regions import FusedRegion, Rows

Floats = NDArray[np.float64]
_LOAD = 1
"""Beats before the first one that computes."""


class StepWork(NamedTuple):
    """What each op of a group takes on a core.

    Attributes
    ----------
    time_s, far_bytes
        By op and step of a sample; far bytes are those that pieces fetch by themselves.
    energy_j
        Of all steps of a sample.
    """

    time_s: Floats
    far_bytes: Floats
    energy_j: float


NO_WORK = StepWork(np.zeros((1, 1)), np.zeros((1, 1)), 0.0)
"""What is known before pieces are priced."""


class Cores:
    """Equal parts of a device that compute layers of a fused group.

    Attributes
    ----------
    core
        Prices ops on one of them.
    separate
        Whether each has a far memory of its own, the only one that it uses.
    """

    def __init__(self, whole: FusionPricer, count: int) -> None:
        self.whole, self.count = whole, count
        self.dies = whole.device.dies
        self.core = FusionPricer(whole.graph, equal_part(whole.device, count))
        self.interleaved = self.dies is not None and self.dies.placement == "interleaved"
        self.separate = self.dies is not None and not self.interleaved
        self.link_j = 0.0
        if self.dies is not None:
            self.link_j = price_of_place(whole.device, DIE_LINKS).price_j

    def work(self, first: int, schedule: RowSchedule) -> StepWork:
        """Price the pieces of all ops from one of the graph on, each on one core."""
        shape = (len(schedule.region.ops), schedule.steps)
        time_s, far_bytes, energy_j = np.zeros(shape), np.zeros(shape), 0.0
        for place, piece, where in self.core.pieces(first, schedule):
            time_s[place, where] = piece.time_s
            far_bytes[place, where] = piece.far_bytes
            energy_j += int(where.sum()) * piece.energy_j
        return StepWork(time_s, far_bytes, energy_j)

    def least_cost(
        self, region: FusedRegion, steps: int, weights: Weights, work: StepWork
    ) -> Callable[[float], GroupCost]:
        """Return the least cost of all allocations whose busiest core computes for some time.

        Weights that are held are loaded before anything is computed. Loads and stores pass the
        level that holds rows, so that cores are busy with these, too: with an equal share, at best.
        """
        whole, batch = self.whole, self.whole.graph.batch
        moved = batch * math.fsum(
            tensor.rows * (tensor.row_bytes if tensor.producer < 0 else stored)
            for tensor, stored in zip(region.tensors, stored_bytes(region), strict=True)
        )
        once = 0.0
        passed = moved
        if whole.takes_weights:
            of_weights = math.fsum(op.weight_bytes for op in region.ops)
            once = of_weights if weights == "held" else 0.0
            passed += 0.0 if weights == "held" else batch * steps * of_weights
            moved += of_weights if weights == "held" else batch * steps * of_weights
        far_bytes = moved + batch * float(work.far_bytes.sum())
        far_s = far_bytes / whole.far_rate
        even_s = (passed / self.core.near_rate + batch * float(work.time_s.sum())) / self.count
        before_s = len(region.ops) * whole.launch_s + once / whole.far_rate
        events_j = batch * work.energy_j + moved * (whole.far_j + whole.near_j)

        def least(busy_s: float) -> GroupCost:
            time_s = max(before_s + max(busy_s, even_s), far_s)
            energy_j = events_j + whole.device.idle_power.value * time_s
            return GroupCost(time_s, energy_j, far_bytes, max(busy_s, even_s), far_s)

        return least

    def fastest(
        self,
        layers: Sequence[int],
        schedule: RowSchedule,
        work: StepWork,
        weights: Weights,
        limit_s: float,
    ) -> tuple[float, Rows]:
        """Return the time of all beats of the fastest allocation that fits, and each op's core.

        Of cores that share the level that holds rows; see `allocation_search`.
        """
        region, batch, whole = schedule.region, self.whole.graph.batch, self.whole
        takes = 1.0 if whole.takes_weights else 0.0
        readers = [[op for op, _ in of] for of in region.consumers]
        pending = [one.first for each in schedule.pending for one in each]
        group = GroupArrays(
            layer=np.array(layers, np.int64),
            op_s=work.time_s,
            weight_bytes=np.array([takes * op.weight_bytes for op in region.ops]),
            read_ptr=_ends([len(op.reads) for op in region.ops]),
            read_tensor=np.array([r.tensor for op in region.ops for r in op.reads], np.int64),
            producer=np.array([tensor.producer for tensor in region.tensors], np.int64),
            made=np.array([made.rows for made in schedule.made], np.float64),
            until=np.array([made.end for made in schedule.made], np.float64),
            row_bytes=np.array([tensor.row_bytes for tensor in region.tensors]),
            stored_bytes=np.array(stored_bytes(region)),
            reader_ptr=_ends([len(each) for each in readers]),
            reader=np.array([op for each in readers for op in each], np.int64),
            pending=np.array(pending, np.float64),
        )
        cores = CoreRates(
            self.count, batch, weights == "held", self.core.near_rate, whole.far_rate,
            whole.room_bytes,
        )  # fmt: skip
        passed = self.least_cost(region, schedule.steps, weights, work)(0.0)
        return fastest_allocation(group, cores, passed.compute_s, limit_s)


def _ends(counts: Sequence[int]) -> Rows:
    return np.cumsum([0, *counts])


def depths_of(schedule: RowSchedule, cores: Sequence[int]) -> tuple[int, ...]:
    """Return how many beats each op is behind the first ones."""
    region = schedule.region
    depths: list[int] = []
    for op, core in zip(region.ops, cores, strict=True):
        before = [region.tensors[read.tensor].producer for read in op.reads]
        depths.append(max((depths[p] + (cores[p] != core) for p in before if p >= 0), default=0))
    return tuple(depths)


class _Passes(NamedTuple):
    """What happens on each core in each beat.

    Attributes
    ----------
    load, store
        Bytes of far memory; a load is in the beat before its step.
    passed_s
        Part of `busy_s` in which loads, stores and copies pass the level that holds rows.
    fetched
        Bytes that pieces load by themselves, while they compute.
    sent
        Bytes by the die that has them and the one that reads them.
    """

    busy_s: Floats
    passed_s: Floats
    load: Floats
    store: Floats
    fetched: Floats
    sent: dict[tuple[int, int], Floats]


class PipelineBeats:
    """A group's beats, with one core for each op; so many samples that beats repeat.

    Attributes
    ----------
    held_bytes
        The most that is held on all cores at once.
    fits
        Whether there is room for it.
    """

    def __init__(
        self, on: Cores, schedule: RowSchedule, weights: Weights, cores: Sequence[int]
    ) -> None:
        self.on, self.schedule, self.weights, self.cores = on, schedule, weights, tuple(cores)
        self.depths = depths_of(schedule, cores)
        self.fill = max(self.depths)
        self.samples = min(on.whole.graph.batch, 2 + -(-self.fill // schedule.steps))
        self.beats = _LOAD + self.fill + self.samples * schedule.steps
        self.readers = [self._readers(of) for of in schedule.region.consumers]
        held = self._held_rows() + self._held_weights()[:, None]
        self.held_bytes = float(held.sum(axis=0).max())
        self.fits = (
            self.held_bytes <= on.whole.room_bytes
            if on.dies is None
            else bool((held <= on.core.room_bytes).all())
        )

    def _readers(self, consumers: Sequence[tuple[int, object]]) -> dict[int, int]:
        """Return the cores that load or receive a tensor, and the depth of their first reader."""
        found: dict[int, int] = {}
        for op, _ in consumers:
            core = self.cores[op]
            found[core] = min(found.get(core, self.depths[op]), self.depths[op])
        if self.on.dies is None and found:  # one level for all
            first = min(found, key=lambda core: found[core])
            return {first: found[first]}
        return found

    def _held_rows(self) -> Floats:
        """Bytes of rows by core and beat."""
        schedule, steps = self.schedule, self.schedule.steps
        alone = np.zeros((self.on.count, _LOAD + self.fill + steps))
        beat = np.arange(-_LOAD, self.fill + steps)
        for t, tensor in enumerate(schedule.region.tensors):
            made, producer = schedule.made[t], tensor.producer
            for core, depth in self.readers[t].items():
                first = np.minimum.reduce(
                    [
                        need.first[self._step(beat, self.depths[need.op])]
                        for need in schedule.pending[t]
                        if self.on.dies is None or self.cores[need.op] == core
                    ]
                )
                begun = depth - _LOAD if producer < 0 else self.depths[producer]
                alone[core] += np.maximum(0, rows_until(made, beat - begun) - first) * (
                    tensor.row_bytes
                )
            if producer >= 0 and self._is_sent(t) and self.cores[producer] not in self.readers[t]:
                begun = _LOAD + self.depths[producer]
                sending = made.rows * tensor.row_bytes
                alone[self.cores[producer], begun : begun + steps] += sending
        held = np.zeros((self.on.count, self.beats))
        for sample in range(self.samples):
            held[:, sample * steps : sample * steps + alone.shape[1]] += alone
        return held

    def _step(self, beat: Rows, depth: int) -> Rows:
        """Return the step of an op in each beat: the first, before it begins; behind the last."""
        step: Rows = np.minimum(np.maximum(beat - depth, 0), self.schedule.steps)
        return step

    def _is_sent(self, tensor: int) -> bool:
        return self.on.dies is not None and bool(self.readers[tensor])

    def _held_weights(self) -> Floats:
        """Bytes of weights by core: of all of its ops, or of one of them and the next."""
        sizes: list[list[float]] = [[] for _ in range(self.on.count)]
        for op, core in zip(self.schedule.region.ops, self.cores, strict=True):
            sizes[core].append(op.weight_bytes if self.on.whole.takes_weights else 0.0)
        if self.weights == "held":
            return np.array([math.fsum(own) for own in sizes])
        pairs = [[a + b for a, b in zip(own, own[1:] + own[:1], strict=True)] for own in sizes]
        return np.array([max(own, default=0.0) for own in pairs])

    def cost(self, work: StepWork) -> GroupCost:
        """Return what all samples take."""
        pieces_j = self.on.whole.graph.batch * work.energy_j
        return self.on.whole.cost_of(self.play(work), pieces_j, self.on.link_j)

    def play(self, work: StepWork) -> GroupPlay:
        """Play all beats."""
        on, whole, batch = self.on, self.on.whole, self.on.whole.graph.batch
        passes = self._passes(work)
        far = passes.load + passes.store
        far_s = far / on.core.far_rate if on.separate else far.sum(axis=0) / whole.far_rate
        busy_s = passes.busy_s.max(axis=0)
        even_s = passes.busy_s.sum(axis=0) / on.count
        each_s = np.maximum(busy_s, far_s.max(axis=0) if on.separate else far_s)
        stall_s = each_s - busy_s
        links, way_s = self._links(passes)
        linked_s = each_s
        if on.dies is not None:
            for amounts in links.values():
                linked_s = np.maximum(linked_s, amounts / on.dies.link.bandwidth.value)
        return GroupPlay(
            launch_s=len(self.cores) * whole.launch_s,
            fill_s=0.0,
            drain_s=0.0,
            ops_s=self._of_all(even_s),
            passed_s=self._of_all(passes.passed_s.sum(axis=0) / on.count),
            stall_s=self._of_all(stall_s),
            moved_bytes=self._of_all(far.sum(axis=0)),
            fetched_bytes=batch * float(work.far_bytes.sum()),
            barrier_s=self._of_all(busy_s - even_s),
            exchange_s=self._of_all(linked_s - each_s + way_s),
            copied_bytes=math.fsum(self._of_all(amounts) for amounts in passes.sent.values()),
            link_bytes=math.fsum(self._of_all(amounts) for amounts in links.values()),
        ).waiting_for(whole.far_rate)

    def _of_all(self, amounts: Floats) -> float:
        """Sum amounts by beat over the beats of all samples: those between repeat."""
        begin = _LOAD + self.fill
        more = self.on.whole.graph.batch - self.samples
        again = float(amounts[begin : begin + self.schedule.steps].sum())
        return float(amounts.sum()) + more * again

    def _passes(self, work: StepWork) -> _Passes:
        """Count what is computed, loaded, stored and sent in each beat."""
        schedule, takes_weights = self.schedule, self.on.whole.takes_weights
        shape = (self.on.count, self.beats)
        computing_s, passed, load, store = (np.zeros(shape) for _ in range(4))
        passes = _Passes(computing_s, passed, load, store, np.zeros(shape), {})
        span, near_rate = self.samples * schedule.steps, self.on.core.near_rate
        ops = zip(schedule.region.ops, self.cores, self.depths, strict=True)
        for place, (op, core, depth) in enumerate(ops):
            now, before = slice(_LOAD + depth, _LOAD + depth + span), slice(depth, depth + span)
            computing_s[core, now] += np.tile(work.time_s[place], self.samples)
            passes.fetched[core, now] += np.tile(work.far_bytes[place], self.samples)
            if takes_weights and self.weights == "streamed":
                load[core, before] += op.weight_bytes
                passed[core, now] += op.weight_bytes
            elif takes_weights:
                load[core, 0] += op.weight_bytes
        sizes = stored_bytes(schedule.region)
        for t, tensor in enumerate(schedule.region.tensors):
            moved = np.tile(schedule.made[t].rows * tensor.row_bytes, self.samples)
            if tensor.producer < 0:
                for core, depth in self.readers[t].items():
                    load[core, depth : depth + span] += moved
                    passed[core, _LOAD + depth : _LOAD + depth + span] += moved
                continue
            producer, begun = self.cores[tensor.producer], _LOAD + self.depths[tensor.producer]
            now = slice(begun, begun + span)
            if sizes[t]:
                stored = np.tile(schedule.made[t].rows * sizes[t], self.samples)
                store[producer, now] += stored
                passed[producer, now] += stored
            for core in self.readers[t] if self.on.dies is not None else ():
                if core != producer:
                    sent = passes.sent.setdefault((producer, core), np.zeros(self.beats))
                    sent[now] += moved
                    passed[[producer, core], now] += moved
        passed_s = passed / near_rate
        return passes._replace(busy_s=computing_s + passed_s, passed_s=passed_s)

    def _links(self, passes: _Passes) -> tuple[dict[tuple[int, int], Floats], Floats]:
        """Return the bytes on each link, and the latency of the longest way, by beat."""
        dies, count = self.on.dies, self.on.count
        links: dict[tuple[int, int], Floats] = {}
        way_s = np.zeros(self.beats)
        if dies is None:
            return links, way_s
        pairs = dict(passes.sent)
        if self.on.interleaved:  # each memory has an equal part of everything
            for die in range(count):
                for other in range(count):
                    if other != die:
                        moved = passes.load[other] + passes.fetched[other] + passes.store[die]
                        pairs[die, other] = pairs.get((die, other), 0.0) + moved / count
        for (start, end), amounts in pairs.items():
            route = dies.route(start, end)
            hops = sum(route.values())
            way_s = np.maximum(way_s, np.where(amounts > 0, hops * dies.link.latency.value, 0.0))
            for link, share in route.items():
                links[link] = links.get(link, 0.0) + share * amounts
        return links, way_s
