"""Fused schedules: every cut by enumeration, steps against a player, bounds, Alwani's VGGNet-E."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st

import ridgeline as rl
from fused_graphs import chain, measure
from ridgeline.cli import execute
from ridgeline.errors import RidgelineError
from ridgeline.hardware import load_device
from ridgeline.hardware.device import Device
from ridgeline.hardware.templates import device_template
from ridgeline.kernels.fusion.groups import FusionPricer
from ridgeline.kernels.fusion.line_buffers import row_schedule
from ridgeline.kernels.fusion.regions import (
    by_rows_of,
    region_of,
    rows_of,
    rows_written,
    windows,
)
from ridgeline.kernels.fusion.row_ops import on_rows
from ridgeline.kernels.fusion.schedule import fuse
from ridgeline.kernels.fusion.training_order import fusing_order
from ridgeline.workload.graph import Graph, Pass, Role
from ridgeline.workload.inference_mode import inference_mode
from thoroughly import further, sample_of


@pytest.fixture(scope="module")
def systolic(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("fusion") / "my-systolic.yaml"
    path.write_text(device_template("systolic"), "utf-8")
    return str(path)


ROOMS = (16, 64, 200, 1000, 32768)


def machine(path: str, rng: random.Random, arrays: int = 4, rooms: Sequence[int] = ROOMS) -> Device:
    """The template with some arrays, another buffer (KiB), memory and launch latency."""
    return load_device(
        path,
        {
            "engines.mxu.array.count": arrays,
            "engines.mxu.rates.bf16": f"{arrays * 32.768} TFLOP/s",
            "memory.l2.capacity": f"{rng.choice(rooms)} KiB",
            "memory.l2.bandwidth": f"{rng.choice([0.2, 1, 4])} TB/s",
            "memory.hbm.bandwidth": f"{rng.choice([5, 50, 400, 1200])} GB/s",
            "launch_latency": f"{rng.choice([0, 1, 5])} us",
        },
    )


@pytest.mark.parametrize(("part", "chains"), [(0, 20), *further(*((k, 75) for k in range(4)))])
def test_the_schedule_is_the_best_of_all_cuts(systolic: str, part: int, chains: int) -> None:
    """300 random chains: every way to cut them, every tile, halo and place of weights."""
    rng = random.Random(100 + part)
    for _ in range(chains):
        graph = chain(rng, rng.randint(1, 5), rng.choice([1, 1, 3]))
        objective = rng.choice(["time", "energy", "bytes"])
        device = machine(systolic, rng, arrays=1)
        found = fuse(graph, device, objective=objective)
        pricer = FusionPricer(graph, device)
        at = {"time": 0, "energy": 1, "bytes": 2}[objective]
        ops = len(graph.ops)
        options = {
            (i, j): [
                *(group.cost[at] for group in pricer.groups(i, j)),
                sum(group.cost[at] for group in pricer.alone(i, j)),
            ]
            for i, j in itertools.combinations(range(ops + 1), 2)
        }
        best = math.inf
        for places in itertools.product([False, True], repeat=ops - 1):
            ends = [0, *(i + 1 for i, cut in enumerate(places) if cut), ops]
            best = min(best, sum(min(options[pair]) for pair in itertools.pairwise(ends)))
        assert measure(found, objective) == pytest.approx(best, rel=1e-12)
        assert [group.first for group in found.groups][1:] == [g.end for g in found.groups][:-1]


@pytest.mark.parametrize(("part", "chains"), [(0, 7), *further((0, 25), (1, 25), (2, 25))])
def test_bounds_and_more_room(systolic: str, part: int, chains: int) -> None:
    rng = random.Random(part)
    for _ in range(chains):
        graph = chain(rng, rng.randint(2, 6), rng.choice([1, 2]))
        device, objective = machine(systolic, rng), rng.choice(["time", "energy", "bytes"])
        found = fuse(graph, device, objective=objective)
        total = found.total
        for apart in (found.layer_by_layer, found.kept_whole):
            alone = {"time": apart.time_s, "energy": apart.energy_j, "bytes": apart.far_bytes}
            assert measure(found, objective) <= alone[objective] * (1 + 1e-12)
        compulsory = sum(
            tensor.bytes
            for name, tensor in graph.tensors.items()
            if tensor.role is Role.WEIGHT or name == graph.loss  # strides may leave inputs out
        )
        assert total.far_bytes >= compulsory * (1 - 1e-12)
        far = device.memory["hbm"].bandwidth
        assert far is not None
        for group in found.groups:
            assert group.cost.time_s >= group.cost.far_bytes / far.value * (1 - 1e-12)
            flops = sum(op.matrix_flops for op in graph.ops[group.first : group.end])
            assert group.cost.time_s >= flops / 131.072e12 * (1 - 1e-12)
            assert group.held_bytes <= found.room_bytes
            roof = found.roofline(group)
            assert roof["flop_per_s"] <= roof["attainable_flop_per_s"] * (1 + 1e-9)
        level = device.memory["l2"]
        double = level.capacity.model_copy(update={"value": 2 * level.capacity.value})
        memory = device.memory | {"l2": level.model_copy(update={"capacity": double})}
        larger = fuse(graph, device.model_copy(update={"memory": memory}), objective=objective)
        assert measure(larger, objective) <= measure(found, objective) * (1 + 1e-9)


@sample_of(50, 200, data=st.data())
def test_steps_of_all_samples_are_played(systolic: str, data: st.DataObject) -> None:
    """One step after the other: its ops, beside what the next one loads and this one stores."""
    steps, batch = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 4))
    seconds = st.floats(0, 1e-5)
    amounts = st.lists(st.floats(0, 1e6), min_size=steps, max_size=steps)
    ops_s = data.draw(st.lists(seconds, min_size=steps, max_size=steps))
    load, store, once = data.draw(amounts), data.draw(amounts), data.draw(st.floats(0, 1e6))
    graph = chain(random.Random(1), 2, batch)
    pricer = FusionPricer(graph, load_device(systolic))
    found = pricer._played(np.array(ops_s), np.array(load), np.array(store), 0.0, once, launches=3)
    far, near = pricer.far_rate, pricer.near_rate
    now_s = 3 * pricer.launch_s + (once + load[0]) / far
    every = [(sample, step) for sample in range(batch) for step in range(steps)]
    for place, (_, step) in enumerate(every):
        following = load[every[place + 1][1]] if place + 1 < len(every) else 0.0
        busy_s = ops_s[step] + (load[step] + store[step]) / near
        now_s += max(busy_s, (following + store[step]) / far)
    assert found.time_s == pytest.approx(now_s, rel=1e-9)
    assert found.far_bytes == pytest.approx(once + batch * (sum(load) + sum(store)))


@pytest.mark.parametrize("model", ["vgg19", "resnet50", "bert-base", "gpt2", "mobilenet"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("training", [False, True])
def test_pieces_of_an_op_do_its_work(model: str, batch: int, training: bool) -> None:
    network = rl.load_model(model)
    assert isinstance(network, rl.Model)
    graph = inference_mode(network.inference(batch, "bf16-mixed"))
    if training:
        graph = network.training(batch, "bf16-true")
    passes: Counter[Pass] = Counter()
    for op in graph.ops:
        found = windows(op, graph)
        if found is None:
            continue
        whole = rows_of(by_rows_of(op, graph).shape)
        for rows in {1, whole}:
            piece, alone = on_rows(op, graph, found, rows)
            pieces = batch * whole // rows
            assert pieces * piece.matrix_flops == op.matrix_flops
            assert pieces * piece.vector_flops >= op.vector_flops
            for name in op.outputs:
                made, summed = alone.tensors[name], name not in rows_written(op, graph)
                times = 1 if summed else pieces
                if rows == whole or len(made.shape) > 2:  # statistics of rows are there at once
                    assert times * made.elements == graph.tensors[name].elements
        passes[op.pass_] += 1
    assert passes[Pass.FORWARD] > len(graph.ops) / (9 if training else 3)
    if training and model in ("vgg19", "bert-base", "gpt2"):
        assert passes[Pass.INPUT_GRADIENT] > len(graph.ops) / 9
        assert passes[Pass.WEIGHT_GRADIENT] > len(graph.ops) / 9


@pytest.mark.parametrize("model", ["lenet5", "vgg16", "bert-base", "googlenet"])
@pytest.mark.parametrize("precision", ["bf16-true", "bf16-mixed"])
def test_the_order_of_fusing_is_an_order_of_the_step(model: str, precision: str) -> None:
    network = rl.load_model(model)
    assert isinstance(network, rl.Model)
    graph = network.training(2, precision)
    ordered = fusing_order(graph)
    assert sorted(map(id, ordered.ops)) == sorted(map(id, graph.ops))
    # Of every tensor, each op that reads it does so behind the same op that wrote it.
    versions = []
    for ops in (graph.ops, ordered.ops):
        wrote: dict[str, int] = {}
        read: dict[int, tuple[int | None, ...]] = {}
        for op in ops:
            read[id(op)] = tuple(wrote.get(name) for name in op.inputs)
            wrote |= dict.fromkeys(op.outputs, id(op))
        versions.append(read)
    assert versions[0] == versions[1]


@pytest.mark.parametrize("part", [0, *further(1, 2, 3, 4)])
def test_a_fused_training_step_is_never_worse(systolic: str, part: int) -> None:
    """Than layer by layer, and than the step that keeps whole tensors on chip; with more room."""
    rng = random.Random(f"training {part}")
    fused: Counter[Pass] = Counter()
    for model, overrides in (
        ("lenet5", {}),
        ("mlp", {"inputs": 64, "widths": [96, 96, 10]}),
        ("gpt2", {"layers": 1, "sequence": 64, "vocabulary": 512}),
        ("vgg16", {"image.height": 32, "image.width": 32}),
    ):
        network = rl.load_model(model, overrides)
        assert isinstance(network, rl.Model)
        graph = fusing_order(network.training(rng.choice([1, 2, 4]), "bf16-true"))
        device = machine(systolic, rng, arrays=1, rooms=(64, 200))
        near = device.memory["l1"].model_copy(update={"keeps": False})  # it is larger than l2
        device = device.model_copy(update={"memory": device.memory | {"l1": near}})
        objective = rng.choice(["time", "energy", "bytes", "bytes"])
        found = fuse(graph, device, objective=objective, longest=6)
        for apart in (found.layer_by_layer, found.kept_whole):
            alone = {"time": apart.time_s, "energy": apart.energy_j, "bytes": apart.far_bytes}
            assert measure(found, objective) <= alone[objective] * (1 + 1e-12)
        for group in found.groups:
            ops = graph.ops[group.first : group.end]
            flops = sum(op.matrix_flops for op in ops)
            assert group.cost.time_s >= flops / 32.768e12 * (1 - 1e-12)
            if group.rows:
                assert group.held_bytes <= found.room_bytes
                # What the backward pass reads is written, sums are, and inputs are read.
                least = _crossing_bytes(graph, group.first, group.end)
                assert group.cost.far_bytes >= least * (1 - 1e-9)
                fused.update(op.pass_ for op in ops if len(ops) > 1)
        assert sum(g.end - g.first for g in found.groups) == len(graph.ops)
        level = device.memory["l2"]
        double = level.capacity.model_copy(update={"value": 2 * level.capacity.value})
        memory = device.memory | {"l2": level.model_copy(update={"capacity": double})}
        larger = device.model_copy(update={"memory": memory})
        more = fuse(graph, larger, objective=objective, longest=6)
        assert measure(more, objective) <= measure(found, objective) * (1 + 1e-9)
    assert fused[Pass.FORWARD]
    assert fused[Pass.INPUT_GRADIENT]
    assert fused[Pass.WEIGHT_GRADIENT]


def _crossing_bytes(graph: Graph, first: int, end: int) -> float:
    """Bytes of tensors that a group reads from outside, or writes for ops behind it."""
    ops = graph.ops[first:end]
    made = {name for op in ops for name in op.outputs}
    behind = {name for op in graph.ops[end:] for name in op.inputs}
    read = {name for op in ops for name in op.inputs} - made
    strided = {op.inputs[0] for op in ops if op.kind in ("conv2d", "max-pool", "avg-pool")}
    names = (read - strided) | (made & behind)  # strides may leave rows out
    return math.fsum(graph.tensors[name].bytes for name in names)


def test_first_layers_of_vggnet_e_are_those_of_alwani() -> None:
    """Fused, five convolutions move 3.64 MB where they moved 77, for 362 kB more on chip (Table 2,
    Figure 7 of Alwani et al., MICRO 2016). Kept between steps: two rows of five tensors, 349 kB."""
    network = rl.load_model("vgg19")
    assert isinstance(network, rl.Model)
    graph = inference_mode(network.inference(1, "fp32"))
    end = next(at for at, op in enumerate(graph.ops) if op.name == "conv3-1") + 1
    ops = graph.ops[:end]
    assert sum(op.kind == "conv2d" for op in ops) == 5
    region = region_of(ops, graph, frozenset(ops[-1].outputs))
    assert region is not None
    ends = (region.tensors[0], region.tensors[-1])
    moved = sum(tensor.rows * tensor.row_bytes for tensor in ends)
    assert moved / 2**20 == pytest.approx(3.64, rel=0.01)
    schedule = row_schedule(region, 1, "line-buffer")
    kept = np.zeros(schedule.steps)
    for tensor, made, pending in zip(region.tensors, schedule.made, schedule.pending, strict=True):
        if pending:
            first = np.minimum.reduce([need.first[1:] for need in pending])
            kept += np.maximum(0, made.end - first) * tensor.row_bytes
    assert kept.max() / 1e3 == pytest.approx(362, rel=0.05)
    apart = sum(
        graph.tensors[name].bytes
        for op in ops
        for name in (*op.inputs, *op.outputs)
        if graph.tensors[name].role not in (Role.WEIGHT, Role.BUFFER)
    )
    assert apart / 2**20 == pytest.approx(77, rel=0.15)


def test_the_verb_prints_groups_and_why_they_end(
    systolic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["fuse", "vgg13", systolic, "--objective", "bytes"]
    assert execute(words) == 0
    printed = capsys.readouterr().out
    assert "layer by layer" in printed
    assert "tensors kept whole" in printed
    assert "ends: with avgpool it is no better" in printed
    small = ["--longest", "4", "--set", "device.memory.l2.capacity=512 KiB"]
    assert execute([*words, *small]) == 0
    why = "ends: with conv2-1 at least 420 kB would be held, l2 has room for 262 kB"
    assert why in capsys.readouterr().out
    assert execute([*words, "--json", "--longest", "3"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert max(len(group["ops"]) for group in found["groups"]) <= 3
    assert found["total"]["far_bytes"] < found["layer_by_layer"]["far_bytes"]
    assert execute([*words, "--set", "device.memory.l2.keeps=false",
                    "--set", "device.memory.l1.keeps=false"]) == 2  # fmt: skip
    assert "keeps=true" in capsys.readouterr().err
    assert execute(["fuse", "vgg13", systolic, "--objective", "tim"]) == 2
    assert "did you mean 'time'" in capsys.readouterr().err


def test_a_device_without_such_a_level_is_refused(tmp_path: Path) -> None:
    network = rl.load_model("mlp")
    assert isinstance(network, rl.Model)
    with pytest.raises(RidgelineError, match=r"h100-sxm5-80gb describes no level.*l2\.keeps=true"):
        fuse(network, "h100-sxm5-80gb")
    for kind, why in (
        ("grid", "the memories of its cores keep what all ops need"),
        ("bsp", "has no memory behind tile-memory, where all tensors"),
    ):
        path = tmp_path / f"{kind}.yaml"
        path.write_text(device_template(kind), "utf-8")
        with pytest.raises(RidgelineError, match=why):
            fuse(network, str(path))
