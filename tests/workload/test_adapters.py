"""Adapters of low rank: what is frozen, what is trained, and what it costs."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles.graph_interpreter import run
from ridgeline import load_cluster, simulate
from ridgeline.cli import execute
from ridgeline.errors import RidgelineError
from ridgeline.parallel.passes.unpacked_weights import with_unpacked_weights
from ridgeline.parallel.plan.plan import Plan
from ridgeline.workload import Graph, Pass, Role, load_model, training_graph, weight_gradients
from ridgeline.workload.adapters import BASE_FORMATS
from ridgeline.workload.formats import find
from ridgeline.workload.liveness import lifetimes
from ridgeline.workload.optimizers import OPTIMIZERS

SMALL = {
    "layers": 2,
    "hidden": 16,
    "sequence": 4,
    "vocabulary": 16,
    "attention.heads": 2,
    "attention.kv_heads": 1,
    "feed_forward.width": 32,
}


def network(**fields: Any) -> Graph:
    return load_model("llama2-7b", {**SMALL, **fields}).forward(2, "bf16-mixed")


def test_gradients_of_adapters_equal_derivatives_by_the_complex_step() -> None:
    forward = network(adapters={"rank": 3, "layers": ["*"]})
    training = training_graph(forward, OPTIMIZERS["sgd"])
    rng = np.random.default_rng(3)
    given_values = {
        t.name: rng.integers(0, 2, t.shape) if t.format == "int64" else rng.normal(size=t.shape)
        for t in forward.tensors.values()
        if t.role in {Role.INPUT, Role.WEIGHT, Role.BUFFER}
    }
    env = run(training, given_values)
    for weight, gradient in weight_gradients(training).items():
        v = rng.normal(size=given_values[weight].shape)
        shifted = {name: value.astype(complex) for name, value in given_values.items()}
        shifted[weight] += 1e-30j * v
        derivative = run(forward, shifted)[forward.loss].imag / 1e-30
        assert (env[gradient] * v).sum() == pytest.approx(derivative, rel=1e-8, abs=1e-10)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 24), st.sampled_from([["*"], ["*.attention.*"], ["*.feed-forward.*"]]))
def test_only_adapters_are_trained_and_all_else_costs_what_it_did(
    rank: int, layers: list[str]
) -> None:
    whole = training_graph(network(), OPTIMIZERS["adamw"])
    graph = training_graph(network(adapters={"rank": rank, "layers": layers}), OPTIMIZERS["adamw"])
    weights = {t.name for t in graph.tensors.values() if t.role is Role.WEIGHT}
    trained = {name for name in weights if ".adapter-" in name}
    assert graph.frozen == weights - trained
    assert weight_gradients(graph).keys() == trained
    assert {op.inputs[0] for op in graph.ops if op.kind == "optimizer"} == trained
    assert {graph.tensors[name].format for name in graph.frozen} == {"bf16"}
    assert graph.parameters - whole.parameters == sum(graph.tensors[n].elements for n in trained)
    more = {p: graph.flops(p) - whole.flops(p) for p in Pass}
    assert more[Pass.FORWARD] == graph.flops(Pass.WEIGHT_GRADIENT)  # a product, and its gradient
    assert graph.flops(Pass.INPUT_GRADIENT) <= graph.flops(Pass.FORWARD) * 1.5


def test_a_number_alone_is_the_rank_and_no_fitting_layer_is_an_error() -> None:
    assert load_model("llama2-7b", {"adapters": 16}).network.adapters.rank == 16
    with pytest.raises(RidgelineError, match="fits the patterns"):
        load_model("llama2-7b", {"adapters": {"rank": 4, "layers": ["nothing*"]}})


@pytest.mark.parametrize(
    "fields",
    [
        {"data": 16},
        {"data": 16, "zero_stage": 2},
        {"data": 16, "zero_stage": 3},
        {"data": 4, "tensor": 4, "sequence": 4},
        {"data": 4, "pipeline": 4, "recompute": "full"},
    ],
)
def test_frozen_gradients_are_neither_formed_nor_sent(fields: dict[str, Any]) -> None:
    machine = load_cluster("superpod-h100")
    plan = Plan(global_batch=16, micro_batch=1, precision="bf16-mixed", **fields)
    shape = {"layers": 4, "sequence": 512}
    whole, adapted = (
        simulate(load_model("llama2-7b", {**shape, **more}), machine, plan)
        for more in ({}, {"adapters": 8})
    )
    assert adapted.step_time_s < whole.step_time_s
    assert sum(adapted.memory_bytes.values()) < sum(whole.memory_bytes.values())
    assert sum(adapted.traffic_bytes.values()) < sum(whole.traffic_bytes.values())


LLAMA = {"layers": 3, "hidden": 64, "sequence": 16, "vocabulary": 32, "attention.heads": 4,
         "attention.kv_heads": 2, "feed_forward.width": 96}  # fmt: skip
MIXTURE = {"layers": 2, "hidden": 64, "sequence": 16, "vocabulary": 32, "attention.heads": 4,
           "attention.kv_heads": 2, "mixture.width": 96}  # fmt: skip
SIZES = {"q_proj": (64, 64), "k_proj": (64, 32), "v_proj": (64, 32), "o_proj": (64, 64),
         "gate_proj": (64, 96), "up_proj": (64, 96), "down_proj": (96, 64)}  # fmt: skip


def trained(graph: Graph) -> int:
    weights = (t for t in graph.tensors.values() if t.role is Role.WEIGHT)
    return sum(t.elements for t in weights if t.name not in graph.frozen)


@settings(max_examples=25, deadline=None)
@given(st.sets(st.sampled_from(sorted(SIZES)), min_size=1), st.integers(1, 9), st.booleans())
def test_projections_have_one_each_whether_products_are_fused_or_not(
    names: set[str], rank: int, fused: bool
) -> None:
    """Their parameters are those of two linear layers without bias, through `rank` features."""
    fields = {**LLAMA, "attention.fused": fused, "feed_forward.fused": fused}
    model = load_model("llama2-7b", fields).with_adapters({"rank": rank, "layers": sorted(names)})
    graph = model.training(2, "bf16-mixed")
    wanted = 3 * sum(rank * (k + n) for k, n in (SIZES[name] for name in names))
    assert trained(graph) == wanted
    assert graph.flops(Pass.WEIGHT_GRADIENT) == 2 * 2 * 16 * wanted


def test_all_linear_leaves_out_what_the_network_gives() -> None:
    model = load_model("llama2-7b", LLAMA).with_adapters("rank=2,layers=all-linear")
    assert trained(model.forward(1)) == 3 * 2 * sum(k + n for k, n in SIZES.values())
    whole = load_model("llama2-7b", LLAMA).with_adapters("2,layers=*query-key-value")
    assert trained(whole.forward(1)) == 3 * 2 * (64 + 128)
    bert = load_model("bert-base").with_adapters("rank=2,layers=all-linear").adapted
    assert bert is not None
    assert {"masked.transform", "pooler", "blocks.0.feed-forward.up"} <= bert.parts.keys()
    assert bert.outputs == {"masked", "next"}


def test_every_expert_has_adapters_of_its_own() -> None:
    model = load_model("mixtral-8x7b", MIXTURE).with_adapters("4,layers=up_proj+down_proj")
    assert trained(model.forward(1)) == 2 * 8 * 4 * ((64 + 96) + (96 + 64))
    training = training_graph(model.forward(2), OPTIMIZERS["sgd"])
    assert all(".adapter-" in weight for weight in weight_gradients(training))


def test_a_convolution_has_one_of_its_window_and_one_of_a_point() -> None:
    model = load_model("resnet50").with_adapters("rank=4,layers=conv2")
    widths = [64] * 3 + [128] * 4 + [256] * 6 + [512] * 3
    assert trained(model.forward(1)) == sum(4 * 9 * width + 4 * width for width in widths)
    with pytest.raises(RidgelineError, match="fits the patterns"):  # of groups nothing is known
        load_model("resnext50-32x4d").with_adapters("rank=4,layers=conv2")


@pytest.mark.parametrize("base_format", BASE_FORMATS)
def test_frozen_matrices_wait_in_few_bits_and_are_unpacked_for_each_product(
    base_format: str,
) -> None:
    model = load_model("llama2-7b", LLAMA)
    adapted = model.with_adapters({"rank": 2, "base_format": base_format})
    graph = adapted.training(1, "bf16-mixed")
    packed = [t for t in graph.tensors.values() if t.format == base_format]
    assert sum(t.elements for t in packed) == 3 * sum(k * n for k, n in SIZES.values())
    bits = find(base_format).tensor_bits
    assert sum(t.bytes for t in packed) == sum(-(-bits(t.elements) // 8) for t in packed)
    whole = with_unpacked_weights(graph)
    unpacking = [op for op in whole.ops if op.kind == "unpack"]
    products = [op for op in graph.ops if not {t.name for t in packed}.isdisjoint(op.inputs)]
    assert len(unpacking) == len(products) == 2 * len(packed) - 1  # no gradient of embeddings
    lives = lifetimes(whole)
    for op in unpacking:
        made = op.outputs[0]
        assert whole.tensors[made].format == "bf16"
        first, last = lives[made]
        assert last == first + 1  # nothing keeps it
    assert whole.flops() == graph.flops() == model.with_adapters(2).training(1).flops()
    assert with_unpacked_weights(model.training(1)) is model.training(1)


def test_matrices_in_few_bits_are_held_and_gathered_so() -> None:
    machine, model = load_cluster("dgx-h100"), load_model("llama2-7b", {"sequence": 512})
    plan = Plan(data=8, zero_stage=3, global_batch=8, precision="bf16-mixed")
    wide, narrow = (
        simulate(model.with_adapters({"rank": 8, **more}), machine, plan)
        for more in ({}, {"base_format": "nf4"})
    )
    assert narrow.memory_bytes["weights"] < 0.3 * wide.memory_bytes["weights"]
    assert narrow.traffic_bytes["nvlink4"] < 0.3 * wide.traffic_bytes["nvlink4"]
    assert narrow.flops_per_step == wide.flops_per_step
    divided = Plan(tensor=8, global_batch=8, precision="bf16-mixed")
    wide, narrow = (
        simulate(model.with_adapters({"rank": 8, **more}), machine, divided)
        for more in ({}, {"base_format": "nf4"})
    )
    assert narrow.memory_bytes["weights"] < 0.3 * wide.memory_bytes["weights"]
    assert wide.step_time_s < narrow.step_time_s < 1.5 * wide.step_time_s


def test_layers_that_are_frozen_by_name_have_no_adapters() -> None:
    fields = {**LLAMA, "frozen_layers": ["blocks.0", "blocks.2.feed-forward"]}
    model = load_model("llama2-7b", fields).with_adapters(
        "rank=2,layers=all-linear,base_format=nf4"
    )
    graph = model.training(1, "bf16-mixed")
    one, attention = (
        2 * sum(k + n for name, (k, n) in SIZES.items() if name in names)
        for names in (SIZES.keys(), {"q_proj", "k_proj", "v_proj", "o_proj"})
    )
    assert trained(graph) == one + attention
    assert not any(".adapter-" in t for t in graph.tensors if t.startswith("blocks.0."))
    weights = {t.name: t.format for t in graph.tensors.values() if t.role is Role.WEIGHT}
    assert {weights[name] for name in graph.frozen} == {"nf4", "bf16"}
    assert weights["blocks.0.attention.output.weight"] == "nf4"
    assert not weight_gradients(graph).keys() & graph.frozen
    with pytest.raises(RidgelineError, match="fits the patterns"):
        model.with_adapters("rank=2,layers=blocks.0.attention.output")
    alone = load_model("llama2-7b", fields).training(1, "bf16-mixed")
    assert alone.tensors["blocks.0.attention.output.weight"].format == "bf16"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rank=0", "greater than or equal to 1"),
        ("layers=q_proj", "the rank is missing"),
        ("rank=4,layers=zzz", "layers are query-key-value, output, gate-up, down"),
        ("rank=4,layers=q_projj", "did you mean 'q_proj'"),
        ("rank=4,base_format=nf5", "did you mean 'nf4'"),
        ("rank=4,base_format=bf16", "allowed: nf4, mxfp4"),
        ("rnk=4", "did you mean 'rank'"),
        ("rank=4,rank=5", "given twice"),
        ("rank=x", "rank is a number, found 'x'"),
        ("rank=4,dropout=1", "less than 1"),
        ("", "expected rank=16"),
        ("rank=4,layers=", "expected rank=16"),
    ],
)
def test_what_cannot_be_is_one_line(text: str, says: str) -> None:
    with pytest.raises(RidgelineError, match=says) as error:
        load_model("llama2-7b", LLAMA).with_adapters(text)
    assert "\n" not in str(error.value)


def test_narrow_products_of_packed_weights_and_patterns_that_fit_nothing_are_said() -> None:
    model = load_model("llama2-7b", LLAMA)
    with pytest.raises(RidgelineError, match="choose bf16-mixed"):
        model.with_adapters("2,base_format=nf4").training(1, "fp8-mixed")
    (note,) = model.with_adapters("2,layers=q_proj+query_keys").forward(1).notes
    assert note.startswith("adapters: no linear layer is called 'query_keys'")
    assert not model.with_adapters(2).forward(1).notes


def test_the_command_line_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    adapters = "rank=4,layers=q_proj+v_proj,base_format=int8"
    step = ["llama2-7b", "--batch", "1", "--precision", "bf16-mixed", "--json"]
    assert execute(["run", step[0], "dgx-h100", *step[1:], "--adapters", adapters]) == 0
    ours = simulate(
        load_model("llama2-7b").with_adapters(adapters), "dgx-h100",
        Plan(global_batch=1, precision="bf16-mixed"),
    )  # fmt: skip
    assert json.loads(capsys.readouterr().out)["step_time_s"] == ours.step_time_s
    assert execute(["memory", *step, "--adapters", adapters]) == 0
    held = json.loads(capsys.readouterr().out)["peak_bytes"]
    assert held["weights"] == ours.memory_bytes["weights"]
    assert execute(["memory", *step, "--adapters", "rank=4,layer=x"]) == 2
