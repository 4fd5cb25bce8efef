"""Fused attention keeps its scores in the processors: no memory level sees them."""

from __future__ import annotations

import pytest

from ridgeline.hardware import load_device
from ridgeline.kernels import price
from ridgeline.kernels.shares import achievable_share
from ridgeline.workload.graph import Gemm, Graph, Op, Pass, Role, Tensor
from ridgeline.workload.model import load_model

A100 = load_device("a100-sxm4-80gb")


@pytest.mark.parametrize("positions", [512, 4096])
def test_traffic_of_fused_attention_grows_with_positions_and_not_with_their_square(
    positions: int,
) -> None:
    batch, heads, size = 4, 16, 64
    shapes = {
        "q": (batch, positions, heads * size), "k": (batch, positions, heads * size),
        "v": (batch, positions, heads * size), "y": (batch, positions, heads * size),
        "sums": (batch, heads, positions),
    }  # fmt: skip
    tensors = {n: Tensor(n, shape, "fp16", Role.ACTIVATION) for n, shape in shapes.items()}
    op = Op(
        "attention", "flash-attention", Pass.FORWARD, "", ("q", "k", "v"), ("y", "sums"),
        loops=Gemm(positions, positions, 2 * size, batch=batch * heads),
        vector_flops=6 * batch * heads * positions**2,
    )  # fmt: skip
    device = load_device("a100-sxm4-80gb")
    cost = price(op, Graph("attention", batch, "fp16", tensors, (op,), "y"), device)
    touched = sum(tensor.bytes for tensor in tensors.values())
    scores = batch * heads * positions**2 * 2
    assert touched <= cost.traffic_bytes["hbm"] <= 2 * touched
    assert positions < 4096 or cost.traffic_bytes["hbm"] < scores / 6


@pytest.mark.parametrize(("kernel", "share"), [("flash", 0.615), ("flash-1", 0.325)])
def test_fused_attention_reaches_a_share_of_its_own(kernel: str, share: float) -> None:
    fields = {"layers": 1, "sequence": 8192, "attention.kernel": kernel}
    graph = load_model("gpt3-1.3b", fields).training(1, "bf16-mixed")
    op = next(op for op in graph.ops if op.kind == "flash-attention")
    rows = [row for row in A100.achievable if row.op == "gemm"]
    attention, product = (
        price(op, graph, device).engine_work["tensor-cores.bf16"]
        for device in (A100, A100.model_copy(update={"achievable": tuple(rows)}))
    )
    reached = next(row for row in rows if row.format == "bf16").fraction.value
    assert attention / product == pytest.approx(reached / share, rel=0.02)


def test_the_first_version_falls_back_on_the_second() -> None:
    rows = tuple(row for row in A100.achievable if row.op != "attention-1")
    device = A100.model_copy(update={"achievable": rows})
    fields = {"layers": 1, "attention.kernel": "flash-1"}
    graph = load_model("gpt3-1.3b", fields).training(1, "bf16-mixed")
    op = next(op for op in graph.ops if op.kind == "flash-attention")
    found = achievable_share(op, device, "tensor-cores", "bf16")
    assert found is not None
    assert found.op == "attention"
