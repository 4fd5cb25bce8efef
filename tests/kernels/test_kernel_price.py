"""Calls priced many at a time cost what each costs alone."""

from __future__ import annotations

import pytest

from ridgeline.errors import RidgelineError
from ridgeline.hardware import load_device
from ridgeline.kernels.kernel_price import COLD, Repetition, price_kernels, roofline_s
from ridgeline.kernels.single_op import gemm
from ridgeline.workload.kernel_graphs import (
    attention_graph,
    compulsory_bytes,
    elementwise_graph,
    experts_graph,
    linear_graph,
    product_formats,
)


@pytest.mark.parametrize("device", ["h100-sxm5-80gb", "p4", "mi100", "mi250", "v100-pcie-32gb"])
def test_a_product_costs_what_gemm_says(device: str) -> None:
    format_ = "fp32"
    shapes = [(64, 512, 256), (4096, 1024, 2048), (1, 4096, 4096)]
    graphs = [linear_graph(m, n, k, product_formats(format_)) for m, n, k in shapes]
    machine = load_device(device)
    for (m, n, k), price in zip(shapes, price_kernels(graphs, machine), strict=True):
        alone = gemm(m, n, k, machine, format=format_)
        assert price.time_s == alone.time_s
        assert price.energy_j == pytest.approx(alone.energy_j["total"], rel=1e-12)
        assert price.power_w == pytest.approx(alone.energy_j["total"] / alone.time_s)


def test_together_and_alone_are_the_same() -> None:
    device = load_device("b200")
    graphs = [
        linear_graph(32, 1024, 512, product_formats("fp8")),
        linear_graph(32, 1024, 512, product_formats("fp8")),
        attention_graph(2, 8, 2, 128, 512, 512, causal=True, window=128),
        experts_graph(64, 8, 32, 256, 128, product_formats("nvfp4")),
        elementwise_graph("add", 128, 128),
    ]
    together = price_kernels(graphs, device)
    assert together == [price_kernels([graph], device)[0] for graph in graphs]
    assert together[0] == together[1]


def test_nothing_is_faster_than_its_roofline() -> None:
    device = load_device("a100-sxm4-80gb")
    graphs = [
        linear_graph(4096, 4096, 4096, product_formats("bf16")),
        attention_graph(1, 16, 16, 128, 4096, 4096, causal=False),
        elementwise_graph("mul", 8192, 8192),
    ]
    for graph, price in zip(graphs, price_kernels(graphs, device), strict=True):
        assert price.roofline_s == roofline_s(graph, device)
        assert price.time_s >= price.roofline_s


def test_a_window_is_never_slower_than_all_keys() -> None:
    device = load_device("h200-sxm")
    lengths = [128, 256, 1024, 4096, 0]
    graphs = [attention_graph(1, 8, 8, 128, 4096, 4096, causal=True, window=w) for w in lengths]
    times = [price.time_s for price in price_kernels(graphs, device)]
    assert times == sorted(times)


def test_masked_scores_do_not_count_for_the_roofline() -> None:
    device = load_device("h200-sxm")
    full = attention_graph(1, 64, 64, 128, 8192, 8192, causal=False)
    half = attention_graph(1, 64, 64, 128, 8192, 8192, causal=True)
    assert compulsory_bytes(full) == compulsory_bytes(half)
    ratio = roofline_s(half, device) / roofline_s(full, device)
    assert ratio == pytest.approx((1 + 1 / 8192) / 2)


def test_a_format_that_no_engine_has_is_an_error() -> None:
    with pytest.raises(RidgelineError, match="fp4"):
        price_kernels(
            [linear_graph(16, 16, 16, product_formats("nvfp4"))], load_device("h100-sxm5-80gb")
        )


def _times(m: int, n: int, k: int, *repeated: Repetition) -> list[float]:
    """Times of a product on a board with 96 MB of last cache, by how it is repeated."""
    device, graph = load_device("l40s"), linear_graph(m, n, k, product_formats("bf16"))
    return [price_kernels([graph], device, one)[0].time_s for one in repeated]


def test_weights_that_take_turns_come_from_memory_and_one_layer_s_do_not() -> None:
    # 37 MB of weights: one layer's stay in the cache, six layers' do not.
    once, turns, cold = _times(1, 3584, 5120, Repetition(1.0, 1), Repetition(1.0, 6), COLD)
    assert once < 0.6 * turns
    assert turns == pytest.approx(cold, rel=0.02)


def test_activations_stay_while_weights_take_turns() -> None:
    # 34 MB of activations, 0.3 MB of weights
    turns, cold = _times(8192, 64, 2048, Repetition(1.0, 6), COLD)
    assert turns < 0.8 * cold


@pytest.mark.parametrize("shape", [(16, 256, 512), (300, 70, 1000), (4096, 4096, 4096)])
def test_a_repeated_call_is_never_slower_than_a_cold_one(shape: tuple[int, int, int]) -> None:
    few, many, cold = _times(*shape, Repetition(0.75, 1), Repetition(0.75, 6), COLD)
    assert few <= many <= cold
