"""Experts are shared in every number format, and gradients summed in one kernel."""

from __future__ import annotations

import pytest

from ridgeline.parallel.experts import expert_weights, with_experts
from ridgeline.parallel.prices import adds, sum_bytes
from ridgeline.workload.autodiff import weight_gradients
from ridgeline.workload.graph import Gemm, Graph, Pass, Role
from ridgeline.workload.model import load_model

OF_WEIGHTS = {Role.WEIGHT, Role.WEIGHT_COPY, Role.WEIGHT_GRADIENT, Role.STATE}


def mixture(precision: str) -> Graph:
    fields = {"layers": 4, "sequence": 64}  # three dense layers, one of experts
    return load_model("deepseek-v3", fields).training(2, precision)


def experts_bytes(graph: Graph) -> dict[Role, int]:
    """Bytes of what belongs to the weights of experts, by role."""
    found = dict.fromkeys(OF_WEIGHTS, 0)
    for tensor in graph.tensors.values():
        layer, _, last = tensor.name.partition(".experts.")
        if layer == "blocks.3" and last.startswith(("gate-up.weight", "down.weight")):
            found[tensor.role] = found.get(tensor.role, 0) + tensor.bytes
    return found


@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed", "fp8-mixed"])
@pytest.mark.parametrize("ranks", [2, 8])
def test_ranks_hold_their_part_of_the_experts_in_every_format(precision: str, ranks: int) -> None:
    whole = mixture(precision)
    part = with_experts(whole, ranks)
    assert experts_bytes(part) == {r: n // ranks for r, n in experts_bytes(whole).items()}
    held = expert_weights(part)
    assert {n for n in held if part.tensors[n].role is Role.WEIGHT} == {
        "blocks.3.experts.gate-up.weight",
        "blocks.3.experts.down.weight",
    }
    exchanges = [op for op in part.ops if op.kind == "all-to-all"]
    assert len(exchanges) == 4  # there and back, forward and backward
    assert sum(op.matrix_flops for op in part.ops) == sum(op.matrix_flops for op in whole.ops)
    for op in part.ops:
        if isinstance(op.loops, Gemm) and ".experts.down" in op.name and op.loops.batch > 1:
            assert {part.tensors[n].shape[0] for n in op.inputs} == {op.loops.batch}


@pytest.mark.parametrize("precision", ["fp32", "fp16-mixed"])
def test_a_gradient_is_cast_and_added_in_one_kernel(precision: str) -> None:
    """The sum is read and written in fp32, and the gradient read in the format it was made in."""
    graph = load_model("gpt2", {"layers": 1, "sequence": 64}).training(1, precision)
    wanted = set(weight_gradients(graph).values())
    of_products = 0
    for op in graph.ops:
        kept = [name for name in op.outputs if name in wanted]
        if kept and op.pass_ is not Pass.UPDATE:
            elements = sum(graph.tensors[name].elements for name in kept)
            assert sum_bytes(op, graph, kept) == (10 if adds(op) else 12) * elements
            of_products += adds(op)
    assert (of_products > 8) == (precision != "fp32")
