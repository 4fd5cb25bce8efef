"""A row of a device's table of shares is an op's own, whatever it is priced beside."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.hardware import load_device
from ridgeline.hardware.device import Achievable
from ridgeline.kernels.efficiency_table import achievable_share, achievable_shares
from ridgeline.kernels.op_cost_terms import Common
from ridgeline.kernels.op_signature import described
from ridgeline.kernels.pricing import price_all
from ridgeline.workload.files import load_model
from ridgeline.workload.graph import Graph, Op

A100, H100 = load_device("a100-sxm4-80gb"), load_device("h100-sxm5-80gb")
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


def test_a_state_space_layer_runs_at_the_rate_and_on_the_engine_of_its_measured_kernels() -> None:
    graph = load_model("nemotron-3-nano", {"sequence": 8192}).training(1, "bf16-mixed")
    layers = {op.layer for op in graph.ops if op.kind == "state-space"}
    one = sorted(layers)[0]
    ops = [op for op in graph.ops if op.layer == one and op.kind == "state-space"]
    kinds = [described(op, graph) for op in ops]
    again = [*kinds, kinds[0]]  # the profile forms the forward pass a second time
    assert [kind.op.pass_.value for kind in kinds if kind.op] == ["forward", "input-gradient"]
    times = {}
    for name in ("h100-sxm5-80gb", "b200", "gb300"):
        device = load_device(name)
        costs = price_all(again, device)
        rates = Common(device).rates
        assert all("tensor-cores.bf16" in cost.engine_work for cost in costs)
        times[name] = sum(cost.spans(rates).time_s for cost in costs)
    assert times["h100-sxm5-80gb"] == pytest.approx(71.5e-3 / len(layers), rel=0.02)
    assert times["h100-sxm5-80gb"] > times["b200"] >= times["gb300"]
    without = H100.model_copy(
        update={"achievable": tuple(r for r in H100.achievable if r.op != "state-space")}
    )
    bare = price_all(again, without)
    assert sum(cost.spans(Common(without).rates).time_s for cost in bare) < times["h100-sxm5-80gb"]


@pytest.mark.parametrize(("ultra", "base"), [("gb300", "gb200"), ("b300", "b200")])
@pytest.mark.parametrize("format_", ["bf16", "fp16", "fp8", "fp4"])
def test_products_of_blackwell_ultra_sustain_what_its_design_power_leaves(
    ultra: str, base: str, format_: str
) -> None:
    """Decision 0187: the share of the board with the same clocks, by the ratio of design powers."""
    share, power = [], []
    for device in (load_device(ultra), load_device(base)):
        rows = (r for r in device.achievable if (r.format, r.op) == (format_, "gemm"))
        assert device.tdp is not None
        share.append(next(rows).fraction.value)
        power.append(device.tdp.value)
    assert share[0] == pytest.approx(share[1] * power[0] / power[1], abs=6e-4)


def test_a_conversion_to_8_bits_takes_what_was_measured() -> None:
    """ROCm TransformerEngine, pull request 598: 8,192 x 8,192 numbers of 16 bits on a B200."""
    graph = load_model("mlp", {"widths": [8192] * 4}).training(8192, "fp8-mixed")
    device = load_device("b200")
    casts = [op for op in graph.ops if op.kind == "quantise"]
    read = {op.name: graph.tensors[op.inputs[0]] for op in casts}
    of_activations = [
        op for op in casts if read[op.name].shape == (8192, 8192) and read[op.name].format == "bf16"
    ]
    assert of_activations
    for cost in price_all([described(op, graph) for op in of_activations], device):
        assert cost.spans(Common(device).rates).time_s == pytest.approx(52.34e-6, rel=0.02)
