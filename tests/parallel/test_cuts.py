"""Where a pipeline is cut, and what its stages send."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import ConfigError
from ridgeline.parallel.partition.chain import layers, units
from ridgeline.parallel.partition.pipeline_partition import partition
from ridgeline.parallel.plan.plan import Plan
from ridgeline.parallel.sharding.divide import ShardingSpec, divide
from ridgeline.simulation import simulate
from ridgeline.workload.files import load_model
from ridgeline.workload.graph import Graph, Role
from stacked import PLAIN, stacked


def gpt(n_layers: int, **fields: object) -> Graph:
    shape = {"layers": n_layers, "hidden": 256, "attention.heads": 8, "sequence": 64}
    return load_model("gpt3-1.3b", {**shape, **fields}).training(1, "fp16-mixed")


def layers_of(graph: Graph) -> set[str]:
    """Names of the transformer layers that a stage has ops of."""
    return {".".join(op.layer.split(".")[:2]) for op in graph.ops if op.layer.startswith("blocks.")}


@pytest.mark.parametrize(("name", "expected"), [("resnet50", 16), ("gnmt", 8), ("bert-base", 12)])
@pytest.mark.parametrize("ends", [False, True])
def test_layers_of_a_network_are_its_blocks(name: str, expected: int, ends: bool) -> None:
    graph = load_model(name).training(1, "fp16-mixed")
    found = units(graph)
    joined = layers(graph, found, ends=ends)
    assert [i for part in joined for i in part] == [i for unit in found for i in unit.ops]
    assert len(joined) == expected + 2 * ends


@pytest.mark.parametrize(
    ("cut", "n_layers", "stages", "expected"),
    [
        ("layers", 8, 4, [2, 2, 2, 2]),
        ("layers", 8, 8, [1] * 8),
        ("ends", 6, 4, [1, 2, 2, 1]),
        ("ends", 6, 8, [0, 1, 1, 1, 1, 1, 1, 0]),
    ],
)
def test_stages_have_equally_many_layers(
    cut: str, n_layers: int, stages: int, expected: list[int]
) -> None:
    graph = gpt(n_layers, vocabulary=50000)  # a classifier as large as many layers
    times = [float(op.matrix_flops) for op in graph.ops]
    parts = partition(graph, times, stages, cut).parts  # type: ignore[arg-type]
    assert [len(layers_of(part.graph)) for part in parts] == expected
    even = partition(graph, times, stages).parts
    most = [
        max(sum(op.matrix_flops for op in part.graph.ops) for part in of) for of in (parts, even)
    ]
    assert most[0] >= most[1]


def test_more_stages_than_layers_are_a_mistake_of_the_plan() -> None:
    graph = gpt(4)
    with pytest.raises(ConfigError, match=r"between its layers.*allowed: 1 to 4"):
        partition(graph, [1.0] * len(graph.ops), 5, "layers")


def test_tensor_parallel_ranks_send_parts_only_where_the_plan_says() -> None:
    fields = {"layers": 4, "hidden": 256, "attention.heads": 8, "sequence": 64}
    model = load_model("gpt3-1.3b", fields)
    whole = 64 * 256 * 2  # bytes of what passes between layers
    sent = {}
    for pieces in ("both", "forward", "none"):
        plan = stacked(
            global_batch=4,
            tensor=4,
            pipeline=2,
            precision="fp16-mixed",
            pipeline__p2p_scatter_gather=pieces,
        )
        result = simulate(model, "dgx-a100", plan)
        talks = result.details.lowered.talks
        sent[pieces] = sorted(talk.size_bytes for talk in talks.values() if talk.op == "send")
    assert sent == {
        "both": [whole / 4, whole / 4],
        "forward": [whole / 4, whole],
        "none": [whole, whole],
    }


@pytest.mark.parametrize(
    ("name", "stages"),
    [
        ("gnmt", 5),  # a cut inside a recurrent layer, whose op makes several of what is sent
        ("amoebanet-d", 3),  # cells whose sums read what one op of another stage has made
        ("arcface-r100", 2),  # the classifier reads normalised rows of its weight
    ],
)
def test_stages_do_what_one_device_does(name: str, stages: int) -> None:
    model = load_model(name)

    def work(pipeline: int) -> float:
        plan = Plan(global_batch=2, pipeline=pipeline, micro_batch=1)
        ledger = simulate(model, "dgx-a100", plan, software=PLAIN).ledger().columns
        places = zip(ledger["place"], ledger["unit"], ledger["amount"], strict=True)
        return sum(amount for place, unit, amount in places if unit == "FLOP" and "tensor" in place)

    assert work(stages) == pytest.approx(work(1), rel=1e-9)


def test_a_layer_that_only_copies_a_weight_is_with_what_reads_it() -> None:
    graph = load_model("arcface-r100").training(1, "fp32")
    unit_of = {graph.ops[i].name: n for n, unit in enumerate(units(graph)) for i in unit.ops}
    assert len(unit_of) == len(graph.ops)
    back = ("identities.length.divide.weight-gradient", "identities.length.weight-gradient")
    assert {unit_of[name] for name in back} == {unit_of["identities"]}


@settings(max_examples=25, deadline=None)
@given(st.data(), st.sampled_from(("lstm-lm", "dlrm", "unet", "gpt2")), st.sampled_from((1, 2)))
def test_gradients_of_weights_stay_where_they_are_made(
    data: st.DataObject, model: str, tensor: int
) -> None:
    """Wherever it is cut: a stage updates what it computes with, and waits for no gradient of it.

    Also between a product and its bias, whose weights are copied before the cut.
    """
    shape = {"layers": 2} if model == "gpt2" else {}
    graph = load_model(model, shape).training(2, "bf16-mixed")
    graph = divide(graph, ShardingSpec(tensor=tensor)).graph
    stages = data.draw(st.integers(2, 4))
    times = data.draw(st.lists(st.integers(1, 9), min_size=7, max_size=7))
    cut = partition(graph, [float(times[i % 7]) for i in range(len(graph.ops))], stages)
    for number, part in enumerate(cut.parts):
        came = [name for receipt in part.receipts for name in receipt.tensors]
        assert not [n for n in came if graph.tensors[n].role is Role.WEIGHT_GRADIENT]
        for receipt in part.receipts:  # forward from stages before, backward from those behind
            made = {n for op in cut.parts[receipt.source].graph.ops for n in op.outputs}
            assert made.issuperset(receipt.tensors)
            if receipt.forward:
                assert receipt.source < number
