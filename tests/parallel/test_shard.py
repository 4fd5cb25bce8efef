"""Graphs divided between devices: what is computed, what is sent, and that nothing is lost."""

from __future__ import annotations

from collections import Counter

import pytest

import ridgeline as rl
from ridgeline.errors import ConfigError
from ridgeline.parallel.sharding.shard import COLLECTIVES, shard
from ridgeline.workload.files import load_model
from ridgeline.workload.graph import Graph, Pass, Role


def training(model: str, batch: int = 2) -> Graph:
    return load_model(model).training(batch, "fp16-mixed")


def matrix_flops(graph: Graph) -> int:
    return sum(op.matrix_flops for op in graph.ops)


def sent(graph: Graph) -> Counter[tuple[str, str]]:
    """Bytes by pass and collective."""
    found: Counter[tuple[str, str]] = Counter()
    for op in graph.ops:
        if op.kind in COLLECTIVES:
            attrs = dict(op.attrs)
            found[op.pass_.value, op.kind] += int(attrs["size_bytes"]) * int(attrs["repeat"])
    return found


@pytest.mark.parametrize("degree", [2, 4, 8])
@pytest.mark.parametrize("sequence", [False, True])
def test_a_transformer_gets_megatrons_collectives(degree: int, sequence: bool) -> None:
    """Shoeybi et al., section 3: two all-reduces a layer and pass; each of tokens x hidden."""
    graph = training("gpt2-medium")
    made = shard(graph, degree, sequence=sequence).graph
    assert matrix_flops(made) * degree == pytest.approx(matrix_flops(graph), rel=1e-3)
    layers, size = 24, 2 * 1024 * 1024 * 2
    bytes_ = sent(made)
    if sequence:  # Korthikanti et al.: the same bytes as a reduce-scatter and an all-gather
        assert bytes_["forward", "reduce-scatter"] == (2 * layers + 1) * size
        assert bytes_["forward", "all-gather"] == (2 * layers + 1) * size
        assert bytes_["input-gradient", "reduce-scatter"] == (2 * layers + 1) * size
    else:
        assert bytes_["forward", "all-reduce"] == (2 * layers + 1) * size + 3 * 2 * 1024 * 4
        assert bytes_["input-gradient", "all-reduce"] == (2 * layers + 1) * size
    whole = {name for name in made.tensors if made.tensors[name].role is Role.WEIGHT}
    assert whole == {t.name for t in graph.tensors.values() if t.role is Role.WEIGHT}


@pytest.mark.parametrize(
    ("model", "share"),
    [("resnet50", 0.99), ("vgg16", 1), ("bert-large", 0.99), ("t5-small", 1), ("mlp", 1),
     ("lstm-lm", 1), ("deepspeech2", 1), ("mixtral-8x7b", 0.99), ("unet", 0.99),
     ("mask-rcnn", 0.98), ("deepseek-v2-lite", 0.95), ("gnmt", 0.99), ("mobilenet", 0.97),
     ("mobilefacenet", 1)],
)  # fmt: skip
def test_any_network_is_divided_in_both_passes(model: str, share: float) -> None:
    graph = training(model)
    made = shard(graph, 4).graph
    assert 4 * matrix_flops(made) * share <= matrix_flops(graph) * 1.001
    for op in made.ops:  # every op reads what has been made, in the extents that it needs
        if op.kind in COLLECTIVES and op.outputs:
            assert made.tensors[op.outputs[0]].format == made.tensors[op.inputs[0]].format
    made_so_far: set[str] = set()
    held = {Role.WEIGHT, Role.BUFFER, Role.STATE, Role.INPUT}
    for op in made.ops:
        for name in op.inputs:
            assert name in made_so_far or made.tensors[name].role in held, (op.name, name)
        made_so_far.update(op.outputs)


@pytest.mark.parametrize("model", ["gpt2", "resnet18", "bert-base", "lstm-lm"])
def test_weights_and_their_updates_are_divided_alike(model: str) -> None:
    graph = training(model)
    made = shard(graph, 4).graph
    for op in made.ops:
        if op.kind == "optimizer":
            shapes = {made.tensors[name].shape for name in op.inputs}
            assert len(shapes) == 1, (op.name, shapes)


def test_a_lone_product_is_divided_only_where_that_pays() -> None:
    graph = training("mixtral-8x7b")
    assert shard(graph, 4, flops_per_byte=1000.0).whole == {"gemm": 32}  # the routers
    assert shard(graph, 4, flops_per_byte=1e-3).whole == {}


