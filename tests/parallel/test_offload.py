"""Offload: the same gradients from tensors that were away, what is held, and what it costs."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles.graph_interpreter import run
from oracles.graph_memory import profile
from oracles.graph_networks import forward_graphs
from oracles.graph_zoo import tiny
from ridgeline.errors import RidgelineError
from ridgeline.hardware import load_cluster
from ridgeline.kernels import price
from ridgeline.network.cluster_topology import from_cluster
from ridgeline.parallel.checkpointing.chain import DoesNotFit
from ridgeline.parallel.checkpointing.offload import (
    COPIES,
    OffloadLink,
    copied_bytes,
    host_link,
    offloadable,
    overlapped,
    with_offload,
)
from ridgeline.parallel.checkpointing.offload_fit import fastest_fit
from ridgeline.parallel.checkpointing.recompute import with_recompute
from ridgeline.workload import Pass, Role, load_model, peak, training_graph
from ridgeline.workload.autodiff import weight_gradients
from ridgeline.workload.optimizers import OPTIMIZERS

SGD = OPTIMIZERS["sgd"]
TITAN = load_cluster("titan-x-pcie3")
LINK = host_link(from_cluster(TITAN, 1))


def values(graph, seed=0):
    rng = np.random.default_rng(seed)
    return {
        t.name: rng.integers(0, 2, t.shape)
        if t.format == "int64"
        else rng.normal(size=t.shape) / math.sqrt(math.prod(t.shape[1:]))
        for t in graph.tensors.values()
        if t.role in {Role.INPUT, Role.WEIGHT, Role.BUFFER}
    }


def assert_same_gradients(graph, changed, seed=0):
    before, after = run(graph, values(graph, seed)), run(changed, values(graph, seed))
    for gradient in weight_gradients(graph).values():
        np.testing.assert_array_equal(before[gradient], after[gradient])


@settings(max_examples=60, deadline=None)
@given(forward_graphs(), st.sampled_from(["all", "conv"]), st.booleans(), st.integers(0, 2**31))
def test_gradients_are_the_same_and_memory_equals_the_oracle(forward, policy, first, seed):
    graph = training_graph(forward, SGD)
    base = with_recompute(graph, "full") if first else graph
    changed = with_offload(base, policy)
    assert_same_gradients(graph, changed, seed)
    assert peak(changed).total == max(profile(changed))
    assert changed.flops() == graph.flops()
    away = copied_bytes(changed)
    assert changed.activation_bytes == base.activation_bytes - away


@settings(max_examples=40, deadline=None)
@given(forward_graphs(), st.floats(1e3, 1e9), st.floats(0, 1e-3))
def test_copies_never_make_a_step_faster_nor_slower_than_one_after_the_other(
    forward, bytes_per_s, latency_s
):
    graph = with_offload(training_graph(forward, SGD), "all")
    times = {op.name: 1e-4 for op in graph.ops if op.kind not in COPIES}
    result = overlapped(graph, times, OffloadLink(bytes_per_s, latency_s))
    assert result.compute_s == pytest.approx(1e-4 * len(times))
    assert max(result.compute_s, result.copy_s) <= result.step_s * (1 + 1e-9)
    assert result.step_s <= (result.compute_s + result.copy_s) * (1 + 1e-9)
    fast = overlapped(graph, times, OffloadLink(2 * bytes_per_s, latency_s))
    assert fast.step_s <= result.step_s * (1 + 1e-9)


def test_overlap_by_hand():
    """Each layer beside its copy: the longer counts, and the next layer waits."""
    graph = load_model("vgg16").training(2, "fp32", SGD)
    changed = with_offload(graph, tensors=["relu3-1.y"])
    size = graph.tensors["relu3-1.y"].bytes
    kinds = [op.name for op in changed.ops]
    out, back = kinds.index("relu3-1.y.offload"), kinds.index("relu3-1.y.prefetch")
    assert kinds[out + 1] == "conv3-2"  # the last layer that reads it in the forward pass
    assert changed.ops[back + 1].layer == "relu3-2"  # the one before its reader, backward
    times = {op.name: 1.0 for op in graph.ops}
    beside_out = sum(op.layer == "conv3-2" and op.pass_ is Pass.FORWARD for op in graph.ops)
    beside_back = sum(op.layer == "relu3-2" and op.pass_ is Pass.INPUT_GRADIENT for op in graph.ops)
    link = OffloadLink(size / 10.0, 0.0)  # ten seconds a copy
    result = overlapped(changed, times, link)
    assert result.stall_s == pytest.approx((10 - beside_out) + (10 - beside_back))


def test_vdnn_offloads_16_gb_of_vgg16():
    """arXiv:1602.08124, section V: up to 16 GB of VGG-16 (256) are offloaded."""
    graph = load_model("vgg16").training(256, "fp32", SGD)
    everything, convolutions = (with_offload(graph, policy) for policy in ("all", "conv"))
    assert copied_bytes(everything) == pytest.approx(16e9, rel=0.05)
    assert copied_bytes(convolutions) < copied_bytes(everything)
    held = [peak(g).total for g in (graph, convolutions, everything)]
    assert held[0] > held[1] >= held[2]


def test_vgg416_needs_67_gb_and_a_small_device_once_it_is_offloaded():
    graph = load_model("vgg416").training(32, "fp32", SGD)
    assert peak(graph).total == pytest.approx(67.1e9, rel=0.03)
    assert peak(with_offload(graph, "all")).total < 12 * 2**30


def test_policies_of_a_network_without_convolutions():
    graph = load_model("gpt2", {"layers": 2}).training(1, "fp16-mixed")
    inputs = {op.inputs[0] for op in graph.ops if op.loops and op.pass_ is Pass.FORWARD}
    assert set(offloadable(graph, "conv")) == set(offloadable(graph, "all")) & inputs
    assert not any("mask" in name for name in offloadable(graph, "all"))


def test_host_link_is_the_narrowest_of_the_way():
    link = host_link(from_cluster(TITAN, 1))
    assert link.bytes_per_s == pytest.approx(12.8e9, rel=1e-3)
    dgx = host_link(from_cluster(load_cluster("dgx1-v100"), 8), 3)
    assert dgx.latency_s > link.latency_s  # two hops
    with pytest.raises(RidgelineError, match=r"nothing links node0\.device0 to a host"):
        host_link(from_cluster(load_cluster("v100-sxm2-16gb"), 1))


def times_of(graph):
    return [price(op, graph, TITAN.device).time_s(TITAN.device) for op in graph.ops]


def test_the_fastest_fit_is_never_slower_than_offload_or_recomputation_alone():
    graph = load_model("vgg16").training(64, "fp32", SGD)
    whole = peak(graph).total
    slower = 0.0
    for share in (1.0, 0.85, 0.75, 0.7):
        fit = fastest_fit(graph, share * whole, times_of, LINK)
        assert fit.peak_bytes == peak(fit.graph).total <= share * whole
        assert fit.time.step_s >= slower
        slower = fit.time.step_s
        for other in (with_offload(graph, "all"), with_offload(graph, "conv")):
            if peak(other).total <= share * whole:
                prices = dict(zip((op.name for op in graph.ops), times_of(graph), strict=True))
                assert fit.time.step_s <= overlapped(other, prices, LINK).step_s * (1 + 1e-9)
    assert fastest_fit(graph, whole, times_of, LINK).time.stall_s == 0
    with pytest.raises(DoesNotFit, match="the least found is"):
        fastest_fit(graph, 0.1 * whole, times_of, LINK)


def test_both_together_fit_where_neither_does():
    graph = load_model("gpt2", {"layers": 4}).training(4, "fp32", SGD)
    away, again = with_offload(graph, "all"), with_recompute(graph, "full")
    both = with_offload(again, "all")
    assert peak(both).total < min(peak(away).total, peak(again).total)
    fit = fastest_fit(graph, peak(both).total, times_of, LINK)
    assert fit.recompute != "none"
    assert fit.offload != "none"


def test_mistakes_are_explained():
    graph = tiny("gpt").training(2)
    with pytest.raises(RidgelineError, match="'all'"):
        with_offload(graph, "al")
    with pytest.raises(RidgelineError, match="does not wait"):
        with_offload(graph, tensors=["loss.y"])
