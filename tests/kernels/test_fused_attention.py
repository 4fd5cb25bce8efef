"""Fused attention keeps its scores in the processors: no memory level sees them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import ConfigError
from ridgeline.hardware import load_device
from ridgeline.kernels import price
from ridgeline.kernels.efficiency_table import achievable_share, share_of
from ridgeline.workload.files import load_model
from ridgeline.workload.graph import Gemm, Graph, Op, Pass, Role, Tensor

DEVICES = Path(__file__).parents[2] / "hwconfigs" / "devices"
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


def _attention(positions: int, heads: int, pass_: Pass) -> tuple[Op, Graph]:
    """Causal attention with heads of 128 features, of which groups of 16 share keys."""
    kv_heads, size = heads // 16, 128
    queries, keys = (1, positions, heads * size), (1, positions, kv_heads * size)
    shapes = {"q": queries, "k": keys, "v": keys, "y": queries, "sums": (1, heads, positions)}
    tensors = {n: Tensor(n, shape, "bf16", Role.ACTIVATION) for n, shape in shapes.items()}
    products = 2 if pass_ is Pass.FORWARD else 5
    op = Op(
        "attention", "flash-attention", pass_, "", ("q", "k", "v"), ("y", "sums"),
        loops=Gemm(16 * positions, positions, products * size, batch=kv_heads),
        attrs=(("causal", 1),),
    )  # fmt: skip
    return op, Graph("attention", 1, "bf16", tensors, (op,), "y")


@pytest.mark.parametrize(
    ("name", "heads", "pass_", "fixed_s", "measured_ms"),
    [  # cuDNN's times, `benchmarks/data/attention_blackwell.csv`
        ("b200", 128, Pass.FORWARD, 70e-6, {4096: 0.642, 8192: 1.877, 32768: 24.795}),
        ("b200", 128, Pass.INPUT_GRADIENT, 42e-6, {4096: 1.960, 8192: 5.833, 32768: 79.338}),
        ("gb200", 64, Pass.FORWARD, 0.0, {2048: 0.067, 4096: 0.212, 32768: 10.436}),
        ("gb200", 64, Pass.INPUT_GRADIENT, 0.0, {2048: 0.209, 4096: 0.622, 32768: 30.513}),
        ("gb300", 128, Pass.INPUT_GRADIENT, 153e-6, {4096: 1.540, 8192: 4.865, 32768: 66.679}),
    ],
)
def test_short_rows_of_keys_lose_what_was_measured(
    name: str, heads: int, pass_: Pass, fixed_s: float, measured_ms: dict[int, float]
) -> None:
    """Without the limit of power, which a few calls do not meet."""
    device = load_device(name)
    free = tuple(
        row.model_copy(update={"fraction": row.fraction.model_copy(update={"value": 1.0})})
        for row in device.achievable
    )
    device = device.model_copy(update={"achievable": free, "voltage_floor": None})
    for positions, milliseconds in measured_ms.items():
        op, graph = _attention(positions, heads, pass_)
        time_s = fixed_s + price(op, graph, device).time_s(device)
        assert time_s * 1e3 == pytest.approx(milliseconds, rel=0.12)


@given(st.integers(1, 400), st.integers(1, 400), st.sampled_from(["b200", "gb200", "gb300"]))
def test_longer_rows_of_keys_reach_more_up_to_the_limit(a: int, b: int, name: str) -> None:
    rows = [row for row in load_device(name).achievable if row.ramp is not None]
    for row in rows:
        pass_ = Pass.FORWARD if row.pass_ == "forward" else Pass.INPUT_GRADIENT
        short, long = (
            share_of(_attention(128 * tiles, 16, pass_)[0], row) for tiles in sorted((a, b))
        )
        assert 0 < short <= long <= row.fraction.value
        assert row.ramp is not None
        assert long <= row.ramp.fraction.value


def test_only_attention_has_ends_of_rows(tmp_path: Path) -> None:
    text = (DEVICES / "b200.yaml").read_text(encoding="utf-8")
    file = tmp_path / "odd.yaml"
    file.write_text(text.replace("op: attention", "op: gemm", 1), encoding="utf-8")
    with pytest.raises(ConfigError, match="ramp"):
        load_device(str(file))


@pytest.mark.parametrize("name", ["h100-sxm5-80gb", "a100-sxm4-80gb"])
@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, 20), window=st.integers(1, 2048))
def test_registers_pass_operands_of_the_scores_that_are_computed(
    name: str, rows: int, window: int
) -> None:
    """Tiles that a mask hides are not computed, so that no instruction reads their operands."""
    device = load_device(name)
    op, graph = _attention(128 * rows, 16, Pass.FORWARD)
    masked = (op, replace(op, attrs=(*op.attrs, ("window", window))))
    whole = price(replace(op, attrs=(("causal", 0),)), graph, device)
    for cost in (price(each, graph, device) for each in masked):
        computed = sum(cost.flops.values()) / sum(whole.flops.values())
        registers = cost.traffic_bytes["registers"] / whole.traffic_bytes["registers"]
        assert registers == pytest.approx(computed)
        assert registers <= 1.0
