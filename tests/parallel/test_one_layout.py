"""Operands in few bits are written once where one copy serves both layouts, else twice."""

from __future__ import annotations

import pytest

from ridgeline.hardware.load import load_device
from ridgeline.parallel.passes.one_layout import with_one_copy
from ridgeline.study.point import Point
from ridgeline.workload.files import load_model
from ridgeline.workload.formats import find

SHAPE = {"layers": 1, "sequence": 128, "vocabulary": 50304, "published": {}}


IN_8_BITS = ("fp8-mixed", "fp8-block-mixed", "mxfp8-mixed")


@pytest.mark.parametrize(
    ("device", "precision"),
    [
        *(("h100-sxm5-80gb", precision) for precision in IN_8_BITS),
        *(("b200", precision) for precision in (*IN_8_BITS, "nvfp4-mixed")),
        ("gb300", "fp8-mixed"),
    ],
)
def test_copies_that_are_written(device: str, precision: str) -> None:
    plan = {"global_batch": 2, "precision": precision}
    graph = (
        Point("gpt2", device, plan, {f"model.{k}": v for k, v in SHAPE.items()})
        .simulate()
        .details.lowered.graph
    )
    either = {f for e in load_device(device).engines.values() for f in e.either_layout}
    quantised = [op for op in graph.ops if op.kind == "quantise"]
    assert quantised
    for op in quantised:
        copy = graph.tensors[op.outputs[0]]
        format_ = find(copy.format)
        # By the definition: both layouts are needed, unless the engine reads either and scales are
        # of the whole tensor.
        once = format_.rate in either and format_.block == 0
        assert graph.write_bytes(op) == (1 if once else 2) * copy.bytes
        assert once == (precision == "fp8-mixed" and not device.startswith("h100"))


def test_nothing_else_of_a_graph_changes() -> None:
    graph = load_model("gpt2", SHAPE).training(2, "fp8-mixed")
    one = with_one_copy(graph, frozenset({"fp8"}))
    assert [op.name for op in one.ops] == [op.name for op in graph.ops]
    assert one.tensors == graph.tensors
    for a, b in zip(graph.ops, one.ops, strict=True):
        assert (a == b) == (a.kind != "quantise")
        assert one.read_bytes(b) == graph.read_bytes(a)
    assert with_one_copy(graph, frozenset({"fp4"})).ops == graph.ops
