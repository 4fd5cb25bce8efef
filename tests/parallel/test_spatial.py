"""Devices that share rows of images: what they fetch of each other is what they need, no more."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import ridgeline as rl
from oracles.graph_interpreter import run
from oracles.shared_rows import SharedRows
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.parallel.sharding.divide import ShardingSpec, divide
from ridgeline.parallel.sharding.halo import ends, halo_rows
from ridgeline.parallel.sharding.inserted_ops import HALO
from ridgeline.parallel.sharding.shard import COLLECTIVES
from ridgeline.parallel.sharding.spatial import PAIRS, with_shared_images
from ridgeline.workload import ops, training_graph
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.files import load_model
from ridgeline.workload.graph import Gemm, Graph, Op, Role
from ridgeline.workload.numerics import PRECISIONS
from ridgeline.workload.ops.contraction import GEMM, contract
from ridgeline.workload.ops.functions import function
from ridgeline.workload.optimizers import OPTIMIZERS
from ridgeline.workload.sharding_axes import Window
from stacked import PLAIN, stacked

FP32 = 4


def _layer(draw: st.DrawFn, b: GraphBuilder, name: str, x: str) -> str:
    """Put any op that reads windows, or none, behind x."""
    h, w = b.shape(x)[2:]
    kind = draw(st.sampled_from(["conv", "conv", "conv", "max", "avg", "up", "transposed", "relu"]))
    r, s = draw(st.integers(1, min(h, 4))), draw(st.integers(1, min(w, 3)))
    stride = (draw(st.integers(1, 3)), draw(st.integers(1, 2)))
    if kind == "conv":
        padding, dilation = (
            (draw(st.integers(0, 3)), draw(st.integers(0, 1))),
            draw(st.integers(1, 2)),
        )
        assume(h + 2 * padding[0] > dilation * (r - 1) and w + 2 * padding[1] > dilation * (s - 1))
        return ops.conv2d(
            b, name, x, 2, (r, s), stride=stride, padding=padding, dilation=dilation,
            groups=draw(st.sampled_from([1, 2])) if b.shape(x)[1] == 2 else 1,
            bias=draw(st.booleans()),
        )  # fmt: skip
    if kind in {"max", "avg"}:
        pool = ops.max_pool if kind == "max" else ops.avg_pool
        padding = (draw(st.integers(0, r // 2)), draw(st.integers(0, s // 2)))
        return pool(b, name, x, (r, s), stride=stride, padding=padding)
    if kind == "up":
        size = (draw(st.integers(h, 2 * h)), w)
        return ops.upsample(b, name, x, size, draw(st.sampled_from(["nearest", "bilinear"])))
    if kind == "transposed":
        stride = draw(st.integers(1, 3))
        kernel = draw(st.integers(stride, stride + 1))
        padding = (kernel - stride + 1) // 2  # the output is `stride` times larger, or about so
        return ops.conv_transpose2d(b, name, x, 2, kernel, stride=stride, padding=padding)
    return ops.relu(b, name, x)


@st.composite
def networks(draw: st.DrawFn) -> Graph:
    b = GraphBuilder("random", draw(st.integers(1, 2)), PRECISIONS["fp32"], "images")
    height, width = draw(st.integers(4, 13)), draw(st.integers(3, 6))
    x = b.input("images", (b.batch, draw(st.integers(1, 2)), height, width))
    x = ops.conv2d(b, "stem", x, 2, 1)  # so that the first layer has an input's gradient, too
    for i in range(draw(st.integers(1, 3))):
        x = _layer(draw, b, f"layer{i}", x)
    x = ops.linear(b, "fc", x, 3, flatten=True)
    loss = ops.cross_entropy(b, "loss", x, b.input("labels", (b.batch,), "int64"))
    return training_graph(b.graph(loss), OPTIMIZERS["sgd"])


def fetched(made: Graph, op: Op) -> dict[str, tuple[str, int]]:
    """Pairs and bytes of what an op reads of neighbours, by the tensor that it is of."""
    halos = {name: move for move in made.ops if move.kind == HALO for name in move.outputs}
    return {
        move.inputs[move.outputs.index(name)]: (
            str(dict(move.attrs)[PAIRS]),
            int(dict(move.attrs)["size_bytes"]),
        )
        for name, move in ((n, halos[n]) for n in op.inputs if n in halos)
    }


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(networks(), st.integers(2, 4), st.sampled_from([-2, -1]), st.integers(0, 2**32 - 1))
def test_devices_copy_exactly_the_rows_that_they_need(
    graph: Graph, parts: int, axis: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    values = {
        t.name: np.zeros(t.shape, int) if t.format == "int64" else rng.normal(size=t.shape)
        for t in graph.tensors.values()
        if t.role in {Role.INPUT, Role.WEIGHT, Role.BUFFER}
    }
    assume(graph.tensors["images"].shape[axis] >= parts)
    grid = (parts, 1) if axis == -2 else (1, parts)
    made = with_shared_images(graph, *grid).graph
    local = {op.name: op for op in made.ops}
    env = run(graph, values)
    for name, value in env.items():  # every op by itself, on numbers of which none is zero
        if value.dtype.kind == "f":
            env[name] = rng.normal(size=value.shape)
    played = SharedRows(graph, env, parts, axis)
    is_small = False  # from here on images may be whole
    for op in graph.ops:
        mine = local[op.name]
        images = [name for name in (*op.inputs, *op.outputs) if played.size(name)]
        if op.kind == "optimizer" or len(images) < 2:
            continue
        if "pool" in op.kind and min(map(played.size, images)) == 1:
            continue  # of one row: every device adds its part
        is_small = is_small or any(played.size(name) < parts for name in images)
        if is_small and mine.inputs == op.inputs and mine.loops == op.loops:
            assert [made.tensors[n].shape for n in images] == [env[n].shape for n in images]
            continue
        if any(played.size(name) < parts for name in images):
            assert mine.loops == op.loops  # done whole by all
            assert not fetched(made, mine)
            continue
        names = dict(zip((*op.inputs, *op.outputs), (*mine.inputs, *mine.outputs), strict=False))
        names |= dict(zip(op.outputs, mine.outputs, strict=True))
        for name in images:
            assert made.tensors[names[name]].shape[axis] == -(-played.size(name) // parts)
        if op.kind == "relu":
            continue
        found: dict[str, dict[tuple[int, int], int]] = {}
        for part in played.copied(op):
            found.setdefault(mine.inputs[part.input], {})[part.owner, part.reader] = part.rows
        sent = fetched(made, mine)
        assert set(sent) == set(found), op.name
        whole = {mine: name for name, mine in names.items()}
        for name, rows in found.items():
            pairs, size_bytes = sent[name]
            assert pairs == " ".join(
                f"{s}>{t}:{n}" for (s, t), n in sorted(rows.items(), key=lambda item: item[0][::-1])
            )
            together = [whole[other] for other in sent if sent[other] == sent[name]]
            row_bytes = [graph.tensors[o].bytes // played.size(o) for o in together]
            assert size_bytes == sum(rows.values()) * sum(row_bytes)
        played.check(op)


@pytest.mark.parametrize("kind", ["slide", "spread", "adaptive", "nearest", "bilinear"])
def test_the_backward_pass_sends_along_the_same_pairs_the_other_way(kind: str) -> None:
    """As many devices talk, turned round: windows that reach a row are those that it reaches."""
    window = Window(kind, 3, 1, 1)  # type: ignore[arg-type]
    ahead, back = (halo_rows(window, 24, 24, 4, back=turned) for turned in (False, True))
    assert ((ahead > 0) == (back.T > 0)).all()


def test_shares_are_as_even_as_can_be() -> None:
    for rows in range(1, 40):
        for parts in range(1, rows + 1):
            sizes = np.diff(ends(rows, parts))
            assert sizes.sum() == rows
            assert sizes.max() == math.ceil(rows / parts)
            assert sizes.min() == rows // parts


@pytest.mark.parametrize("grid", [(2, 1), (1, 4), (2, 2), (4, 2)])
@pytest.mark.parametrize("name", ["unet-3d", "vgg16", "resnet50", "mobilenet"])
def test_nothing_is_lost_or_done_twice(name: str, grid: tuple[int, int]) -> None:
    """Images are 224 or 128 pixels wide: every layer but VGG's and ResNet's last divides evenly."""
    graph = load_model(name).training(1, "fp32")
    made = with_shared_images(graph, *grid)
    devices = math.prod(grid)
    parts = {op.name: op for op in made.graph.ops}
    for op in graph.ops:
        if op.loops is None:
            continue
        rows, columns = (graph.tensors[n].shape[-2:] for n in (op.inputs[0], op.outputs[0]))
        even = all(size % part == 0 for size, part in zip((*rows, *columns), grid * 2, strict=True))
        if op.kind == "conv2d" and op.pass_.value == "forward" and even:
            assert parts[op.name].matrix_flops * devices == op.matrix_flops, op.name
    assert made.graph.parameters == graph.parameters
    convolved = {op.inputs[1] for op in graph.ops if op.kind == "conv2d" and op.name in parts}
    assert convolved & set(made.apart)
    assert not any(weight.startswith("fc") for weight in made.apart)


def test_a_grid_fetches_corners() -> None:
    """By hand: four devices with 8 x 8 pixels each, windows of 3 x 3 with padding 1."""
    b = GraphBuilder("corners", 1, PRECISIONS["fp32"], "images")
    x = ops.conv2d(b, "conv", b.input("images", (1, 1, 16, 16)), 1, 3, padding=1, bias=False)
    x = ops.linear(b, "fc", x, 2, flatten=True)
    loss = ops.cross_entropy(b, "loss", x, b.input("labels", (1,), "int64"))
    made = with_shared_images(training_graph(b.graph(loss), OPTIMIZERS["sgd"]), 2, 2)
    moves = [op for op in made.graph.ops if op.kind == HALO and op.pass_.value == "forward"]
    rows, columns = (int(dict(op.attrs)["size_bytes"]) for op in moves)
    assert rows == 2 * 8 * FP32  # of one column of devices: a row each way
    assert columns == 2 * (8 + 1) * FP32  # with the corner


def test_statistics_of_shared_images_can_be_summed_up() -> None:
    graph = load_model("resnet18").training(2, "fp32")
    norms = [op for op in graph.ops if op.kind == "batch-norm" and op.pass_.value == "forward"]
    layers = {op.layer for op in norms}
    own, shared = (
        [
            op
            for op in with_shared_images(graph, 2, 2, shared_statistics=sums).graph.ops
            if op.kind == "all-reduce" and op.layer in layers
        ]
        for sums in (False, True)
    )
    assert not own
    assert len(shared) == 4 * len(norms)  # rows and columns, forward and backward
    sizes = {op.layer: int(dict(op.attrs)["size_bytes"]) for op in shared}
    for norm in norms:
        assert sizes[norm.layer] == 2 * FP32 * graph.tensors[norm.inputs[1]].elements


@pytest.mark.parametrize(
    "plan",
    [
        {"spatial": "4"},
        {"spatial": "2x2", "data": 2},
        {"spatial": 2, "tensor": 2, "data": 2, "zero_stage": 2},
        {"spatial": 2, "pipeline": 2, "data": 2, "micro_batch": 1},
        {
            "spatial": 2,
            "data": 2,
            "zero_stage": 3,
            "recompute": "full",
            "kernels__sync_batch_norm": True,
        },
    ],
)
def test_one_rank_stands_for_all(plan: dict[str, object]) -> None:
    made = stacked(global_batch=8, **plan)
    folded, every = (rl.simulate("resnet18", "dgx-a100", made, fold=fold) for fold in (True, False))
    assert folded.step_time_s == pytest.approx(every.step_time_s, rel=1e-9)
    assert folded.memory_bytes == every.memory_bytes
    assert folded.energy_j["total"] == pytest.approx(every.energy_j["total"], rel=1e-9)


def test_the_program_sends_what_the_graph_says() -> None:
    plan = rl.Plan(global_batch=4, spatial="4")
    lowered = rl.simulate("resnet18", "dgx-a100", plan).details.lowered
    said = sorted(
        float(dict(op.attrs)["size_bytes"]) for op in lowered.graph.ops if op.kind == HALO
    )
    talks = sorted(talk.size_bytes for talk in lowered.talks.values() if talk.op == HALO)
    assert said == talks
    assert said
    rows = {row for (row, _), talk in lowered.talks.items() if talk.op == HALO}
    assert {lowered.dimension_of_row[row] for row in rows} == {"spatial"}


@pytest.mark.parametrize("spatial", ["2", "2x2"])
def test_layers_that_divide_samples_are_replicas_that_share_images(spatial: str) -> None:
    fields = {"global_batch": 8, "spatial": spatial, "zero_stage": 1}
    plain = stacked(data=2, micro_batch=2, **fields)
    ruled = stacked(tensor=2, layers="*:tensor=1", micro_batch=4, **fields)  # in one node
    one, other = (rl.simulate("resnet18", "selene-a100", plan) for plan in (plain, ruled))
    assert one.time_s == pytest.approx(other.time_s, rel=2e-6)  # bytes of halos are rounded up
    assert one.memory_bytes == other.memory_bytes
    assert one.traffic_bytes == pytest.approx(other.traffic_bytes, rel=2e-6)
    some = stacked(data=2, layers="layer4*:tensor=2", **fields)
    folded, whole = (rl.simulate("resnet18", "selene-a100", some, fold=f) for f in (True, False))
    assert folded.step_time_s == pytest.approx(whole.step_time_s, rel=1e-9)
    assert folded.memory_bytes["weights"] < one.memory_bytes["weights"]


def test_memory_of_activations_is_shared_and_weights_are_not() -> None:
    graph = load_model("unet-3d").training(1, "fp32")
    made = divide(graph, ShardingSpec(grid=(2, 2))).graph
    ratio = graph.activation_bytes / made.activation_bytes
    assert 3.6 < ratio < 4.0  # but for halos, which are kept for the gradients of weights
    halos = {name for op in made.ops if op.kind == HALO for name in op.outputs}
    kept = {name for op in made.ops if op.pass_.value != "forward" for name in op.inputs}
    held = sum(made.tensors[n].bytes for n in halos & kept if "grad" not in n)
    assert (made.activation_bytes - held) * 4 == pytest.approx(graph.activation_bytes, rel=1e-3)
    one, four = (
        rl.simulate("unet", "dgx-a100", rl.Plan(global_batch=1, spatial=s), software=PLAIN)
        for s in ("1", "4")
    )
    assert four.memory_bytes["weights"] == one.memory_bytes["weights"]
    assert one.step_time_s / 4 < four.step_time_s < one.step_time_s / 2


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"spatial": "2x"}, "ROWSxCOLUMNS"),
        ({"spatial": "0"}, "ROWSxCOLUMNS"),
        ({"spatial": "2x2x2"}, "ROWSxCOLUMNS"),
        ({"spatial": True}, "ROWSxCOLUMNS"),
        ({"spatial": "2", "context": 2}, "context=2 is not modelled"),
    ],
)
def test_plans_that_cannot_be_say_why(fields: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        stacked(global_batch=8, **fields)


def test_networks_without_images_say_so() -> None:
    with pytest.raises(ConfigError, match="a sample of gpt2 is none"):
        divide(load_model("gpt2").training(1, "fp32"), ShardingSpec(grid=(2, 1)))
    with pytest.raises(RidgelineError, match="at most 32"):
        divide(load_model("lenet5").training(1, "fp32"), ShardingSpec(grid=(64, 1)))


def test_products_that_read_images_with_channels_last_are_shared_by_rows() -> None:
    """As traced ConvNeXts do: their norms and products turn images without an op for it."""
    b = GraphBuilder("turned", 2, PRECISIONS["fp32"], "images")
    x = ops.conv2d(b, "conv", b.input("images", (2, 3, 8, 6)), 5, 3, padding=1, bias=False)
    weight = b.weight("wide.weight", (7, 5))
    (y,) = contract(b, GEMM, "wide", x, weight, [(2, 8, 6, 7)], Gemm(96, 7, 5))
    weight = b.weight("narrow.weight", (5, 7))
    (y,) = contract(b, GEMM, "narrow", y, weight, [(2, 8, 6, 5)], Gemm(96, 5, 7))
    y, *_ = function(b, "join", "broadcast-add", (x, y), (2, 5, 8, 6))
    x = ops.linear(b, "fc", ops.conv2d(b, "last", y, 2, 1), 3, flatten=True)
    loss = ops.cross_entropy(b, "loss", x, b.input("labels", (2,), "int64"))
    graph = training_graph(b.graph(loss), OPTIMIZERS["sgd"])
    made = with_shared_images(graph, 2, 3)
    assert made.whole == {"gemm": 1}
    assert {made.apart[f"{name}.weight"] for name in ("conv", "wide", "narrow")} == {"data.spatial"}
    local = {op.name: op for op in made.graph.ops}
    for op in graph.ops:
        if op.layer in {"wide", "narrow"} and op.loops is not None:
            assert local[op.name].matrix_flops * 6 == op.matrix_flops
    moved = {op.layer for op in made.graph.ops if op.kind in COLLECTIVES}
    assert moved == {"conv", "fc"}  # halos, and the image before the last layer
