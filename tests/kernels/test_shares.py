"""A row of a device's table of shares is an op's own, whatever it is priced beside."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.hardware import load_device
from ridgeline.hardware.device import Achievable
from ridgeline.kernels.alike import described
from ridgeline.kernels.pricing import price_all
from ridgeline.kernels.shares import achievable_share, achievable_shares
from ridgeline.workload.graph import Graph, Op
from ridgeline.workload.model import load_model

A100 = load_device("a100-sxm4-80gb")
NETWORKS = [
    ("gpt3-1.3b", {"layers": 1, "sequence": 512, "attention.kernel": "flash"}),
    ("gpt3-1.3b", {"layers": 1, "sequence": 512, "attention.kernel": "flash-1"}),
    ("resnet18", {}),
    ("gnmt", {}),
]


def contractions() -> list[tuple[Op, Graph]]:
    found = []
    for name, fields in NETWORKS:
        graph = load_model(name, fields).training(1, "fp16-mixed")
        found += [(op, graph) for op in graph.ops if op.loops is not None]
    return found


CONTRACTIONS = contractions()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(CONTRACTIONS), min_size=2, max_size=12))
def test_ops_cost_the_same_together_and_alone(ops: list[tuple[Op, Graph]]) -> None:
    kinds = [described(op, graph) for op, graph in ops]
    together = price_all(kinds, A100)
    alone = [price_all((kind,), A100)[0] for kind in kinds]
    assert [cost.engine_work for cost in together] == [cost.engine_work for cost in alone]
    assert [cost.latency_s for cost in together] == [cost.latency_s for cost in alone]


@pytest.mark.parametrize("order", [1, -1])
def test_a_row_for_large_ops_is_theirs_alone(order: int) -> None:
    ops = sorted(
        (op for op, _ in CONTRACTIONS if op.kind == "gemm"), key=lambda op: op.matrix_flops
    )
    small, large = ops[0], ops[-1]
    plain = {"engine": "tensor-cores", "format": "fp16", "op": "gemm"}
    value = {"source": "test", "basis": "assumed"}
    limit = f"{large.matrix_flops} FLOP"
    rows = tuple(
        Achievable.model_validate(row)
        for row in (
            {**plain, "fraction": {"value": 0.9, **value}, "at_least": {"value": limit, **value}},
            {**plain, "fraction": {"value": 0.5, **value}},
        )
    )
    device = A100.model_copy(update={"achievable": rows})
    found = achievable_shares((small, large)[::order], device, "tensor-cores", "fp16")
    assert (
        found
        == [achievable_share(op, device, "tensor-cores", "fp16") for op in (small, large)][::order]
    )
    assert [row.fraction.value for row in found[::order] if row is not None] == [0.5, 0.9]
