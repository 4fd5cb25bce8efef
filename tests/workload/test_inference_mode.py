"""Forward passes as they run once a network is trained."""

from __future__ import annotations

import pytest

from ridgeline.workload.files import load_model
from ridgeline.workload.graph import Role
from ridgeline.workload.inference_mode import inference_mode


@pytest.mark.parametrize("name", ["resnet18", "vgg19", "bert-base", "lenet5"])
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_the_products_stay(name: str, precision: str) -> None:
    before = load_model(name).inference(2, precision)
    graph = inference_mode(before)
    assert graph.flops() == before.flops()
    assert not {op.kind for op in graph.ops} & {"dropout", "batch-norm"}
    assert graph.loss in graph.ops[-1].outputs
    made = {name for op in graph.ops for name in op.outputs}
    for op in graph.ops:
        for tensor in op.inputs:
            assert tensor in made or graph.tensors[tensor].role is not Role.ACTIVATION
    if precision == "bf16-mixed":  # weights lie in the format that they are multiplied in
        for op in graph.ops:
            if op.loops is not None:
                assert graph.tensors[op.inputs[1]].format == "bf16"


def test_norms_additions_and_functions_are_epilogues() -> None:
    graph = inference_mode(load_model("resnet18").inference(1))
    kinds = [op.kind for op in graph.ops]
    assert kinds.count("conv2d") == 20
    assert {kind for kind in kinds if kind != "conv2d"} == {
        "max-pool", "adaptive-avg-pool", "gemm",
    }  # fmt: skip
