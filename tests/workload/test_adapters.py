"""Adapters of low rank: what is frozen, what is trained, and what it costs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles.graph_interpreter import run
from ridgeline import load_cluster, simulate
from ridgeline.errors import RidgelineError
from ridgeline.parallel.plan.plan import Plan
from ridgeline.workload import Graph, Pass, Role, load_model, training_graph, weight_gradients
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