def test_an_op_without_a_rule_is_done_whole() -> None:
    from dataclasses import replace

    graph = training("gpt2")
    ops = tuple(replace(op, kind="magic") if op.kind == "gelu" else op for op in graph.ops)
    made = shard(replace(graph, ops=ops), 4)
    assert made.whole["magic"] == 24  # forward and backward of 12 layers
    gathered = [op for op in made.graph.ops if op.kind == "all-gather"]
    assert gathered  # what it reads has to be there
    assert matrix_flops(made.graph) < matrix_flops(graph)


@pytest.mark.parametrize(
    "model", ["gpt2", "llama3-8b", "bert-base", "mixtral-8x7b", "deepseek-v2-lite"]
)
@pytest.mark.parametrize("sequence", [False, True])
def test_positions_are_divided_everywhere(model: str, sequence: bool) -> None:
    """With all weights on each device; the keys and values of all positions are gathered."""
    graph = training(model)
    made = shard(graph, 4, dimension="context").graph
    assert matrix_flops(made) * 4 == pytest.approx(matrix_flops(graph), rel=1e-3)
    assert made.parameters == graph.parameters
    assert {op.kind for op in made.ops if op.kind in COLLECTIVES} == {
        "all-gather", "reduce-scatter",
    }  # fmt: skip
    both = shard(made, 2, sequence=sequence).graph
    assert matrix_flops(both) * 8 == pytest.approx(matrix_flops(graph), rel=0.02)
    moved = [op for op in both.ops if ("dimension", "context") in op.attrs]
    assert len(moved) == len([op for op in made.ops if op.kind in COLLECTIVES])


def test_gathered_keys_and_values_by_hand() -> None:
    made = shard(training("gpt2"), 4, dimension="context").graph
    size = 2 * 1024 * 768 * 2  # of keys, or of values, of all positions
    assert sent(made)["forward", "all-gather"] == 12 * 2 * size
    with pytest.raises(ConfigError, match="context=3 does not divide the 1024 positions"):
        shard(training("gpt2"), 3, dimension="context")
    with pytest.raises(ConfigError, match="is not one"):
        shard(training("resnet18"), 2, dimension="context")


def test_heads_must_divide() -> None:
    with pytest.raises(ConfigError, match=r"tensor=5 does not divide the 12 heads.*1, 2, 3, 4, 6"):
        shard(training("gpt2"), 5)


def test_gradients_of_whole_weights_are_summed_once_a_step() -> None:
    """With sequence parallelism, every device has the norms' gradients of its positions only."""
    made = shard(training("gpt2"), 4, sequence=True).graph
    sums = [op for op in made.ops if op.kind == "all-reduce" and op.pass_ is Pass.UPDATE]
    assert len(sums) >= 2 * (2 * 12 + 1)


@pytest.mark.parametrize(
    ("degree", "sequence", "formula"),
    [
        (1, False, lambda t, ratio: 34 + 5 * ratio),
        (8, False, lambda t, ratio: 10 + 24 / t + 5 * ratio / t),
        (8, True, lambda t, ratio: (34 + 5 * ratio) / t),
    ],
)
def test_kept_activations_of_a_layer(degree: int, sequence: bool, formula: object) -> None:
    """Korthikanti et al., equations 1, 2 and 4, in units of positions x batch x hidden."""
    assert callable(formula)
    heads, positions, hidden = 96, 2048, 12288
    made = shard(training("gpt3-175b", 1), degree, sequence=sequence).graph
    forward = {n for op in made.ops if op.pass_ is Pass.FORWARD for n in op.outputs}
    read = {n for op in made.ops if op.pass_ is not Pass.FORWARD for n in op.inputs}
    kept = sum(
        made.tensors[n].bytes
        for n in forward & read
        if n.startswith("blocks.5.") and made.tensors[n].role is Role.ACTIVATION
    )
    expected = formula(degree, heads * positions / hidden)
    assert kept / (positions * hidden) == pytest.approx(expected, rel=1e-4)  # statistics apart


@pytest.mark.parametrize("precision", ["fp8-mixed", "int8-mixed"])
def test_quantised_operands_are_divided_like_what_they_are_made_of(precision: str) -> None:
    model = load_model("llama2-7b", {"layers": 2, "sequence": 512})
    plans = [
        rl.Plan(global_batch=8, tensor=8, precision=name) for name in (precision, "bf16-mixed")
    ]
    few, plain = (rl.simulate(model, "dgx-h100", plan) for plan in plans)
    assert few.manifest["not_divided"] == plain.manifest["not_divided"]
    assert few.memory_bytes["optimizer"] == plain.memory_bytes["optimizer"]
    assert few.step_time_s < 1.5 * plain.step_time_s
