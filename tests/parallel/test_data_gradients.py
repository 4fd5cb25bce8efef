"""Gradients of the data, which frameworks may form though nobody reads them."""

from __future__ import annotations

import pytest

import ridgeline as rl
from ridgeline.parallel.passes.data_gradients import with_data_gradients
from ridgeline.workload.graph import Pass, Role
from stacked import stacked


@pytest.mark.parametrize(
    ("name", "precision"),
    [("alexnet", "fp32"), ("resnet18", "fp16-mixed"), ("mlp", "fp32"), ("googlenet", "fp32")],
)
def test_the_first_layer_has_one_more_op_of_as_many_flops(name: str, precision: str) -> None:
    graph = rl.load_model(name).training(4, precision)
    more = with_data_gradients(graph)
    added = [op for op in more.ops if op not in graph.ops]
    assert [op for op in more.ops if op in graph.ops] == list(graph.ops)
    (op,) = added
    first = next(op for op in graph.ops if op.loops is not None)
    assert op.pass_ is Pass.INPUT_GRADIENT
    assert op.layer == first.layer
    assert op.matrix_flops == first.matrix_flops
    written, read = more.tensors[op.outputs[0]], graph.tensors[first.inputs[0]]
    assert written.shape == read.shape
    assert written.role is Role.ACTIVATION_GRADIENT
    assert more.tensors[op.inputs[0]].shape == graph.tensors[first.outputs[0]].shape
    assert not any(written.name in other.inputs for other in more.ops)


def test_networks_that_look_up_tokens_have_none() -> None:
    graph = rl.load_model("bert-base", {"layers": 1, "sequence": 8, "masked": 2}).training(2)
    assert with_data_gradients(graph).ops == graph.ops


def test_a_step_is_longer_and_holds_no_less() -> None:
    def step(**fields: object) -> rl.Result:
        plan = stacked(global_batch=8, precision="fp32", **fields)
        return rl.simulate("resnet18", "gtx-1080ti", plan)

    without, with_them = step(), step(kernels__input_gradients=True)
    assert with_them.step_time_s > without.step_time_s
    assert with_them.memory_bytes["total"] >= without.memory_bytes["total"]
    assert with_them.flops_per_step == without.flops_per_step
