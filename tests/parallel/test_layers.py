"""Layer-wise plans: rules, what they divide, and that divided networks learn the same."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import ridgeline as rl
from oracles import graph_networks
from oracles.graph_interpreter import run
from oracles.sharded_data import Devices, divided_with_layouts, updates
from ridgeline.errors import ConfigError
from ridgeline.parallel.sharding.divide import ShardingSpec, divide
from ridgeline.parallel.sharding.shard import COLLECTIVES
from ridgeline.workload import ops, training_graph
from ridgeline.workload.autodiff import weight_gradients
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.files import load_model
from ridgeline.workload.graph import Gemm, Graph, Role
from ridgeline.workload.numerics import PRECISIONS
from ridgeline.workload.ops.contraction import GEMM, contract
from ridgeline.workload.optimizers import OPTIMIZERS
from stacked import PLAIN

SGD = OPTIMIZERS["sgd"]
CHAINS = ((1, 2), (1, 4), (2, 4), (1, 2, 4), (1, 2, 4))


def values(graph: Graph, seed: int) -> Mapping[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        t.name: rng.integers(0, 2, t.shape)
        if t.format == "int64"
        else rng.normal(size=t.shape) / math.sqrt(math.prod(t.shape[1:]))
        for t in graph.tensors.values()
        if t.role in {Role.INPUT, Role.WEIGHT, Role.BUFFER}
    }


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    make = draw(
        st.sampled_from(
            [graph_networks._images, graph_networks._sequences, graph_networks._features]
        )
    )
    return make(draw, 4, draw(st.sampled_from(sorted(PRECISIONS))))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), graphs(), st.integers(0, 2**32 - 1))
def test_any_network_learns_the_same_whatever_its_layers_are_divided_by(
    data: st.DataObject, forward: Graph, seed: int
) -> None:
    graph = training_graph(forward, SGD)
    degrees = data.draw(st.sampled_from(CHAINS))
    layers = list(dict.fromkeys(op.layer for op in graph.ops if op.loops is not None))
    of = {layer: data.draw(st.sampled_from(degrees)) for layer in layers}
    rules = ";".join(f"{layer}:tensor={degree}" for layer, degree in of.items())
    division = ShardingSpec(tensor=degrees[-1], layers=f"{rules};*:tensor={degrees[0]}")
    try:
        layouts = divided_with_layouts(graph, division)
    except ConfigError as refused:
        assert "heads" in str(refused)  # noqa: PT017
        assume(False)
    inputs = values(graph, seed)
    before = run(graph, inputs)
    devices = Devices(graph, layouts)
    assume(not devices.is_padded())
    devices.run(inputs)
    for weight, gradient in updates(graph).items():
        np.testing.assert_allclose(
            devices.gradient(weight), before[gradient], rtol=1e-5, atol=1e-8, err_msg=weight
        )


@pytest.mark.parametrize("rules", ["*:tensor=1", "conv:tensor=4;*:tensor=1", "*:tensor=4"])
def test_trained_slopes_and_lengths_of_rows_are_divided_like_what_they_are_of(rules: str) -> None:
    b = GraphBuilder("faces", 4, PRECISIONS["fp32"])
    x = ops.conv2d(b, "conv", b.input("images", (4, 3, 5, 5)), 4, 3)
    slope = b.weight("prelu.weight", (4,))
    (x,) = ops.function(b, "prelu", "prelu", (x, slope), b.shape(x))
    x = ops.linear(b, "features", x, 8, flatten=True)
    (length,) = ops.function(b, "length", "length", (x,), (4, 1))
    (x,) = ops.function(b, "divide", "divide", (x, length), b.shape(x))
    labels = b.input("labels", (4,), "int64")
    forward = b.graph(ops.cross_entropy(b, "loss", ops.linear(b, "classes", x, 4), labels))
    graph = training_graph(forward, SGD)
    layouts = divided_with_layouts(graph, ShardingSpec(tensor=4, layers=rules))
    inputs = values(graph, 7)
    before = run(graph, inputs)
    devices = Devices(graph, layouts)
    devices.run(inputs)
    for weight, gradient in updates(graph).items():
        np.testing.assert_allclose(devices.gradient(weight), before[gradient], rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("identities", [8, 12])
@pytest.mark.parametrize("layer", ["identities", "features"])
def test_rows_of_length_1_are_divided_with_the_product_that_reads_them(
    layer: str, identities: int
) -> None:
    """What a product takes for weights is formed in parts where the weights are held in parts."""
    fields = {
        "image": {"height": 8, "width": 8}, "identities": identities, "depths": [1],
        "width": 2, "features": 4, "dropout": 0.0, "optimizer": "sgd",
    }  # fmt: skip
    graph = load_model("arcface-r100", fields).training(4, "fp32")
    division = ShardingSpec(tensor=4, layers=f"{layer}*:tensor=4;*:tensor=1")
    held = divide(graph, division).graph.tensors["identities.weight"].shape
    assert held == ((identities // 4 if layer == "identities" else identities), 4)
    inputs = values(graph, 3)
    before = run(graph, inputs)
    devices = Devices(graph, divided_with_layouts(graph, division))
    devices.run(inputs)
    for weight, gradient in updates(graph).items():
        np.testing.assert_allclose(devices.gradient(weight), before[gradient], rtol=1e-5, atol=1e-8)


def sent(graph: Graph) -> Counter[tuple[str, str, str]]:
    """Bytes by pass, collective and layer."""
    found: Counter[tuple[str, str, str]] = Counter()
    for op in graph.ops:
        if op.kind in COLLECTIVES:
            found[op.pass_.value, op.kind, op.layer] += int(dict(op.attrs)["size_bytes"])
    return found


def test_tables_divided_by_columns_send_each_device_its_rows() -> None:
    """All tables' rows in one all-to-all, and no sums of parts of rows: bytes by hand."""
    devices, samples, features, fp32 = 8, 800, 128, 4
    fields = {"tables": [1000, 2000], "lookups": [3, 1], "bottom": [64, 128], "top": [64, 1]}
    graph = load_model("dlrm-dcnv2", fields).training(samples, "fp32")
    made = divide(graph, ShardingSpec(tensor=devices, layers="table*:tensor=8;*:tensor=1"))
    bytes_ = sent(made.graph)
    vectors = 3 * features * samples // devices * fp32
    assert bytes_["forward", "all-to-all", "cross1.down"] == vectors
    assert {kind for _, kind, layer in bytes_ if layer != "loss"} == {"all-to-all"}
    tables = [op for op in made.graph.ops if op.name in {"table1", "table2"}]
    assert [made.graph.tensors[op.inputs[1]].shape for op in tables] == [(1000, 16), (2000, 16)]
    assert "table1.weight" not in made.apart


