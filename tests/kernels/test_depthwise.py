"""Depthwise convolutions: their own kernel, and what it loads."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.hardware.load import load_device
from ridgeline.kernels import depthwise
from ridgeline.kernels.pricing import price
from ridgeline.workload import Pass, ops, training_graph
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.graph import Conv
from ridgeline.workload.numerics import PRECISIONS
from ridgeline.workload.optimizers import OPTIMIZERS

V100 = load_device("v100-sxm2-16gb")


def convolution(channels, groups, size, kernel, precision="fp16-mixed", batch=8):
    b = GraphBuilder("test", batch, PRECISIONS[precision])
    x = b.input("images", (batch, channels, size, size))
    x = ops.conv2d(b, "first", x, channels, 1, bias=False)
    x = ops.conv2d(b, "conv", x, channels, kernel, padding=kernel // 2, groups=groups, bias=False)
    labels = b.input("labels", (batch,), "int64")
    logits = ops.linear(b, "fc", ops.adaptive_avg_pool(b, "pool", x), 2, flatten=True)
    graph = b.graph(ops.cross_entropy(b, "loss", logits, labels))
    graph = training_graph(graph, OPTIMIZERS["sgd"])
    return graph, [op for op in graph.ops if op.kind == "conv2d" and op.layer == "conv"]


def test_only_a_filter_a_channel_is_depthwise():
    assert all(depthwise.applies(op) for op in convolution(32, 32, 8, 3)[1])
    assert not any(depthwise.applies(op) for op in convolution(32, 8, 8, 3)[1])
    assert not any(depthwise.applies(op) for op in convolution(1, 1, 8, 3)[1])


@pytest.mark.parametrize("kernel", [3, 5])
def test_loads_by_hand(kernel):
    """Two loads of a lane for each multiplication; the weights' gradient misses the first cache."""
    graph, convs = convolution(64, 64, 16, kernel)
    macs = 8 * 64 * 16 * 16 * kernel**2
    for op in convs:
        loads = depthwise.nearer_bytes(op, graph, V100)
        missed = 2 * 2 * macs if op.pass_ is Pass.WEIGHT_GRADIENT else 0
        assert loads == {"l1": 8 * macs, "l2": missed}
        cost = price(op, graph, V100)
        assert cost.traffic_bytes["l1"] == 8 * macs
        assert cost.flops["cuda-cores.fp32"] == 2 * macs


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 8), st.integers(2, 6), st.sampled_from([1, 3, 5, 7]), st.booleans())
def test_never_faster_than_memory_nor_than_its_instructions(factor, log_size, kernel, single):
    channels, size = 32 * factor, 2**log_size
    graph, convs = convolution(
        channels, channels, max(size, kernel), kernel, "fp32" if single else "fp16-mixed"
    )
    far, lanes = V100.memory[V100.far_memory], V100.engines["cuda-cores"].rates["fp32"].value / 2
    for op in convs:
        cost = price(op, graph, V100)
        moved = graph.read_bytes(op) + graph.write_bytes(op)
        integers = {Pass.FORWARD: 7, Pass.INPUT_GRADIENT: 8, Pass.WEIGHT_GRADIENT: 35}[op.pass_]
        bounds = (moved / far.bandwidth.value, integers * op.loops.macs / lanes)
        assert cost.time_s(V100) >= max(bounds)


def test_strided_gradients_test_every_tap_of_every_pixel():
    loops = Conv(8, 64, 16, 16, 64, 3, 3, stride=(2, 2), padding=(1, 1), groups=64)
    _, convs = convolution(64, 64, 16, 3)
    of = {op.pass_: replace(op, loops=loops) for op in convs}
    assert depthwise.integers(of[Pass.INPUT_GRADIENT]) == 4 * 8
    assert depthwise.integers(of[Pass.FORWARD]) == 7
    assert depthwise.integers(of[Pass.WEIGHT_GRADIENT]) == 35


def test_a_price_does_not_depend_on_what_was_priced_before():
    graph, convs = convolution(64, 64, 16, 5)
    first = [price(op, graph, V100) for op in convs]
    for _ in range(3):
        other, more = convolution(64, 64, 16, 5)
        assert [price(op, other, V100) for op in more] == first


def test_arrays_that_only_multiply_take_channels_as_products():
    tpu = load_device("tpu-v2")
    assert depthwise.engine_for(tpu) is None
    graph, convs = convolution(32, 32, 8, 3, "bf16-mixed")
    assert all("vector" not in key for key in price(convs[0], graph, tpu).flops)
