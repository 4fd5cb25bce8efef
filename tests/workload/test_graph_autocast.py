"""What torch.amp widens, and what it leaves in 16 bits."""

import pytest

from ridgeline.workload import load_model
from ridgeline.workload.graph import Role

BERT = load_model("bert-base", {"layers": 2, "sequence": 64, "masked": 8})


def formats(graph, kind):
    return {
        graph.tensors[op.outputs[0]].format
        for op in graph.ops
        if op.kind == kind and op.pass_ == "forward"
    }


@pytest.mark.parametrize("format_", ["fp16", "bf16"])
def test_lookups_softmax_and_norms_are_wide_products_are_not(format_):
    wide = BERT.training(4, f"{format_}-autocast")
    for kind in ("embedding", "softmax", "layer-norm"):
        assert formats(wide, kind) == {"fp32"}
        assert formats(BERT.training(4, f"{format_}-mixed"), kind) == {format_}
    assert formats(wide, "gemm") == formats(wide, "attention-scores") == {format_}


def test_the_residual_stream_is_wide_and_its_branches_are_not():
    graph = BERT.training(4, "fp16-autocast")
    sums = [op for op in graph.ops if op.kind == "add" and op.layer.startswith("blocks")]
    forward = [op for op in sums if op.pass_ == "forward"]
    assert len(forward) == 4
    for op in forward:
        assert {graph.tensors[x].format for x in op.inputs} == {"fp32", "fp16"}
        assert graph.tensors[op.outputs[0]].format == "fp32"


def test_gradients_have_the_formats_of_what_they_belong_to():
    graph = BERT.training(4, "fp16-autocast")
    for name, tensor in graph.tensors.items():
        if tensor.role is Role.ACTIVATION_GRADIENT and name.endswith(".grad"):
            assert tensor.format == graph.tensors[name.removesuffix(".grad")].format


@pytest.mark.parametrize("name", ["resnet18", "gnmt", "dlrm"])
def test_weights_states_and_flops_are_those_of_mixed_precision(name):
    model = load_model(name)
    mixed, wide = (model.training(2, f"fp16-{how}") for how in ("mixed", "autocast"))
    assert mixed.useful_flops == wide.useful_flops
    for role in (Role.WEIGHT, Role.STATE, Role.WEIGHT_GRADIENT):
        total = [sum(t.bytes for t in g.tensors.values() if t.role is role) for g in (mixed, wide)]
        assert total[0] == total[1]
    assert sum(t.bytes for t in wide.tensors.values()) >= sum(
        t.bytes for t in mixed.tensors.values()
    )


def test_batch_norm_stays_in_sixteen_bits():
    graph = load_model("resnet18").training(2, "fp16-autocast")
    assert formats(graph, "batch-norm") == {"fp16"}