def test_dot_products_of_a_recommender_are_divided_with_its_samples() -> None:
    fields = {"tables": [1000, 2000], "bottom": [64, 128], "top": [64, 1]}
    graph = load_model("dlrm", fields).training(800, "fp32")
    made = divide(graph, ShardingSpec(tensor=8, layers="table*:tensor=8;*:tensor=1")).graph
    assert {op.loops.batch for op in made.ops if op.kind == "dot-interaction"} == {100}
    assert made.flops() == graph.flops() // 8


def test_krizhevskys_network_gathers_its_images_between_its_parts() -> None:
    """Convolutions by samples, fully connected layers by features: bytes by hand."""
    per_device, devices, fp32 = 16, 8, 4
    graph = load_model("alexnet").training(per_device * devices, "fp32")
    made = divide(graph, ShardingSpec(tensor=devices, layers="fc*:tensor=8;*:tensor=1"))
    samples = per_device * devices
    pooled, hidden = 256 * 6 * 6, 4096
    bytes_ = {key: size / (samples * fp32) for key, size in sent(made.graph).items()}
    assert bytes_["forward", "all-gather", "fc6"] == pooled
    assert bytes_["input-gradient", "reduce-scatter", "fc6"] == pooled
    assert bytes_["forward", "reduce-scatter", "fc7"] == hidden
    assert bytes_["forward", "all-gather", "fc8"] == hidden
    assert bytes_["forward", "all-reduce", "loss"] == 1  # of three numbers a sample
    assert not any(layer.startswith("conv") for _, _, layer in bytes_)
    flops = sum(op.matrix_flops for op in made.graph.ops)
    assert flops * devices == sum(op.matrix_flops for op in graph.ops)
    weights = {w for w in made.apart if w.endswith("weight")}
    assert weights == {f"conv{i}.weight" for i in range(1, 6)}
    for i in range(6, 9):
        mine, whole = made.graph.tensors[f"fc{i}.weight"], graph.tensors[f"fc{i}.weight"]
        assert mine.elements * devices == whole.elements


