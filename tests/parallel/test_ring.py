"""Ring attention: blocks of keys and values travel while others are computed with."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from pods import on_pod

from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.hardware.cluster import Cluster
from ridgeline.parallel.sharding.divide import ShardingSpec, divide
from ridgeline.parallel.sharding.ring_attention import HOP
from ridgeline.report.as_execution import as_execution
from ridgeline.report.result import Result
from ridgeline.simulation import simulate
from ridgeline.workload.graph import Graph, Pass
from ridgeline.workload.model import Model
from stacked import stacked

LAYERS = 2
TEXT = """
kind: model
name: small
family: decoder
title: Long
citation: made for tests
vocabulary: 512
sequence: {sequence}
layers: 2
hidden: 256
attention: {{heads: 8, kv_heads: {kv_heads}, bias: false, output_bias: false, kernel: flash}}
feed_forward: {{width: 512, activation: swiglu, bias: false}}
norm: rms-norm
positions: rotary
tied: false
"""


def on_machine(sequence: int = 2048, kv_heads: int = 4) -> tuple[Model, Cluster]:
    return on_pod(TEXT.format(sequence=sequence, kv_heads=kv_heads))


def step(
    context: int, mode: str = "ring", *, tokens: int = 2048, fold: bool = True,
    reference: bool = False, **fields: Any,
) -> Result:  # fmt: skip
    plan = stacked(
        **{
            "global_batch": 4,
            "precision": "fp16-mixed",
            "context": context,
            "cp_comm_type": mode,
            **fields,
        }
    )
    return simulate(*on_machine(tokens), plan, fold=fold, reference=reference)


def divided(context: int, *, ring: bool, tensor: int = 1, kv_heads: int = 4) -> Graph:
    graph = on_machine(2048, kv_heads)[0].training(1, "fp16-mixed")
    return divide(graph, ShardingSpec(context=context, tensor=tensor, ring=ring)).graph


def moved(graph: Graph, kinds: set[str], degree: int) -> Counter[tuple[str, bool]]:
    """Bytes that a device sends along "context": by what is moved, and whether forward."""
    sent: Counter[tuple[str, bool]] = Counter()
    for op in graph.ops:
        if op.kind in kinds and ("dimension", "context") in op.attrs and "rotary-key" in op.name:
            size = int(dict(op.attrs)["size_bytes"])
            share = 1 if op.kind == HOP else (degree - 1) / degree  # of a ring, of the whole size
            what = "gradient" if ".grad" in op.name else "keys"
            sent[what, op.pass_ is Pass.FORWARD] += round(size * share)
    return sent


@pytest.mark.parametrize("degree", [2, 4, 8])
@pytest.mark.parametrize("tensor", [1, 2])
def test_as_many_bytes_travel_as_are_gathered_and_scattered(degree: int, tensor: int) -> None:
    """(c-1)/c of keys forward, as much again backward and of their gradients."""
    ring = moved(divided(degree, ring=True, tensor=tensor), {HOP}, degree)
    kinds = {"all-gather", "reduce-scatter"}
    assert ring == moved(divided(degree, ring=False, tensor=tensor), kinds, degree)
    keys = 2 * 2048 * 256 * 4 // 8 // tensor * LAYERS
    assert ring["keys", True] == keys * (degree - 1) // degree
    assert len(ring) == 3


@pytest.mark.parametrize(("tensor", "kv_heads"), [(1, 4), (4, 4), (8, 2), (2, 8)])
def test_work_is_what_it_was_but_for_merging(tensor: int, kv_heads: int) -> None:
    gather, ring = (
        divided(4, ring=ring, tensor=tensor, kv_heads=kv_heads) for ring in (False, True)
    )
    assert ring.flops() == gather.flops()
    assert sum(op.recomputed_flops for op in ring.ops) == sum(
        op.recomputed_flops for op in gather.ops
    )
    merged = [op for op in ring.ops if op.kind == "merge-attention"]
    assert len(merged) == 3 * LAYERS
    for op in ring.ops:  # everything that is read is there
        assert all(name in ring.tensors for name in (*op.inputs, *op.outputs))
    made = Counter(name for op in ring.ops for name in op.outputs)
    assert max(made.values()) == 1


def test_one_device_needs_no_ring() -> None:
    one, ring = step(1, "all-gather"), step(1, "ring")
    assert ring.step_time_s == one.step_time_s
    assert ring.memory_bytes == one.memory_bytes
    assert ring.energy_j == one.energy_j


PLANS: list[dict[str, Any]] = [
    {"context": 4},
    {"context": 2, "tensor": 2, "data": 2, "sequence": 2},
    {"context": 4, "pipeline": 2, "micro_batch": 1, "recompute": "full"},
    {"context": 2, "tensor": 8, "recompute": "alternate"},
    {"context": 8, "zero_stage": 3, "order": "context-tensor-data-pipeline"},
]


@pytest.mark.parametrize("fields", PLANS)
def test_folded_equals_unfolded(fields: dict[str, Any]) -> None:
    folded, whole = step(**fields), step(**fields, fold=False)
    assert folded.step_time_s == pytest.approx(whole.step_time_s, rel=1e-9)
    assert folded.traffic_bytes == pytest.approx(whole.traffic_bytes, rel=1e-12)
    assert folded.memory_bytes == whole.memory_bytes


def test_the_plain_engine_agrees() -> None:
    fields: dict[str, Any] = {"context": 4, "tensor": 2, "micro_batch": 2}
    fast, plain = step(**fields), step(**fields, reference=True)
    assert fast.step_time_s == pytest.approx(plain.step_time_s, rel=1e-9)


@pytest.mark.parametrize("tokens", [512, 8192])
def test_never_faster_than_compute_or_transfer_alone(tokens: int) -> None:
    """Short sequences are bound by the links, long ones hide them."""
    result = step(8, tokens=tokens)
    timeline = result.details.timeline
    program = timeline.program
    busy = {}
    for stream, name in enumerate(program.stream_names):
        busy[name.partition("/")[2]] = timeline.durations_s[program.stream == stream].sum()
    assert set(busy) >= {"compute", "network-context"}
    assert result.step_time_s >= max(busy.values()) * (1 - 1e-9)
    assert result.step_time_s < sum(busy.values())


def test_long_sequences_hide_what_travels_and_hold_less() -> None:
    ring, gather = step(8, tokens=16384), step(8, "all-gather", tokens=16384)
    assert ring.step_time_s < gather.step_time_s
    assert ring.memory_bytes["total"] < gather.memory_bytes["total"]


def test_two_blocks_are_held_instead_of_all() -> None:
    """While a step computes, its block and the next one are there, beside the device's own."""
    degree = 8
    graph = divided(degree, ring=True)
    last = {name: i for i, op in enumerate(graph.ops) for name in op.inputs}
    first = {name: i for i, op in enumerate(graph.ops) for name in op.outputs}
    keys = [n for n in last if HOP in n and "rotary-key" in n and ".grad" not in n]
    held = [sum(first[n] <= i <= last[n] for n in keys) for i in range(len(graph.ops))]
    assert max(held) == 2


def test_a_ring_is_no_collective_of_a_trace() -> None:
    with pytest.raises(RidgelineError, match=r"no collective.*cp_comm_type=all-gather"):
        as_execution(step(2, fold=False))


def test_what_can_not_be_a_ring_says_why() -> None:
    with pytest.raises(ConfigError, match=r"cp_comm_type=ring needs fused attention.*gather"):
        simulate("gpt2", on_machine()[1], stacked(context=2, cp_comm_type="ring", global_batch=2))
    with pytest.raises(ConfigError, match=r"8 parts \(a zig-zag\).*gather"):
        step(4, tokens=2044)
