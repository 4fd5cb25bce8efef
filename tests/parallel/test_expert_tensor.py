"""Experts of their own on tensor-parallel devices, which share positions in a mixture."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pods import on_pod

from oracles.graph_interpreter import run
from oracles.sharded_data import Devices, divided_with_layouts, updates
from ridgeline.errors import ConfigError
from ridgeline.parallel.plan.mesh import Mesh
from ridgeline.parallel.plan.mixtures import routed_layers
from ridgeline.parallel.plan.plan import Plan
from ridgeline.parallel.sharding.divide import ShardingSpec, divide
from ridgeline.parallel.sharding.experts import expert_weights
from ridgeline.report.result import Result
from ridgeline.simulation import simulate
from ridgeline.workload.files import load_model
from ridgeline.workload.graph import Graph, Pass, Role
from stacked import stacked
from thoroughly import sample_of

MIXTURE = """
kind: model
name: small
family: decoder
title: Mixture
citation: made for tests
vocabulary: 64
sequence: 16
layers: 2
hidden: 32
attention: {heads: 4, bias: false, output_bias: false}
feed_forward: {width: 32, activation: swiglu, bias: false}
mixture: {experts: 8, top_k: 2, width: 64, shared: 1}
norm: rms-norm
positions: rotary
tied: false
"""


def step(fold: bool = True, **fields: Any) -> Result:
    model, cluster = on_pod(MIXTURE)
    plan = {"global_batch": 8, "precision": "fp16-mixed", "sequence": "on", "micro_batch": 1}
    return simulate(model, cluster, stacked(**{**plan, **fields}), fold=fold)


def divided(tensor: int, features: int, expert: int, context: int = 1) -> Graph:
    graph = on_pod(MIXTURE)[0].training(1, "fp16-mixed")
    folded = features < tensor
    division = ShardingSpec(
        expert=expert,
        context=context,
        tensor=tensor,
        sequence=tensor > 1,
        mixture=features,
        folded=folded,
    )
    return divide(graph, division).graph


def of_experts(graph: Graph) -> int:
    """FLOPs of the products of experts, in all passes."""
    layers = {layer for layer in routed_layers(graph) if "dispatch" not in layer}
    return sum(op.matrix_flops for op in graph.ops if op.layer in layers)


def exchanged(graph: Graph) -> list[int]:
    return [
        int(dict(op.attrs)["size_bytes"])
        for op in graph.ops
        if op.kind == "all-to-all" and ("dimension", "expert") in op.attrs
    ]


DEGREES = st.sampled_from(((2, 1), (4, 1), (2, 2), (4, 4)))


@settings(max_examples=10, deadline=None)
@given(DEGREES, st.sampled_from((2, 4, 8)), st.sampled_from((1, 2)))
def test_products_bytes_and_parameters_add_up(
    degrees: tuple[int, int], expert: int, context: int
) -> None:
    tensor, features = degrees
    alone, mine = divided(1, 1, expert), divided(tensor, features, expert, context)
    assert of_experts(mine) * tensor * context == of_experts(alone)
    assert [size * tensor * context for size in exchanged(mine)] == exchanged(alone)
    held = expert_weights(alone)
    assert expert_weights(mine) == held
    for name in held:
        assert mine.tensors[name].elements * features == alone.tensors[name].elements
    between = [op for op in mine.ops if dict(op.attrs).get("dimension") == "tensor"]
    if features == 1:  # what is in a mixture stays with its positions, but the shared expert
        layers = set(routed_layers(mine))
        assert not any(op.layer in layers for op in between)


@sample_of(2, 4, st.sampled_from((2, 4)), st.integers(1, 2), st.integers(0, 2**32 - 1))
def test_devices_learn_what_one_learns(tensor: int, batch: int, seed: int) -> None:
    """Played on real data: the gradient of every weight is that of one device."""
    graph = on_pod(MIXTURE)[0].training(batch, "fp32")
    rng = np.random.default_rng(seed)
    given_values = {
        t.name: rng.integers(0, 8, t.shape)
        if t.format == "int64"
        else rng.normal(size=t.shape) / math.sqrt(t.shape[-1])
        for t in graph.tensors.values()
        if t.role in {Role.INPUT, Role.WEIGHT, Role.BUFFER}
    }
    division = ShardingSpec(tensor=tensor, sequence=True, folded=True)
    devices = Devices(graph, divided_with_layouts(graph, division))
    devices.run(given_values)
    alone = run(graph, given_values)
    for weight, gradient in updates(graph).items():
        scale = np.abs(alone[gradient]).max()
        assert devices.gradient(weight) == pytest.approx(alone[gradient], abs=1e-9 * scale + 1e-12)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from((1, 2, 4, 8)),
    st.sampled_from((1, 2, 4)),
    st.sampled_from((1, 2, 4, 8)),
    st.booleans(),
    st.sampled_from((1, 2, 4, 8, 16, 32)),
    st.permutations(("tensor", "context", "data", "pipeline")),
)
def test_every_expert_is_held_by_as_many_ranks(
    tensor: int, context: int, data: int, whole: bool, expert: int, order: tuple[str, ...]
) -> None:
    features = 1 if whole else tensor
    assume(tensor * context * data % (features * expert) == 0)
    plan = Plan(
        global_batch=64, data=data, tensor=tensor, context=context, pipeline=2, expert=expert,
        expert_tensor_parallel=features, sequence="on", order="-".join(order),
    )  # fmt: skip
    mesh = Mesh.of(plan)
    for stage in range(2):
        sharing = mesh.groups(stage, *mesh.along("expert"))
        same = mesh.groups(stage, *mesh.along("beyond"))
        ranks = mesh.stage(stage)
        assert sharing.shape[1] == expert
        assert same.shape[1] * expert * features == len(ranks)
        for groups in (sharing, same):
            assert np.array_equal(np.sort(groups.ravel()), ranks)
        for group in sharing:  # a group has each rank of a set of replicas once
            assert all(len(np.intersect1d(group, other)) <= 1 for other in same)
        if order[:3] == ("tensor", "context", "data"):  # neighbours, as Megatron-Core numbers them
            assert np.ptp(sharing, axis=1).max() == (expert - 1) * features


PLANS = (
    {"data": 4, "tensor": 2, "expert": 8, "expert_tensor_parallel": 1},
    {
        "data": 2,
        "tensor": 2,
        "context": 2,
        "expert": 4,
        "expert_tensor_parallel": 1,
        "zero_stage": 1,
    },
    {"data": 2, "tensor": 4, "expert": 2, "expert_tensor_parallel": 1, "zero_stage": 2},
    {"data": 2, "tensor": 2, "context": 2, "expert": 4, "expert_tensor_parallel": 2},
    {
        "data": 2,
        "tensor": 2,
        "expert": 4,
        "expert_tensor_parallel": 1,
        "pipeline": 2,
        "moe__dispatch": "node-limited",
    },
)


@pytest.mark.parametrize("fields", PLANS)
def test_folded_equals_unfolded(fields: dict[str, Any]) -> None:
    folded, whole = step(**fields), step(fold=False, **fields)
    assert folded.step_time_s == pytest.approx(whole.step_time_s, rel=1e-9)
    assert folded.traffic_bytes == pytest.approx(whole.traffic_bytes, rel=1e-9)
    assert folded.memory_bytes == whole.memory_bytes


def test_without_tensor_and_context_the_field_says_nothing() -> None:
    plain, said = (step(data=8, expert=4, expert_tensor_parallel=n) for n in (0, 1))
    assert plain.step_time_s == said.step_time_s
    assert plain.memory_bytes == said.memory_bytes


def test_rows_move_by_the_part_that_a_device_has() -> None:
    """Also where devices share the features of experts: gathered behind the all-to-all."""
    graph = divided(2, 2, 4)
    gathered = [
        op for op in graph.ops
        if op.kind == "all-gather" and op.pass_ is Pass.FORWARD and "dispatch" in op.name
        and "all-to-all" in op.name
    ]  # fmt: skip
    assert len(gathered) == 2


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"tensor": 4, "data": 2, "expert_tensor_parallel": 2}, "must be 1 or the degree of"),
        (
            {"tensor": 2, "data": 4, "expert_tensor_parallel": 1, "sequence": 1},
            "it needs sequence=on",
        ),
        (
            {"tensor": 2, "data": 3, "expert": 4, "expert_tensor_parallel": 1, "global_batch": 6},
            "must be 4 neighbours among tensor=2 x context=1 x data=3",
        ),
        (
            {
                "tensor": 2,
                "data": 4,
                "expert_tensor_parallel": 1,
                "layers": "*.attention.*:tensor=1",
            },
            "not modelled together with expert_tensor_parallel=1",
        ),
    ],
)
def test_what_cannot_be_says_why(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        step(**fields)


def test_a_network_without_experts_says_so() -> None:
    plan = Plan(global_batch=8, tensor=2, sequence="on", expert_tensor_parallel=1)
    with pytest.raises(ConfigError, match="expert_tensor_parallel=1 is of experts"):
        simulate(load_model("gpt2"), on_pod(MIXTURE)[1], plan)