@pytest.mark.parametrize("sharding", [0, 1, 3])
def test_rules_that_say_the_same_for_all_layers_change_nothing(sharding: int) -> None:
    plain = rl.Plan(global_batch=64, data=8, zero_stage=sharding)
    ruled = rl.Plan(global_batch=64, data=8, zero_stage=sharding, layers="*:tensor=1")
    results = [
        rl.simulate("resnet18", "dgx1-v100", plan, software=PLAIN) for plan in (plain, ruled)
    ]
    assert results[0].time_s == results[1].time_s
    assert results[0].memory_bytes == results[1].memory_bytes
    assert results[0].energy_j == results[1].energy_j
    grouped = rl.Plan(global_batch=64, data=8, zero_stage=sharding, layers="*:tensor=2")
    spread = rl.Plan(global_batch=64, data=4, tensor=2, zero_stage=sharding)
    two = [rl.simulate("mlp", "dgx1-v100", plan, software=PLAIN) for plan in (grouped, spread)]
    assert two[0].memory_bytes["weights"] == two[1].memory_bytes["weights"]


def test_every_link_carries_what_the_groups_sum() -> None:
    """Das et al., section 3.3: weights of fully connected layers are summed over the groups."""
    of = {}
    for groups in (1, 2, 4, 8):
        plan = rl.Plan(global_batch=64, data=8, layers=f"fc*:data={groups}")
        result = rl.simulate("alexnet", "dgx-a100", plan)  # whose ranks are alike: one is played
        lowered = result.details.lowered
        sums = [talk for talk in lowered.talks.values() if talk.op == "all-reduce"]
        of[groups] = sum(talk.size_bytes for talk in sums)
    graph = load_model("alexnet").training(1, "fp32")
    weights = {t.name: t.bytes for t in graph.tensors.values() if t.role is Role.WEIGHT}
    dense = sum(size for name, size in weights.items() if name.startswith("fc"))
    rest = sum(weights.values()) - dense
    for groups, size in of.items():
        shared = dense * groups / 8 if groups > 1 else 0
        assert size == pytest.approx(rest + shared, rel=0.01)


@pytest.mark.parametrize(
    "plan",
    [{"tensor": 4, "data": 2}, {"data": 8, "layers": "layer4*:tensor=4;fc:tensor=2"}],
)
def test_every_gradient_is_summed_once(plan: dict[str, Any]) -> None:
    result = rl.simulate("resnet50", "dgx-a100", rl.Plan(global_batch=32, **plan))
    lowered = result.details.lowered
    summed = sum(
        talk.size_bytes for (_, label), talk in lowered.talks.items() if label[:11] == "all-reduce "
    )
    gradients = set(weight_gradients(lowered.graph).values())
    assert summed == sum(lowered.graph.tensors[name].bytes for name in gradients)


def test_rules_of_no_layer_and_rules_that_nothing_reaches_are_refused() -> None:
    graph = load_model("alexnet").training(8, "fp32")
    with pytest.raises(ConfigError, match=r"no layer of alexnet is called 'fully"):
        divide(graph, ShardingSpec(tensor=8, layers="fully*:tensor=8;*:tensor=1"))
    with pytest.raises(ConfigError, match="'fc8' is never reached"):
        divide(graph, ShardingSpec(tensor=8, layers="fc*:tensor=8;fc8:tensor=4;*:tensor=1"))


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.booleans(), min_size=2, max_size=4),
    st.sampled_from(["*:tensor=2", "*:tensor=1", "a0:tensor=1;*:tensor=2"]),
    st.integers(0, 2**32 - 1),
)
def test_rows_may_be_one_dimension_or_two(flat: list[bool], rules: str, seed: int) -> None:
    """Products behind each other, some of which write [samples x positions, features]."""
    b = GraphBuilder("flat", 4, PRECISIONS["fp32"], "sequences", tokens_per_sample=6)
    x = b.input("x", (4, 6, 8))
    for i, is_flat in enumerate(flat):
        loops = Gemm(24, 8, 8)
        shape = (24, 8) if is_flat else (4, 6, 8)
        weight = b.weight(f"a{i}.weight", (8, 8))
        (y,) = contract(b, GEMM, f"a{i}", x, weight, [shape], loops)
        x = ops.activation(b, f"gelu{i}", y, "gelu")
    target = b.input("target", b.shape(x))
    forward = b.graph(ops.mean_squared_error(b, "loss", x, target))
    graph = training_graph(forward, SGD)
    layouts = divided_with_layouts(graph, ShardingSpec(tensor=2, layers=rules))
    inputs = values(graph, seed)
    before = run(graph, inputs)
    devices = Devices(graph, layouts)
    devices.run(inputs)
    for weight, gradient in updates(graph).items():
        np.testing.assert_allclose(
            devices.gradient(weight), before[gradient], rtol=1e-5, atol=1e-8, err_msg=weight
        )
    if rules == "*:tensor=2":
        flops = sum(op.matrix_flops for op in layouts.divided.graph.ops)
        assert flops * 2 == sum(op.matrix_flops for op in graph.ops)
