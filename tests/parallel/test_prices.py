"""Ops that were looked at and priced before: as if each were looked at and priced alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.hardware.device import Device
from ridgeline.hardware.load import load_cluster
from ridgeline.kernels import op_signature
from ridgeline.kernels.pricing import price_all
from ridgeline.parallel import op_pricer
from ridgeline.parallel.op_pricer import OpPricer
from ridgeline.workload.files import load_model
from ridgeline.workload.graph import Graph

SHAPE = {"layers": 2, "sequence": 32, "vocabulary": 64, "hidden": 64, "attention.heads": 4}
GRAPHS = (
    load_model("gpt2", SHAPE).training(2, "fp16-mixed"),
    load_model("resnet18").training(2, "fp32"),
)
CLUSTERS = ("dgx-a100", "dgx1-v100", "dgx-h100")


def with_other_shapes(graph: Graph, times: int, every: int) -> Graph:
    """Return a graph of the very same ops, some of whose tensors are larger."""
    tensors = {
        name: tensor.reshaped((times * tensor.shape[0], *tensor.shape[1:]))
        if number % every == 0 and tensor.shape
        else tensor
        for number, (name, tensor) in enumerate(graph.tensors.items())
    }
    return replace(graph, tensors=tensors)


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(1, 3), st.integers(1, 4)), min_size=1),
    st.sampled_from((1, 50, 1 << 16)),
)
def test_ops_of_other_graphs_are_looked_at_by_what_they_read_there(
    drawn: list[tuple[int, int, int]], most: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(op_signature, "_MOST", most)
        for which, times, every in drawn:
            other = with_other_shapes(GRAPHS[which], times, every)
            found = op_signature.op_signatures(other.ops, other, [None] * len(other.ops))
            for op, kind in zip(other.ops, found, strict=True):
                alone = op_signature.described(op, other)
                assert kind == alone
                assert kind.streamed_bytes == alone.streamed_bytes
                assert (kind.gemm, kind.flops) == (alone.gemm, alone.flops)
                assert (kind.a_bytes, kind.b_bytes, kind.rest_bytes) == (
                    alone.a_bytes, alone.b_bytes, alone.rest_bytes,
                )  # fmt: skip


def slower(device: Device, share: float) -> Device:
    """Return a device whose farthest memory reaches less of its bandwidth."""
    level = device.memory[device.far_memory]
    achievable = level.achievable.model_copy(update={"value": share})
    memory = {
        **device.memory,
        device.far_memory: level.model_copy(update={"achievable": achievable}),
    }
    return device.model_copy(update={"memory": memory})


@settings(max_examples=12, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(CLUSTERS), st.sampled_from((0.5, 0.9)), st.integers(0, 1)),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from((1, 1 << 15)),
)
def test_prices_of_devices_that_were_met_are_those_of_a_first_meeting(
    drawn: list[tuple[str, float, int]], most: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(op_pricer, "_MOST", most)
        for name, share, which in drawn:
            graph = GRAPHS[which]
            device = slower(load_cluster(name).device, share)  # a new one, which may be equal
            kinds = op_pricer._kinds(graph.ops, graph, device)
            assert OpPricer(device).costs(graph) == price_all(kinds, device)
