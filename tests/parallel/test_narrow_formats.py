"""Products in 8 bits are divided over devices as those in 16 bits are."""

from __future__ import annotations

import pytest

from ridgeline.parallel.sharding.shard import COLLECTIVES, shard
from ridgeline.workload.files import load_model
from ridgeline.workload.graph import Graph, Op

SIZE = {"layers": 2, "sequence": 128, "published": {}}


def collectives(graph: Graph) -> list[Op]:
    return [op for op in graph.ops if op.kind in COLLECTIVES]


@pytest.mark.parametrize("precision", ["fp8-mixed", "int8-mixed"])
@pytest.mark.parametrize("degree", [2, 4])
def test_each_device_has_its_share_of_the_products(precision: str, degree: int) -> None:
    model = load_model("gpt2", SIZE | {"vocabulary": 50304})
    graph = model.training(4, precision)
    assert any(op.kind == "quantise" for op in graph.ops)
    divided = shard(graph, degree)
    assert not divided.whole
    mine = sum(op.matrix_flops for op in divided.graph.ops)
    assert mine * degree == sum(op.matrix_flops for op in graph.ops)
    wide = shard(model.training(4, "bf16-mixed"), degree)
    assert len(collectives(divided.graph)) == len(collectives(wide.graph))


@pytest.mark.parametrize("precision", ["fp8-mixed", "int8-mixed"])
def test_a_copy_in_8_bits_is_divided_as_its_weight_is(precision: str) -> None:
    graph = load_model("gpt2", SIZE).training(4, precision)
    divided = shard(graph, 4)
    for op in divided.graph.ops:
        if op.kind == "quantise":
            shapes = {divided.graph.tensors[name].shape for name in (*op.inputs, *op.outputs)}
            assert len(shapes) == 1
