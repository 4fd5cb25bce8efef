"""Functions as the ops of a framework that has no kernel for the whole."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ridgeline as rl
from ridgeline.parallel.passes.decompose import EAGER, PRIMITIVES, TANH_GELU, as_primitives
from ridgeline.workload import numerics, ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.graph import Graph, Pass
from stacked import stacked

NETWORKS = {  # which functions each has
    "bert-base": {"layers": 1, "vocabulary": 30, "sequence": 8, "masked": 2},
    "efficientnet-b0": {"image": {"height": 32, "width": 32}},
    "nnunet-2d": {"size": [16, 24], "levels": [[2, 3], [4]]},
    "v-net": {"size": [8, 8, 8]},
}


def training(name: str, precision: str = "fp32", batch: int = 2) -> Graph:
    return rl.load_model(name, NETWORKS[name]).training(batch, precision)


def axes(graph: Graph, name: str) -> int:
    return len(graph.tensors[name].shape)


def moved(graph: Graph, name: str) -> int:
    op = next(op for op in graph.ops if op.name == name)
    return graph.read_bytes(op) + graph.write_bytes(op)


def test_the_networks_have_every_function() -> None:
    kinds = {op.kind for name in NETWORKS for op in training(name).ops}
    assert kinds >= PRIMITIVES.keys()


@pytest.mark.parametrize("name", NETWORKS)
def test_every_op_streams_whole_tensors_and_nothing_else_changes(name: str) -> None:
    graph = training(name)
    written = as_primitives(graph)
    changed, meant = set(), set()
    for before, after in zip(graph.ops, written.ops, strict=True):
        primitive = PRIMITIVES.get(before.kind)
        if primitive is not None and axes(graph, before.inputs[0]) >= primitive.least_axes:
            meant.add((before.kind, True))
        if primitive is None or after is before:
            assert after is before
            continue
        changed.add((before.kind, before.pass_ is Pass.FORWARD))
        kernels = primitive.forward if before.pass_ is Pass.FORWARD else primitive.gradient
        assert after.kernels == len(kernels)
        size = graph.tensors[before.inputs[0]].bytes
        counted = size * sum(map(sum, kernels))
        small = [n for n in (*before.inputs, *before.outputs) if graph.tensors[n].bytes != size]
        assert moved(written, before.name) == counted + sum(graph.tensors[n].bytes for n in small)
        assert counted > size * 2
        assert (after.inputs, after.outputs) == (before.inputs, before.outputs)
    assert changed >= meant
    assert written.flops() == graph.flops()


@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_a_program_may_write_gelu_alone_op_by_op(precision: str) -> None:
    graph = training("bert-base", precision)
    written = as_primitives(graph, "tanh-gelu")
    changed = 0
    for before, after in zip(graph.ops, written.ops, strict=True):
        if before.kind != "gelu":
            assert after is before
            continue
        changed += 1
        gelu = TANH_GELU["gelu"]
        kernels = gelu.forward if before.pass_ is Pass.FORWARD else gelu.gradient
        size = graph.tensors[before.inputs[0]].bytes
        assert after.kernels == len(kernels)
        assert moved(written, before.name) == size * sum(map(sum, kernels))
    assert changed >= 2
    assert written.flops() == graph.flops()


@pytest.mark.parametrize(("name", "kernels"), [("efficientnet-b0", {1}), ("v-net", {5, 10})])
def test_batch_norm_has_a_kernel_for_images_and_none_for_volumes(
    name: str, kernels: set[int]
) -> None:
    written = as_primitives(training(name))
    norms = [op for op in written.ops if op.kind == "batch-norm"]
    assert {op.kernels for op in norms if op.kernels} == kernels


def test_the_forward_ops_of_gelu_are_those_of_its_formula() -> None:
    """Built from functions of one step each, gelu reads and writes as often as the table says."""
    b = GraphBuilder("gelu", 2, numerics.find("fp32"))
    x = ops.linear(b, "make", b.input("x", (2, 8)), 64)
    start, size = len(b.ops), b.tensors[x].bytes
    shape = b.shape(x)
    cube = ops.function(b, "cube", "power", (x,), shape)[0]
    y = ops.add(b, "sum", ops.scale(b, "c", cube, 0.044715), x)
    y = ops.activation(b, "tanh", ops.scale(b, "a", y, 0.8), "tanh")
    y = ops.function(b, "one", "shift", (y,), shape)[0]
    ops.multiply(b, "times", ops.scale(b, "half", y, 0.5), x)
    counted = [(len(op.inputs), len(op.outputs)) for op in b.ops[start:]]
    assert tuple(counted) == PRIMITIVES["gelu"].forward
    assert all(b.tensors[n].bytes == size for op in b.ops[start:] for n in op.inputs)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.sampled_from(["fp16-mixed", "bf16-mixed", "fp16-autocast"]))
def test_what_mixed_precision_keeps_wide_moves_as_much_as_in_fp32_and_its_casts(
    batch: int, precision: str
) -> None:
    graph = training("bert-base", precision, batch)
    written = as_primitives(graph)
    for op in graph.ops:
        primitive = PRIMITIVES.get(op.kind)
        if primitive is None or op.pass_ is not Pass.FORWARD:
            continue
        tensor = graph.tensors[op.inputs[0]]
        counts = sum(map(sum, primitive.forward))
        if primitive.wide and tensor.format in {"fp16", "bf16"}:
            counts = 2 * counts + 6  # one read and one written wide, at either end
        small = [n for n in (*op.inputs, *op.outputs) if graph.tensors[n].bytes != tensor.bytes]
        rest = sum(graph.tensors[n].bytes for n in small)
        assert moved(written, op.name) == Fraction(counts) * tensor.bytes + rest


def step(**fields: object) -> rl.Result:
    model = rl.load_model("bert-base", {"layers": 2})
    given_ = {"global_batch": 16, "precision": "fp32", **fields}
    return rl.simulate(model, "v100-sxm2-16gb", stacked(**given_))


def test_a_step_is_longer_by_launches_and_traffic_and_does_the_same() -> None:
    fused, primitive = step(), step(kernels__fusion="primitive")
    assert 1.1 < primitive.step_time_s / fused.step_time_s < 1.5
    assert primitive.flops_per_step == fused.flops_per_step
    assert primitive.memory_bytes["weights"] == fused.memory_bytes["weights"]


def test_the_host_issues_every_op_of_a_function() -> None:
    issue = 1e-2  # by far the slowest of all
    fused, primitive = (
        step(host__launch_time=issue),
        step(host__launch_time=issue, kernels__fusion="primitive"),
    )
    more = sum(
        after.kernels - before.kernels
        for before, after in zip(
            fused.details.lowered.graph.ops, primitive.details.lowered.graph.ops, strict=True
        )
    )
    assert more > 100
    assert primitive.step_time_s - fused.step_time_s == pytest.approx(more * issue, rel=1e-2)


def test_both_executors_agree() -> None:
    plan = stacked(global_batch=8, data=2, precision="fp16-mixed", kernels__fusion="primitive")
    model = rl.load_model("bert-base", {"layers": 1})
    fast, slow = (rl.simulate(model, "dgx1-v100", plan, reference=r) for r in (False, True))
    assert fast.step_time_s == pytest.approx(slow.step_time_s, rel=1e-9)


LLAMA = {"layers": 1, "sequence": 16, "attention.kernel": "flash", "vocabulary": 32}


def test_eager_functions_of_a_llama_layer_move_what_their_ops_do() -> None:
    """By hand, in streams of 16 bits: a cast from or to fp32 moves 3, ops in fp32 twice as many."""
    graph = rl.load_model("llama3-8b", LLAMA).training(2, "bf16-mixed")
    written = as_primitives(graph, "eager")
    by_hand = {
        ("rms-norm", True): 3 + 2 * (2 + 1 + 2) + 3 + 2,
        ("rms-norm", False): 3 + 2 * (2 + 3 + 1 + 1 + 2 + 2 + 3 + 3) + 3 + (2 + 3 + 1),
        ("rotary", True): 3 + 2 * 2 + 3,
        ("rotary", False): 3 + 2 * 2 + 3,
        ("swiglu", True): 2 + 3,
        ("swiglu", False): 3 + 3 + 3,
    }
    seen = set()
    for before, after in zip(graph.ops, written.ops, strict=True):
        if before.kind not in EAGER:
            assert after is before
            continue
        forward = before.pass_ is Pass.FORWARD
        seen.add((before.kind, forward))
        size = graph.tensors[before.inputs[0]].bytes
        small = [n for n in (*before.inputs, *before.outputs) if graph.tensors[n].bytes != size]
        rest = sum(graph.tensors[name].bytes for name in small)
        assert moved(written, before.name) == by_hand[before.kind, forward] * size + rest
    assert seen == by_hand.keys()


def test_eager_norms_in_fp32_cast_nothing() -> None:
    graph = rl.load_model("llama3-8b", LLAMA).training(2, "fp32")
    written = as_primitives(graph, "eager")
    kernels = {op.pass_: op.kernels for op in written.ops if op.kind == "rms-norm"}
    assert kernels == {Pass.FORWARD: 3 + 1, Pass.INPUT_GRADIENT: 8 + 3}


def test_a_program_without_a_compiler_is_slower_and_computes_the_same() -> None:
    model = rl.load_model("llama3-8b", {**LLAMA, "layers": 2, "sequence": 2048})
    steps = [
        rl.simulate(model, "h100-sxm5-80gb", stacked(global_batch=2, kernels__fusion=functions))
        for functions in ("fused", "eager")
    ]
    assert 1.02 < steps[1].step_time_s / steps[0].step_time_s < 1.6
    assert steps[0].flops_per_step == steps[1].flops_per_step
