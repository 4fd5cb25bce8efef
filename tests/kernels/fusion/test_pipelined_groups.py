"""Groups as pipelines over cores: beats against a player of rows, allocations by enumeration."""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fused_graphs import chain, measure, random_region
from ridgeline.cli import execute
from ridgeline.hardware import load_device
from ridgeline.hardware.device import Device
from ridgeline.hardware.dies import Dies
from ridgeline.hardware.templates import device_template
from ridgeline.kernels.fusion.groups import FusionPricer, row_tiles
from ridgeline.kernels.fusion.line_buffers import RowSchedule, RowSpans, row_schedule
from ridgeline.kernels.fusion.pipeline_beats import Cores, PipelineBeats, StepWork
from ridgeline.kernels.fusion.pipelined import core_counts, layers_of
from ridgeline.kernels.fusion.regions import RowRead
from ridgeline.kernels.fusion.schedule import fuse
from ridgeline.workload.graph import Conv, Graph, Op, Pass, Role, Tensor
from thoroughly import further

Row = tuple[int, int, int]
"""Sample, tensor and row."""


@pytest.fixture(scope="module")
def chiplet(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("pipelines") / "my-chiplet.yaml"
    path.write_text(device_template("chiplet"), "utf-8")
    return str(path)


@pytest.fixture(scope="module")
def systolic(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("pipelines") / "my-systolic.yaml"
    path.write_text(device_template("systolic"), "utf-8")
    return str(path)


class _Player:
    """Computes every sample beat by beat, each core with the rows that lie on it."""

    def __init__(
        self, on: Any, schedule: RowSchedule, weights: str, core_of: list[int], work: StepWork
    ) -> None:
        self.on, self.schedule, self.weights, self.core_of = on, schedule, weights, core_of
        self.work, self.region = work, schedule.region
        self.batch, self.steps = on.whole.graph.batch, schedule.steps
        self.depth: list[int] = []
        for place, op in enumerate(self.region.ops):
            deepest = 0
            for read in op.reads:
                maker = self.region.tensors[read.tensor].producer
                if maker >= 0:
                    hop = 1 if core_of[maker] != core_of[place] else 0
                    deepest = max(deepest, self.depth[maker] + hop)
            self.depth.append(deepest)
        self.beats = range(-1, self.batch * self.steps + max(self.depth))
        self.most = [0.0] * on.count
        self.all_most = self.time_s = self.far_bytes = self.link_bytes = 0.0

    def _memory(self, core: int) -> int:
        return core if self.on.dies is not None else 0

    def _at(self, op: int, beat: int) -> tuple[int, int] | None:
        """Return the sample and step that an op does in a beat."""
        sample, step = divmod(beat - self.depth[op], self.steps)
        return (sample, step) if 0 <= sample < self.batch else None

    def _spans(self, spans: RowSpans, step: int) -> range:
        return range(int(spans.first[step]), int(spans.end[step]))

    def _read(self, op: int, read: RowRead, step: int) -> set[int]:
        window, rows = read.window, self.region.tensors[read.tensor].rows
        return {
            row
            for out in self._spans(self.schedule.made[self.region.ops[op].writes], step)
            for row in range(
                out * window.stride - window.padding,
                out * window.stride - window.padding + window.size,
            )
            if 0 <= row < rows
        }

    def _needed(self, beat: int) -> dict[tuple[int, int, int], int]:
        """By memory, sample and tensor: the first row that is read in a beat or later."""
        first: dict[tuple[int, int, int], int] = {}
        for later in self.beats:
            for op, about in enumerate(self.region.ops) if later >= beat else ():
                if (at := self._at(op, later)) is None:
                    continue
                for read in about.reads:
                    for row in self._read(op, read, at[1]):
                        key = self._memory(self.core_of[op]), at[0], read.tensor
                        first[key] = min(first.get(key, row), row)
        return first

    def play(self) -> None:
        """Play all beats."""
        on, region = self.on, self.region
        memories = [set[Row]() for _ in range(on.count)]
        weights = [0.0] * on.count
        for core in range(on.count):
            sizes = [
                op.weight_bytes if on.whole.takes_weights else 0.0
                for op, of in zip(region.ops, self.core_of, strict=True)
                if of == core
            ]
            after = deque(sizes)
            after.rotate(-1)
            pairs = max((a + b for a, b in zip(sizes, after, strict=True)), default=0.0)
            weights[core] = sum(sizes) if self.weights == "held" else pairs
        for beat in self.beats:
            busy = [0.0] * on.count
            far = [0.0] * on.count
            sent: dict[tuple[int, int], float] = {}
            arriving = [set[Row]() for _ in range(on.count)]
            sending = [0.0] * on.count
            needed = self._needed(beat)
            if beat == -1 and self.weights == "held" and on.whole.takes_weights:
                for op, core in zip(region.ops, self.core_of, strict=True):
                    far[core] += op.weight_bytes
            self._load(beat, arriving, far, busy)
            for place, (op, core) in enumerate(zip(region.ops, self.core_of, strict=True)):
                if (at := self._at(place, beat)) is None:
                    continue
                busy[core] += self.work.time_s[place, at[1]]
                for read in op.reads:
                    wanted = {(at[0], read.tensor, row) for row in self._read(place, read, at[1])}
                    here = {
                        row for row in arriving[self._memory(core)]
                        if self._computed_here(row, core)
                    }  # fmt: skip
                    assert wanted <= memories[self._memory(core)] | here
                if self.weights == "streamed" and on.whole.takes_weights:
                    busy[core] += op.weight_bytes / on.core.near_rate
                made = {
                    (at[0], op.writes, row)
                    for row in self._spans(self.schedule.made[op.writes], at[1])
                }
                size = len(made) * region.tensors[op.writes].row_bytes
                readers = {
                    self.core_of[k]
                    for k, other in enumerate(region.ops)
                    for read in other.reads
                    if read.tensor == op.writes
                }
                for memory in {self._memory(core) for core in readers}:
                    arriving[memory] |= made
                if on.dies is not None:
                    for reader in readers - {core}:
                        sent[core, reader] = sent.get((core, reader), 0.0) + size
                        busy[core] += size / on.core.near_rate
                        busy[reader] += size / on.core.near_rate
                    sending[core] += size if readers and core not in readers else 0.0
                if region.tensors[op.writes].leaves or place == len(region.ops) - 1:
                    far[core] += size
                    busy[core] += size / on.core.near_rate
            held = []
            for core in range(on.count):
                rows = memories[core] | arriving[core]
                memories[core] = {
                    (n, t, row) for n, t, row in rows if row >= needed.get((core, n, t), math.inf)
                }
                size = sum(region.tensors[t].row_bytes for _, t, _ in memories[core])
                held.append(size + sending[core] + weights[core])
                self.most[core] = max(self.most[core], held[core])
            self.all_most = max(self.all_most, sum(held))
            self._count(busy, far, sent)
        self.time_s += len(region.ops) * on.whole.launch_s
        self.far_bytes += self.batch * float(self.work.far_bytes.sum())

    def _computed_here(self, row: Row, core: int) -> bool:
        maker = self.region.tensors[row[1]].producer
        return maker >= 0 and self.core_of[maker] == core

    def _load(
        self, beat: int, arriving: list[set[Row]], far: list[float], busy: list[float]
    ) -> None:
        """Load what the first reader of each memory reads in the next beat."""
        for place, (op, core) in enumerate(zip(self.region.ops, self.core_of, strict=True)):
            streamed = self.weights == "streamed" and self.on.whole.takes_weights
            if streamed and self._at(place, beat + 1) is not None:
                far[core] += op.weight_bytes
        for t, tensor in enumerate(self.region.tensors):
            if tensor.producer >= 0:
                continue
            readers = [k for k, op in enumerate(self.region.ops) for r in op.reads if r.tensor == t]
            for memory in {self._memory(self.core_of[op]) for op in readers}:
                of = [op for op in readers if self._memory(self.core_of[op]) == memory]
                first = min(of, key=lambda op: self.depth[op])
                core = self.core_of[first]
                if (at := self._at(first, beat + 1)) is not None:
                    rows = self._spans(self.schedule.made[t], at[1])
                    arriving[memory] |= {(at[0], t, row) for row in rows}
                    far[core] += len(rows) * tensor.row_bytes
                if (at := self._at(first, beat)) is not None:
                    rows = self._spans(self.schedule.made[t], at[1])
                    busy[core] += len(rows) * tensor.row_bytes / self.on.core.near_rate

    def _count(
        self, busy: list[float], far: list[float], sent: dict[tuple[int, int], float]
    ) -> None:
        on = self.on
        far_s = max(far) / on.core.far_rate if on.separate else sum(far) / on.whole.far_rate
        link_s = way_s = 0.0
        if sent:  # every two dies have a link
            link_s = max(sent.values()) / on.dies.link.bandwidth.value
            way_s = on.dies.link.latency.value if any(sent.values()) else 0.0
        self.time_s += max(*busy, far_s, link_s) + way_s
        self.far_bytes += sum(far)
        self.link_bytes += sum(sent.values())


def _cores(rng: random.Random, batch: int, count: int, dies: Dies | None) -> Any:
    """Cores of which nothing but numbers is known."""
    whole = SimpleNamespace(
        graph=SimpleNamespace(batch=batch), launch_s=rng.choice([0.0, 2.0]), far_rate=4.0,
        near_rate=8.0, far_j=2.0, near_j=0.5, room_bytes=1e9, takes_weights=rng.random() < 0.8,
        device=SimpleNamespace(idle_power=SimpleNamespace(value=0.25)),
    )  # fmt: skip
    whole.cost_of = functools.partial(FusionPricer.cost_of, whole)
    core = SimpleNamespace(
        near_rate=rng.choice([2.0, 50.0]), far_rate=rng.choice([0.2, 1.0, 9.0]), room_bytes=1e9
    )
    cores = Cores.__new__(Cores)
    vars(cores).update(
        whole=whole, core=core, count=count, dies=dies, interleaved=False, link_j=1.5,
        separate=dies is not None,
    )  # fmt: skip
    return cores


@pytest.mark.parametrize("kind", ["arrays", "dies"])
def test_beats_are_those_of_a_player(chiplet: str, kind: str) -> None:
    """200 random regions: rows that are read are there; time, bytes and room of all beats."""
    rng = random.Random(kind)
    fields = {"link.latency": "3 s", "link.bandwidth": "2 B/s", "topology": "all-to-all"}
    dies = load_device(chiplet, {f"dies.{name}": value for name, value in fields.items()}).dies
    deep = 0
    for _ in range(100):
        region, batch, count = random_region(rng), rng.choice([1, 2, 3, 7]), rng.randint(2, 3)
        on = _cores(rng, batch, count, dies if kind == "dies" else None)
        ops = [op._replace(weight_bytes=float(rng.randint(0, 9))) for op in region.ops]
        region = type(region)(tuple(ops), region.tensors)
        schedule = row_schedule(region, rng.randint(1, region.rows), "line-buffer")
        shape = (len(ops), schedule.steps)
        work = StepWork(
            np.array([[rng.uniform(0, 9) for _ in range(shape[1])] for _ in range(shape[0])]),
            np.array([[float(rng.randint(0, 3))] * shape[1]] * shape[0]), 5.0,
        )  # fmt: skip
        cores = [rng.randrange(count) for _ in ops]
        weights: Any = rng.choice(["held", "streamed"])
        beats = PipelineBeats(on, schedule, weights, cores)
        player = _Player(on, schedule, weights, cores, work)
        player.play()
        found = beats.cost(work)
        deep += max(player.depth) > 0
        assert beats.held_bytes == pytest.approx(player.all_most)
        assert found.time_s == pytest.approx(
            max(player.time_s, player.far_bytes / on.whole.far_rate)
        )
        assert found.far_bytes == pytest.approx(player.far_bytes)
        events_j = found.energy_j - 0.25 * found.time_s - batch * 5.0
        own = batch * float(work.far_bytes.sum())
        assert events_j == pytest.approx(2.5 * (player.far_bytes - own) + 2.5 * player.link_bytes)
        if kind == "dies":
            on.core.room_bytes = max(player.most)
            assert PipelineBeats(on, schedule, weights, cores).fits
            on.core.room_bytes = max(player.most) * (1 - 1e-9) - 1e-9
            assert not PipelineBeats(on, schedule, weights, cores).fits
    assert deep > 30


@pytest.mark.parametrize("part", [0, *further(1, 2, 3)])
def test_the_fastest_allocation_is_that_of_all(part: int) -> None:
    """60 random regions: compiled branch and bound against every allocation, with little room."""
    rng, fits = random.Random(part), 0
    for _ in range(60):
        region, batch, count = random_region(rng), rng.choice([1, 2, 7]), rng.randint(2, 3)
        on = _cores(rng, batch, count, None)
        ops = [op._replace(weight_bytes=float(rng.randint(0, 9))) for op in region.ops]
        region = type(region)(tuple(ops), region.tensors)
        schedule = row_schedule(region, rng.randint(1, region.rows), "line-buffer")
        shape = (len(ops), schedule.steps)
        op_s = np.array([[rng.uniform(0, 9) for _ in range(shape[1])] for _ in range(shape[0])])
        work = StepWork(op_s, np.zeros(shape), 5.0)
        weights: Any = rng.choice(["held", "streamed"])
        layers = [0]
        for _ in ops[1:]:
            layers.append(min(layers[-1] + rng.choice([0, 1, 1]), len(ops) - 1))
        every = [
            [given[layer] for layer in layers]
            for given in itertools.product(range(count), repeat=max(layers) + 1)
        ]
        beats = [
            PipelineBeats(on, schedule, weights, cores) for cores in every if len({*cores}) > 1
        ]
        most = [one.held_bytes for one in beats] or [1.0]
        on.whole.room_bytes = rng.choice([*most, 1e9]) * (1 + 1e-9)
        fitting = [one for one in beats if one.held_bytes <= on.whole.room_bytes]
        times = [one.play(work)._replace(launch_s=0.0) for one in fitting]
        raw = [play.ops_s + play.barrier_s + play.stall_s + play.exchange_s for play in times]
        # The far memory may take longer than all beats, for every allocation alike.
        least_s = min(raw, default=math.inf)
        found_s, cores = on.fastest(layers, schedule, work, weights, math.inf)
        if math.isinf(least_s):
            assert math.isinf(found_s)
            continue
        far_s = times[0].far_bytes / on.whole.far_rate
        assert max(found_s, far_s) == pytest.approx(max(least_s, far_s), rel=1e-12)
        chosen = PipelineBeats(on, schedule, weights, cores.tolist())
        assert chosen.fits
        assert chosen.cost(work).time_s == pytest.approx(
            max(len(ops) * on.whole.launch_s + found_s, far_s), rel=1e-12
        )
        none_s, _ = on.fastest(layers, schedule, work, weights, found_s)
        assert math.isinf(none_s)
        fits += 1
    assert fits > 20


def _machine(path: str, rng: random.Random, *, dies: bool) -> Device:
    """A template with another buffer, memory and launch latency."""
    fields = {
        "memory.l2.capacity": f"{rng.choice([64, 200, 1000, 32768])} KiB",
        "memory.l2.bandwidth": f"{rng.choice([0.2, 1, 4])} TB/s",
        "memory.hbm.bandwidth": f"{rng.choice([5, 50, 400, 1200])} GB/s",
        "launch_latency": f"{rng.choice([0, 1])} us",
    }
    if dies:
        fields |= {
            "dies.link.bandwidth": f"{rng.choice([1, 20, 500])} GB/s",
            "dies.topology": rng.choice(["all-to-all", "ring", "mesh"]),
            "dies.placement": rng.choice(["cut", "interleaved"]),
        }
    return load_device(path, fields)


def _branches(batch: int) -> Graph:
    """Two convolutions of one tensor, added."""
    shape = (batch, 16, 9, 9)
    tensors = {"x": Tensor("x", shape, "bf16", Role.INPUT)}
    ops = []
    for place, (source, out) in enumerate((("x", "a"), ("x", "b"), ("b", "c"))):
        loops = Conv(batch, 16, 9, 9, 16, 3, 3, (1, 1), (1, 1))
        tensors[f"w{place}"] = Tensor(f"w{place}", (16, 16, 3, 3), "bf16", Role.WEIGHT)
        tensors[out] = Tensor(out, shape, "bf16", Role.ACTIVATION)
        ops.append(Op(out, "conv2d", Pass.FORWARD, "", (source, f"w{place}"), (out,), loops=loops))
    tensors["y"] = Tensor("y", shape, "bf16", Role.ACTIVATION)
    ops.append(Op("y", "add", Pass.FORWARD, "", ("a", "c"), ("y",), vector_flops=math.prod(shape)))
    return Graph("branches", batch, "bf16", tensors, tuple(ops), "y")


def _least_by_enumeration(
    graph: Graph, device: Device, first: int, end: int, objective: str
) -> float:
    """Price every allocation of ops to cores with every tile and way of weights."""
    whole = FusionPricer(graph, device)
    at, best = {"time": 0, "energy": 1, "bytes": 2}[objective], math.inf
    region = whole.region(first, end)
    if region is None:
        return best
    layers = layers_of(graph.ops[first:end])
    counts = core_counts(device)
    for fewer, count in zip((0, *counts), counts, strict=False):
        if max(layers) + 1 <= fewer:
            continue  # the rest would be idle
        on = Cores(whole, count)
        alike = on.dies is None or on.dies.topology == "all-to-all"
        for tile in row_tiles(region.rows):
            schedule = row_schedule(region, tile, "line-buffer")
            work = on.work(first, schedule)
            for given in itertools.product(range(count), repeat=max(layers) + 1):
                first_used = list(dict.fromkeys(given))
                if not alike and first_used != sorted(first_used):
                    continue  # only neighbours in their order are searched
                if not alike and set(given) != set(range(len(first_used))):
                    continue
                for weights, _ in whole.weights_of(region):
                    cores = [given[layer] for layer in layers]
                    beats = PipelineBeats(on, schedule, weights, cores)
                    if beats.fits and len(first_used) > 1:
                        best = min(best, beats.cost(work)[at])
    return best


@pytest.mark.parametrize("kind", ["arrays", "dies"])
@pytest.mark.parametrize("objective", ["time", "energy", "bytes"])
@pytest.mark.parametrize("graphs", [2, *further(6)])
def test_schedules_are_the_best_of_all_allocations(
    systolic: str, chiplet: str, kind: str, objective: str, graphs: int
) -> None:
    """Small chains and branches: every cut, allocation, tile and way of weights, and one core."""
    rng = random.Random(f"{kind} {objective} 2")
    better = 0
    for case in range(graphs):
        batch = rng.choice([1, 1, 3])
        graph = _branches(batch) if case % 3 == 0 else chain(rng, rng.randint(2, 4), batch)
        device = _machine(chiplet if kind == "dies" else systolic, rng, dies=kind == "dies")
        found = fuse(graph, device, objective=objective)
        for group in found.to_dict()["groups"]:
            assert len(group["core_of"]) == (len(group["ops"]) if group["cores"] > 1 else 0)
        whole, at = FusionPricer(graph, device), {"time": 0, "energy": 1, "bytes": 2}[objective]
        ops = len(graph.ops)
        alone, least = {}, {}
        for i, j in itertools.combinations(range(ops + 1), 2):
            stretch = sum(group.cost[at] for group in whole.alone(i, j))
            alone[i, j] = min([stretch, *(group.cost[at] for group in whole.groups(i, j))])
            least[i, j] = min(alone[i, j], _least_by_enumeration(graph, device, i, j, objective))

        def best_of(table: dict[tuple[int, int], float], ops: int = ops) -> float:
            return min(
                sum(table[pair] for pair in itertools.pairwise([0, *cuts, ops]))
                for number in range(ops)
                for cuts in itertools.combinations(range(1, ops), number)
            )

        assert measure(found, objective) == pytest.approx(best_of(least), rel=1e-12)
        assert measure(found, objective) <= best_of(alone) * (1 + 1e-12)
        better += best_of(least) < best_of(alone) * (1 - 1e-9)
    if objective == "time" and (kind == "arrays" or graphs == 6):
        assert better  # several cores at once are worth it somewhere


@pytest.mark.parametrize("packages", [3, *further(10)])
def test_more_of_a_package_is_never_worse(chiplet: str, packages: int) -> None:
    rng = random.Random(5)
    graph = _branches(4)
    for _ in range(packages):
        device = _machine(chiplet, rng, dies=True)
        assert device.dies is not None
        link = device.dies.link.bandwidth
        wide = device.dies.link.model_copy(
            update={"bandwidth": link.model_copy(update={"value": 3 * link.value})}
        )
        better = device.model_copy(update={"dies": device.dies.model_copy(update={"link": wide})})
        one, two = fuse(graph, device).total, fuse(graph, better).total
        assert two.time_s <= one.time_s * (1 + 1e-12)
        far = device.memory["hbm"].bandwidth
        assert far is not None
        assert one.time_s >= one.far_bytes / far.value * (1 - 1e-12)


@pytest.mark.parametrize("topology", ["all-to-all", "ring", "mesh"])
@pytest.mark.parametrize("count", [2, 4, 6, 9])
def test_routes_are_shortest_and_load_links_as_the_closed_form_says(
    chiplet: str, topology: str, count: int
) -> None:
    """A search over the graph of dies; the busiest link when all exchange alike."""
    dies = load_device(chiplet).dies
    assert dies is not None
    number = dies.count.model_copy(update={"value": count})
    dies = dies.model_copy(update={"topology": topology, "count": number})
    pairs = list(itertools.permutations(range(count), 2))
    loads: dict[tuple[int, int], float] = {}
    for pair in pairs:
        for link, share in dies.route(*pair).items():
            loads[link] = loads.get(link, 0.0) + share
    paths = dies.paths(count)
    assert len(loads) == paths.links
    assert max(loads.values()) == pytest.approx(paths.busiest)
    assert sum(loads.values()) / len(pairs) == pytest.approx(paths.mean_hops)
    for start, end in pairs:
        away, queue = {start: 0}, deque([start])
        while queue:
            at = queue.popleft()
            for a, b in loads:
                if a == at and b not in away:
                    away[b] = away[at] + 1
                    queue.append(b)
        assert sum(dies.route(start, end).values()) == pytest.approx(away[end])
    if topology == "mesh":  # neighbours follow each other
        assert all(len(dies.route(die, die + 1)) == 1 for die in range(count - 1))


def test_the_verb_names_the_core_of_each_layer(
    systolic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Branches of GoogLeNet side by side, each on half of the arrays."""
    words = ["fuse", "googlenet", systolic, "--batch", "8", "--objective", "energy"]
    words += ["--set", "device.launch_latency=0 us", "--set", "device.memory.l2.capacity=4 MiB"]
    assert execute([*words, "--longest", "4"]) == 0
    printed = capsys.readouterr().out
    assert "pipeline over 2 equal parts of the arrays: 0: " in printed
