"""Experts that ranks share, where devices also share the positions of a sequence."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from pods import write_pod

from ridgeline.hardware import load_cluster
from ridgeline.parallel.sharding.divide import ShardingSpec, divide
from ridgeline.parallel.sharding.experts import expert_weights
from ridgeline.report.result import Result
from ridgeline.simulation import simulate
from ridgeline.workload.files import load_model
from ridgeline.workload.graph import Graph, Role
from stacked import stacked

FOLDER = Path(tempfile.mkdtemp())
POD = str(write_pod(FOLDER))
LAYERS = 2
(FOLDER / "mixture.yaml").write_text("""
kind: model
name: small
family: decoder
title: Mixture
citation: made for tests
vocabulary: 512
sequence: 256
layers: 2
hidden: 128
attention: {heads: 4, bias: false, output_bias: false, kernel: flash}
feed_forward: {width: 256, activation: swiglu, bias: false}
mixture: {experts: 8, top_k: 2, width: 128}
norm: rms-norm
positions: rotary
tied: false
""")
MODEL = load_model(str(FOLDER / "mixture.yaml"))


def step(*, fold: bool = True, **fields: Any) -> Result:
    plan = stacked(**{"global_batch": 8, "precision": "fp16-mixed", "micro_batch": 1, **fields})
    return simulate(MODEL, load_cluster(POD), plan, fold=fold)


def divided(expert: int, context: int, tensor: int = 1) -> Graph:
    graph = MODEL.training(1, "fp16-mixed")
    return divide(graph, ShardingSpec(expert=expert, context=context, tensor=tensor)).graph


def exchanged(graph: Graph) -> list[int]:
    return [
        int(dict(op.attrs)["size_bytes"])
        for op in graph.ops
        if op.kind == "all-to-all" and ("dimension", "expert") in op.attrs
    ]


@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize("context", [2, 4])
def test_devices_exchange_the_rows_of_their_own_positions(context: int, tensor: int) -> None:
    alone, both = divided(4, 1, tensor), divided(4, context, tensor)
    assert len(exchanged(both)) == 4 * LAYERS
    assert [size * context for size in exchanged(both)] == exchanged(alone)
    assert expert_weights(both) == expert_weights(alone)
    for name in expert_weights(both):
        assert both.tensors[name].shape == alone.tensors[name].shape
    done = [op for op in both.ops if any(name in expert_weights(both) for name in op.inputs)]
    assert sum(op.matrix_flops for op in done) * context == sum(
        op.matrix_flops
        for op in alone.ops
        if any(name in expert_weights(alone) for name in op.inputs)
    )
    inside = [op for op in both.ops if ("dimension", "context") in op.attrs]
    assert not any("expert" in op.layer for op in inside)  # rows stay with their positions


@pytest.mark.parametrize("context", [1, 2])
def test_the_order_of_dividing_does_not_matter(context: int) -> None:
    """What a device computes is that of a graph of fewer positions, but for attention."""
    both, few = divided(2, context), divided(1, context)
    assert sum(op.matrix_flops for op in both.ops) == sum(op.matrix_flops for op in few.ops)
    held = [
        sum(t.bytes for t in graph.tensors.values() if t.role is Role.WEIGHT)
        for graph in (both, few)
    ]
    assert held[0] < held[1]


@pytest.mark.parametrize(
    "fields",
    [
        {"data": 4, "expert": 4, "context": 2, "zero_stage": 3},
        {"data": 4, "expert": 2, "context": 4, "cp_comm_type": "ring", "zero_stage": 1},
        {"data": 2, "expert": 2, "context": 2, "tensor": 2, "pipeline": 2},
    ],
)
def test_folded_equals_unfolded(fields: dict[str, Any]) -> None:
    folded, whole = step(**fields), step(fold=False, **fields)
    assert folded.step_time_s == pytest.approx(whole.step_time_s, rel=1e-9)
    assert folded.traffic_bytes == pytest.approx(whole.traffic_bytes, rel=1e-12)
    assert folded.memory_bytes == whole.memory_bytes
    alone = step(**{**fields, "expert": 1})
    assert folded.flops_per_step == alone.flops_per_step
    if fields.get("zero_stage") != 3:
        assert folded.memory_bytes["weights"] < alone.memory_bytes["weights"]
