"""Fused attention keeps its scores in the processors: no memory level sees them."""

from __future__ import annotations

import pytest

from ridgeline.hardware import load_device
from ridgeline.kernels import price
from ridgeline.workload.graph import Gemm, Graph, Op, Pass, Role, Tensor


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
