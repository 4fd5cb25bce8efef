"""Heads of keys that more devices share than there are heads: copies of them."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume
from hypothesis import strategies as st
from pods import write_pod

from ridgeline.errors import ConfigError
from ridgeline.hardware import load_cluster
from ridgeline.parallel.plan.mesh import Mesh
from ridgeline.parallel.plan.plan import Plan
from ridgeline.parallel.sharding.kv_head_replication import NEIGHBOURS, with_copied_heads
from ridgeline.parallel.sharding.shard import shard
from ridgeline.simulation import simulate
from ridgeline.workload.files import load_model
from ridgeline.workload.graph import Graph, Op, Pass, Role
from ridgeline.workload.model import Model
from stacked import stacked
from thoroughly import sample_of

FOLDER = tempfile.TemporaryDirectory()
POD = str(write_pod(Path(FOLDER.name)))
HEADS, SIZE, HIDDEN, LAYERS = 8, 16, 128, 2


def small(few: int, model: str = "llama3-8b", **fields: Any) -> Model:
    shape = {
        "layers": LAYERS,
        "hidden": HIDDEN,
        "sequence": 64,
        "vocabulary": 512,
        "attention.heads": HEADS,
        "attention.kv_heads": few,
        "feed_forward.width": 256,
    }
    return load_model(model, shape | {k.replace("__", "."): v for k, v in fields.items()})


def sums(graph: Graph) -> list[Op]:
    """The all-reduces between copies."""
    return [op for op in graph.ops if NEIGHBOURS in dict(op.attrs)]


def work(graph: Graph) -> Mapping[str, Any]:
    """Everything that an op does but the sums of copies, by op."""
    added = {op.name: op.inputs[0] for op in sums(graph)}
    return {
        op.name: (
            op.kind, op.pass_, op.loops, op.vector_flops, op.recomputed_flops, op.attrs,
            op.input_passes, op.in_place,
            tuple(graph.tensors[added.get(name, name)] for name in op.inputs),
            tuple(graph.tensors[name] for name in op.outputs),
        )
        for op in graph.ops if op.name not in added
    }  # fmt: skip


@sample_of(
    7,
    25,
    few=st.sampled_from([1, 2, 4]),
    times=st.sampled_from([2, 4, 8]),
    kernel=st.sampled_from(["flash", "separate"]),
    fused=st.booleans(),
    bias=st.booleans(),
    sequence=st.booleans(),
    context=st.sampled_from([1, 2]),
    model=st.sampled_from(["llama3-8b", "gpt2", "mixtral-8x7b", "qwen3-0.6b"]),
)
def test_copies_are_a_network_with_more_heads_of_keys(
    few: int, times: int, kernel: str, fused: bool, bias: bool, sequence: bool,
    context: int, model: str,
) -> None:  # fmt: skip
    """The oracle has as many heads of keys as devices: every rank does and holds the same."""
    degree = few * times
    assume(degree <= HEADS)
    how = {"attention__kernel": kernel, "attention__fused": fused, "attention__bias": bias}
    how |= {"attention__head_size": SIZE} if model == "qwen3-0.6b" else {}

    def local(heads: int) -> Graph:
        graph = small(heads, model, **how).training(2, "bf16-mixed")
        graph = shard(graph, context, dimension="context").graph
        return shard(graph, degree, sequence=sequence).graph

    made, expected = local(few), local(degree)
    assert work(made) == work(expected)
    assert not sums(expected)
    rows = 2 * SIZE  # of keys and of values: one head each
    per_layer: Counter[str] = Counter()
    for op in sums(made):
        assert op.pass_ is Pass.UPDATE
        assert dict(op.attrs)[NEIGHBOURS] == times
        per_layer[op.layer.split(".attention")[0]] += int(dict(op.attrs)["size_bytes"])
    assert set(per_layer.values()) == {rows * (HIDDEN + bias) * 4}
    assert len(per_layer) == LAYERS


@pytest.mark.parametrize("degree", [1, 2, 4])
def test_as_many_heads_as_devices_need_no_copy(degree: int) -> None:
    graph = small(4).training(2, "bf16-mixed")
    assert with_copied_heads(graph, degree) is graph


def test_parameters_and_flops_of_a_rank_by_hand() -> None:
    """Llama 3 8B has 8 heads of keys and 8 of values of 128 features a layer; 16 devices."""
    graph = load_model("llama3-8b").training(1, "bf16-mixed")
    made = shard(graph, 16).graph
    tokens, features = 8192, 4096
    more = 32 * 2 * 8 * 128 * features  # one more copy of every head
    norms = 65 * features
    assert made.parameters * 16 == graph.parameters + more + 15 * norms
    flops = [sum(op.matrix_flops for op in g.ops) for g in (graph, made)]
    assert flops[1] * 16 == flops[0] + 3 * 2 * tokens * more
    for op in made.ops:
        if op.kind == "optimizer":
            shapes = {made.tensors[name].shape for name in op.inputs}
            assert len(shapes) == 1, op.name


def test_the_gradient_is_summed_before_it_is_used() -> None:
    made = shard(small(2).training(2, "fp16-mixed"), 4).graph
    for op in sums(made):
        readers = [other for other in made.ops if op.inputs[0] in other.inputs]
        assert readers[0] is op
        assert all(other is op or other.pass_ is not Pass.UPDATE for other in readers)
        assert any(op.outputs[0] in other.inputs for other in made.ops)
        assert made.tensors[op.outputs[0]].role is Role.WEIGHT_GRADIENT


def test_copies_of_a_head_are_neighbours() -> None:
    mesh = Mesh.of(Plan(global_batch=2, tensor=4, data=2, order="data-tensor-context-pipeline"))
    whole = mesh.groups(0, "tensor").tolist()
    assert whole == [[0, 2, 4, 6], [1, 3, 5, 7]]
    parts = mesh.groups(0, "tensor", neighbours=2).tolist()
    assert parts == [[0, 2], [1, 3], [4, 6], [5, 7]]


@pytest.mark.parametrize("degree", [3, 5, 6, 16])
def test_what_copies_can_not_solve_is_an_error(degree: int) -> None:
    graph = small(2).training(1, "bf16-mixed")
    with pytest.raises(
        ConfigError, match=rf"tensor={degree} does not divide the 2 heads.*1, 2, 4, 8$"
    ):
        shard(graph, degree)


def test_keys_that_no_product_makes_are_an_error() -> None:
    from dataclasses import replace

    graph = small(2).training(1, "bf16-mixed")
    ops = tuple(replace(op, kind="magic") if "rotary-key" in op.name else op for op in graph.ops)
    with pytest.raises(ConfigError, match=r"rotary-key.*can not be divided by heads"):
        shard(replace(graph, ops=ops), 4)


@pytest.mark.parametrize(
    "fields",
    [
        {"tensor": 4, "data": 2},
        {"tensor": 4, "data": 2, "zero_stage": 2, "sequence": 4},
        {"tensor": 4, "pipeline": 2, "micro_batch": 2, "recompute": "full"},
        {"tensor": 4, "data": 2, "order": "data-tensor-context-pipeline"},
    ],
)
def test_folded_as_unfolded_and_not_faster_than_without_sums(fields: dict[str, Any]) -> None:
    plan = stacked(global_batch=8, precision="fp16-mixed", **fields)
    cluster = load_cluster(POD)
    folded = simulate(small(2), cluster, plan)
    assert simulate(small(2), cluster, plan, fold=False).step_time_s == pytest.approx(
        folded.step_time_s, rel=1e-9
    )
    assert folded.step_time_s > simulate(small(4), cluster, plan).step_time_s
