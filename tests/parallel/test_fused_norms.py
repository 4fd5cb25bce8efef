"""Batch norms whose kernels add shortcuts and apply relu."""

import pytest

from ridgeline import load_model, simulate
from ridgeline.parallel.passes.folded_norms import with_folded_norms
from ridgeline.parallel.passes.fused_norms import with_fused_norms
from ridgeline.workload.graph import Graph, Pass, Role
from stacked import stacked


def training(name: str) -> Graph:
    fields = {"image": {"height": 64, "width": 64}}
    return load_model(name, fields).training(2, "fp16-mixed")


def kinds(graph: Graph, kind: str, pass_: Pass) -> int:
    return sum(op.kind == kind and op.pass_ is pass_ for op in graph.ops)


@pytest.mark.parametrize("name", ["resnet50", "resnet18", "densenet121", "vgg11-bn"])
def test_every_op_finds_what_it_reads_and_no_weight_loses_its_gradient(name: str) -> None:
    graph = training("vgg-a-bn" if name == "vgg11-bn" else name)
    fused = with_fused_norms(graph)
    given = {
        t.name
        for t in graph.tensors.values()
        if t.role in {Role.INPUT, Role.WEIGHT, Role.BUFFER, Role.STATE}
    }
    for op in fused.ops:
        assert given.issuperset(op.inputs), op.name
        given |= set(op.outputs)
    assert given >= {t.name for t in graph.tensors.values() if t.role is Role.WEIGHT_GRADIENT}
    assert fused.flops() == graph.flops()
    assert sum(op.vector_flops for op in fused.ops) == sum(op.vector_flops for op in graph.ops)
    assert len(fused.tensors) < len(graph.tensors)


def test_residual_networks_keep_no_relu_and_only_sums_of_gradients() -> None:
    fused = with_fused_norms(training("resnet50"))
    assert kinds(fused, "relu", Pass.FORWARD) == 0
    assert kinds(fused, "relu", Pass.INPUT_GRADIENT) == 0
    assert kinds(fused, "add", Pass.FORWARD) == 0
    assert kinds(fused, "batch-norm", Pass.FORWARD) == 53


def test_bytes_are_those_of_the_kernels() -> None:
    """relu: 5 to 3 passes and 8 to 5 and a bit; with the shortcut 8 to 4, and 8 to 6 and a bit."""
    graph = training("resnet50")
    fused = with_fused_norms(graph)

    def moved(graph: Graph, layers: tuple[str, ...]) -> float:
        images = {n for n, t in graph.tensors.items() if len(t.shape) == 4}
        total = 0.0
        for op in graph.ops:
            if op.layer in layers and op.kind in {"batch-norm", "relu", "add"}:
                passes = op.input_passes or (1,) * len(op.inputs)
                total += sum(p for n, p in zip(op.inputs, passes, strict=True) if n in images)
                total += sum(n in images for n in op.outputs)
        return total

    chain = tuple(f"layer1.1.{name}1" for name in ("bn", "relu"))
    assert moved(graph, chain) == 5 + 8
    assert moved(fused, chain) == pytest.approx(3 + 5 + 1 / 16)
    block = tuple(f"layer1.1.{name}" for name in ("bn3", "add", "relu"))
    assert moved(graph, block) == 8 + 8
    assert moved(fused, block) == pytest.approx(4 + 6 + 1 / 16)


def test_a_step_is_faster_and_the_same_work() -> None:
    apart, fused = (
        simulate(
            load_model("resnet50"),
            "a100-sxm4-40gb",
            stacked(global_batch=64, precision="fp16-mixed", kernels__norm=norms),
        )
        for norms in ("shared", "fused")
    )
    assert 0.7 * apart.step_time_s < fused.step_time_s < apart.step_time_s
    assert fused.flops_per_step == apart.flops_per_step
    assert fused.memory_bytes["total"] == pytest.approx(apart.memory_bytes["total"], rel=0.01)


def test_networks_without_norms_stay_as_they_are() -> None:
    graph = load_model("alexnet").training(2, "fp16-mixed")
    assert with_fused_norms(graph).ops == graph.ops


def test_convolutions_apply_frozen_norms_and_the_relu_behind_them() -> None:
    fields = {"image": {"height": 128, "width": 128}}
    graph = load_model("mask-rcnn", fields).training(1, "fp16-mixed")
    folded = with_folded_norms(graph)
    given = {
        t.name
        for t in graph.tensors.values()
        if t.role in {Role.INPUT, Role.WEIGHT, Role.BUFFER, Role.STATE}
    }
    for op in folded.ops:
        assert given.issuperset(op.inputs), op.name
        given |= set(op.outputs)
    assert given >= {t.name for t in graph.tensors.values() if t.role is Role.WEIGHT_GRADIENT}
    assert kinds(folded, "frozen-batch-norm", Pass.FORWARD) == 0
    # what a relu of two convolutions gets by two ways has its scale by a kernel of its own
    gradients = kinds(graph, "frozen-batch-norm", Pass.INPUT_GRADIENT)
    assert 0 < kinds(folded, "frozen-batch-norm", Pass.INPUT_GRADIENT) < gradients / 2
    assert folded.flops() == graph.flops()
    assert sum(op.vector_flops for op in folded.ops) == sum(op.vector_flops for op in graph.ops)
    assert with_folded_norms(training("resnet18")).ops == training("resnet18").ops
