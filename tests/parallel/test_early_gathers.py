"""What a gradient of weights reads is gathered beside the gradient of the inputs."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pods import on_pod

from ridgeline.hardware.cluster import Cluster
from ridgeline.parallel.passes.prefetch_all_gather import with_early_gathers
from ridgeline.parallel.sharding.divide import ShardingSpec, divide
from ridgeline.report.result import Result
from ridgeline.simulation import simulate
from ridgeline.workload.graph import Graph, Op, Pass
from ridgeline.workload.model import Model
from stacked import stacked
from thoroughly import sample_of

LAYERS = 2
TEXT = """
kind: model
name: small
family: decoder
title: Gathered
citation: made for tests
vocabulary: 512
sequence: {sequence}
layers: 2
hidden: {hidden}
attention: {{heads: 8, kv_heads: 8, bias: false, output_bias: false, kernel: flash}}
feed_forward: {{width: {width}, activation: swiglu, bias: false}}
norm: rms-norm
positions: rotary
tied: false
"""
SIZES = st.tuples(
    st.sampled_from((128, 512)), st.sampled_from((128, 256)), st.sampled_from((256, 1024))
)


def on_machine(sizes: tuple[int, int, int]) -> tuple[Model, Cluster]:
    sequence, hidden, width = sizes
    return on_pod(TEXT.format(sequence=sequence, hidden=hidden, width=width))


def divided(sizes: tuple[int, int, int], tensor: int, precision: str) -> Graph:
    graph = on_machine(sizes)[0].training(1, precision)
    return divide(graph, ShardingSpec(tensor=tensor, sequence=True)).graph


def gathers_again(op: Op) -> bool:
    return op.kind == "all-gather" and op.pass_ is Pass.WEIGHT_GRADIENT


def made_by(graph: Graph) -> dict[str, list[str]]:
    """Name what made each input of every op, when the ops are done one after the other."""
    maker: dict[str, str] = {}
    found = {}
    for op in graph.ops:
        found[op.name] = [maker.get(name, "") for name in op.inputs]
        maker.update(dict.fromkeys(op.outputs, op.name))
    return found


@settings(max_examples=20, deadline=None)
@given(SIZES, st.sampled_from((2, 4, 8)), st.sampled_from(("bf16-mixed", "fp8-mixed")))
def test_gathers_are_only_moved_and_nothing_is_read_before_it_is_made(
    sizes: tuple[int, int, int], tensor: int, precision: str
) -> None:
    graph = divided(sizes, tensor, precision)
    early = with_early_gathers(graph)
    assert Counter(early.ops) == Counter(graph.ops)
    rest = [[op for op in g.ops if not gathers_again(op)] for g in (graph, early)]
    assert rest[0] == rest[1]
    assert made_by(early) == made_by(graph)


def test_the_gradient_of_inputs_stands_between_a_gathering_and_the_gradient_of_weights() -> None:
    """Of both column-parallel products of every layer."""
    ops = with_early_gathers(divided((512, 256, 1024), 4, "bf16-mixed")).ops
    found = 0
    for i, op in enumerate(ops):
        if gathers_again(op) and ".norm" in op.name:
            assert ops[i + 1].pass_ is Pass.INPUT_GRADIENT
            assert ops[i + 1].kind == ops[i + 2].kind == "gemm"
            assert op.outputs[0] in ops[i + 2].inputs
            found += 1
    assert found >= 2 * LAYERS


def step(sizes: tuple[int, int, int], tensor: int, *, overlap: bool, fast: bool = True) -> Result:
    plan = stacked(
        tensor=tensor, sequence=tensor, global_batch=2, micro_batch=1, precision="fp16-mixed",
        overlap__tensor=overlap,
    )  # fmt: skip
    return simulate(*on_machine(sizes), plan, reference=not fast)


@sample_of(3, 10, SIZES, st.sampled_from((2, 4, 8)))
def test_a_step_is_between_its_work_alone_and_one_after_the_other(
    sizes: tuple[int, int, int], tensor: int
) -> None:
    """Never faster than its ops, never slower than if all waited; as much is sent and computed."""
    blocking, beside = (step(sizes, tensor, overlap=overlap) for overlap in (False, True))
    work_s = blocking.step_time_s - blocking.time_s["exposed_communication"]
    assert work_s * (1 - 1e-9) <= beside.step_time_s <= blocking.step_time_s * (1 + 1e-9)
    assert beside.traffic_bytes == pytest.approx(blocking.traffic_bytes)
    assert beside.flops_per_step == blocking.flops_per_step
    assert beside.energy_j["compute"] == pytest.approx(blocking.energy_j["compute"])


def test_a_gathering_is_hidden_as_far_as_the_product_beside_it_goes() -> None:
    """Also as the slow executor plays it: it is still on its way when the product begins."""
    played = step((512, 256, 1024), 4, overlap=True)
    slow = step((512, 256, 1024), 4, overlap=True, fast=False)
    assert played.step_time_s == pytest.approx(slow.step_time_s, rel=1e-9)
    timeline = played.details.timeline
    rows = timeline.rows(range(timeline.program.n_tasks))
    spans = {row.label: (row.start_s, row.end_s) for row in reversed(rows)}
    gathering = spans["blocks.1.norm2.y.all-gather.2"]
    product = spans["blocks.1.feed-forward.gate-up.input-gradient"]
    assert gathering[0] <= product[0] < gathering[1]
