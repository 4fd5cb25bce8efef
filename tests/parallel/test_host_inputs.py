"""Mini-batches that a device waits for: bytes over the link, in the step's time and ledger."""

from __future__ import annotations

import pytest

import ridgeline as rl
from ridgeline.hardware import load_cluster, load_device
from ridgeline.hardware.host_processor import HOST_LINK
from ridgeline.kernels.cost import peak_rates
from ridgeline.parallel.passes.host_inputs import with_host_inputs
from ridgeline.parallel.plan.plan import Plan
from ridgeline.simulation import simulate
from ridgeline.workload.graph import Gemm, Graph, Op, Pass, Role, Tensor
from ridgeline.workload.ops.shape import HOST_INPUT

DEVICE = "tpu-v1"


@pytest.mark.parametrize("bandwidth", ["1 GB/s", "15.03 GB/s"])
@pytest.mark.parametrize(("model", "batch"), [("mlp0", 200), ("cnn0", 8)])
def test_a_step_waits_for_its_inputs(model: str, batch: int, bandwidth: str) -> None:
    plan = Plan(global_batch=batch, forward_only=True)
    fields = {"device.host.link.bandwidth": bandwidth}
    waited = simulate(model, load_cluster(DEVICE, fields), plan)
    ahead = simulate(model, load_cluster(DEVICE, {**fields, "device.host.inputs": "ahead"}), plan)
    network = rl.load_model(model)
    assert isinstance(network, rl.Model)
    graph = network.inference(batch, "int8")
    size = sum(tensor.bytes for tensor in graph.tensors.values() if tensor.role is Role.INPUT)
    host = load_cluster(DEVICE, fields).device.host
    assert host is not None
    [(op, cost)] = [
        (op, cost)
        for op, cost in zip(
            waited.details.lowered.ops, waited.details.lowered.op_costs, strict=True
        )
        if op.kind == HOST_INPUT.name
    ]
    assert cost.traffic_bytes[HOST_LINK] == size
    spans = cost.spans(peak_rates(load_cluster(DEVICE, fields).device))
    assert spans.time_s == pytest.approx(size / host.link.bandwidth.value)
    # Inputs that were ahead come from the farthest memory, beside the first product.
    assert waited.step_time_s <= ahead.step_time_s + spans.time_s * (1 + 1e-9)
    assert waited.step_time_s > ahead.step_time_s
    assert op.outputs[0] in graph.tensors
    far = load_device(DEVICE).far_memory
    assert waited.traffic_bytes[far] <= ahead.traffic_bytes[far]


def test_inputs_are_brought_once_and_labels_never() -> None:
    tensors = {
        "x": Tensor("x", (4, 8), "int8", Role.INPUT),
        "labels": Tensor("labels", (4,), "int8", Role.INPUT),
        "w": Tensor("w", (8, 8), "int8", Role.WEIGHT),
        "y": Tensor("y", (4, 8), "int8", Role.ACTIVATION),
        "z": Tensor("z", (4, 8), "int8", Role.ACTIVATION),
        "loss": Tensor("loss", (), "fp32", Role.ACTIVATION),
    }
    ops = (
        Op("one", "gemm", Pass.FORWARD, "one", ("x", "w"), ("y",), loops=Gemm(4, 8, 8)),
        Op("two", "add", Pass.FORWARD, "two", ("y", "x"), ("z",), vector_flops=32),
        Op("three", "loss", Pass.FORWARD, "three", ("z", "labels"), ("loss",), vector_flops=32),
    )
    graph = Graph("small", 4, "int8", tensors, ops, "loss")
    found = with_host_inputs(graph)
    assert [op.kind for op in found.ops] == [HOST_INPUT.name, "gemm", "add", "loss"]
    assert found.ops[0].outputs == ("x",)
    assert found.tensors["labels"].role is Role.INPUT
    one = Graph("one", 4, "int8", tensors, ops[:1], "y")  # whose product is its result
    assert [op.kind for op in with_host_inputs(one).ops] == [HOST_INPUT.name, "gemm"]
