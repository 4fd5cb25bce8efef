"""Functions that a unit behind the accumulators applies on the way out are part of the product."""

from __future__ import annotations

import math

import pytest

from ridgeline.errors import RidgelineError
from ridgeline.hardware import load_device
from ridgeline.kernels.pricing import price
from ridgeline.kernels.single_op import gemm
from ridgeline.parallel.passes.product_epilogues import epilogues_of, with_product_epilogues
from ridgeline.parallel.plan.plan import Plan
from ridgeline.simulation import simulate
from ridgeline.workload import load_model
from ridgeline.workload.graph import EPILOGUE, Graph, Pass

NETWORKS = ("lenet5", "alexnet", "googlenet", "resnet18", "mlp0", "lstm1", "cnn0", "cnn1")
KINDS = epilogues_of(load_device("tpu-v1"))


def _work(graph: Graph) -> tuple[int, int]:
    return sum(op.vector_flops for op in graph.ops), sum(op.matrix_flops for op in graph.ops)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_all_arithmetic_is_kept_and_nothing_reads_what_is_gone(name: str, training: bool) -> None:
    model = load_model(name)
    graph = model.training(2, "int8") if training else model.inference(2, "int8")
    merged = with_product_epilogues(graph, KINDS)
    assert _work(merged) == _work(graph)
    place = {
        name: at
        for at, op in enumerate(merged.ops)
        if op.pass_ is not Pass.UPDATE
        for name in op.outputs
    }
    for at, op in enumerate(merged.ops):
        assert set(op.inputs) | set(op.outputs) <= set(merged.tensors), op.name
        if op.pass_ is Pass.FORWARD:
            assert all(place.get(name, -1) < at or name in op.outputs for name in op.inputs), (
                op.name
            )
    moved = sum(graph.read_bytes(op) + graph.write_bytes(op) for op in graph.ops)
    left = sum(merged.read_bytes(op) + merged.write_bytes(op) for op in merged.ops)
    assert left < moved
    assert len(merged.ops) < len(graph.ops)
    assert [op for op in merged.ops if op.pass_ is not Pass.FORWARD] == [
        op for op in graph.ops if op.pass_ is not Pass.FORWARD
    ]


def test_what_a_backward_pass_reads_stays_an_op() -> None:
    graph = load_model("vgg-a").training(2, "int8")
    merged = with_product_epilogues(graph, KINDS)
    pools = [op for op in graph.ops if op.kind == "max-pool" and op.pass_ is Pass.FORWARD]
    assert {op.name for op in pools} <= {op.name for op in merged.ops}
    behind = {dict(op.attrs).get(EPILOGUE) for op in merged.ops if op.loops is not None}
    assert "bias+relu" in behind
    inference = with_product_epilogues(load_model("vgg-a").inference(2, "int8"), KINDS)
    assert "bias+relu+max-pool" in {dict(op.attrs).get(EPILOGUE) for op in inference.ops}


@pytest.mark.parametrize("name", ["mlp0", "lstm1", "cnn0", "cnn1"])
def test_it_is_never_slower_and_never_below_the_products_alone(name: str) -> None:
    device = load_device("tpu-v1")
    graph = load_model(name).inference(8, "int8")
    merged = with_product_epilogues(graph, KINDS)
    apart_s, together_s = (
        math.fsum(price(op, each, device).time_s(device) for op in each.ops)
        for each in (graph, merged)
    )
    matrix_s = graph.flops() / device.engines["mxu"].rates["int8"].value
    assert matrix_s <= together_s < apart_s


def test_weights_are_fetched_as_whole_tiles() -> None:
    """Jouppi et al., Section 7: a matrix of 600 x 600 takes nine steps, 18 us in all."""
    device = load_device("tpu-v1")
    found = gemm(96, 600, 600, device)
    assert found.mapped is not None
    moved = found.mapped["moved_bytes"]["weights - engine"]["b"]
    assert moved == pytest.approx(9 * 256 * 256)
    assert moved / 34e9 == pytest.approx(18e-6, rel=0.05)
    assert found.time_s > moved / 34e9
    bare = load_device("tpu-v1", {"engines.mxu.array.padded_weights.value": False})
    assert gemm(96, 600, 600, bare).time_s < found.time_s
    whole = [gemm(96, 512, 768, on) for on in (device, bare)]
    assert whole[0].time_s == whole[1].time_s


def test_whole_tiles_are_of_weights_that_stay_behind_a_buffer() -> None:
    with pytest.raises(RidgelineError, match=r"dataflows: \[ws\] alone"):
        load_device("tpu-v1", {"engines.mxu.array.dataflows": ["ws", "os"]})
    with pytest.raises(RidgelineError, match="did you mean 'relu'"):
        load_device("tpu-v1", {"engines.activation.epilogue": ["rel"]})


def test_waiting_for_weights_that_pass_the_buffers_by_is_a_stall_of_their_memory() -> None:
    result = simulate("mlp0", "tpu-v1", Plan(global_batch=200, forward_only=True))
    assert result.time_s["memory_stall"] > 0.8 * result.step_time_s
    found = gemm(96, 600, 600, load_device("tpu-v1"))
    assert found.breakdown_s["stall"]["weights"] > 0.6 * found.time_s
