"""Recomputation: the same gradients to the last bit, from less memory, for the work it says."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles.graph_interpreter import run
from oracles.graph_memory import profile
from oracles.graph_networks import forward_graphs
from oracles.graph_zoo import NAMES, TINY, shallow, tiny
from ridgeline.errors import RidgelineError
from ridgeline.parallel.recompute import MODES, recompute_blocks, with_recompute
from ridgeline.parallel.recompute_blocks import attention_cores, forward_blocks, forward_ops
from ridgeline.workload import Pass, Role, load_model, peak, training_graph
from ridgeline.workload.autodiff import weight_gradients
from ridgeline.workload.optimizers import OPTIMIZERS

SGD = OPTIMIZERS["sgd"]


def values(graph, seed):
    rng = np.random.default_rng(seed)
    return {
        t.name: rng.integers(0, 2, t.shape)
        if t.format == "int64"
        else rng.normal(size=t.shape) / math.sqrt(math.prod(t.shape[1:]))
        for t in graph.tensors.values()
        if t.role in {Role.INPUT, Role.WEIGHT, Role.BUFFER}
    }


def assert_same_gradients(graph, changed, seed=0):
    """The interpreter overwrites what ops overwrite in place, so it would see a lost tensor."""
    given_values = values(graph, seed)
    before, after = run(graph, given_values), run(changed, given_values)
    assert before[graph.loss] == after[graph.loss]
    for gradient in weight_gradients(graph).values():
        np.testing.assert_array_equal(before[gradient], after[gradient])


def assert_well_formed(graph, changed):
    """Every tensor is written before it is read, and only forward ops are done again."""
    given_roles = {Role.INPUT, Role.WEIGHT, Role.BUFFER, Role.STATE}
    written = {t.name for t in changed.tensors.values() if t.role in given_roles}
    for op in changed.ops:
        assert written.issuperset(op.inputs)
        written.update(op.outputs)
    assert len({op.name for op in changed.ops}) == len(changed.ops)
    kept = [op.name for op in changed.ops if op.pass_ is not Pass.RECOMPUTE]
    assert kept == [op.name for op in graph.ops]
    again = [op for op in changed.ops if op.pass_ is Pass.RECOMPUTE]
    assert all(op.recomputed_flops == op.matrix_flops for op in again)
    assert changed.flops() == graph.flops()
    more = sum(op.matrix_flops for op in again)
    assert changed.recomputed_flops == graph.recomputed_flops + more


@settings(max_examples=60, deadline=None)
@given(st.data(), forward_graphs(), st.integers(0, 2**32 - 1))
def test_any_choice_of_ops_can_be_done_again(data, forward, seed):
    graph = training_graph(forward, SGD)
    number = st.integers(0, 3)  # block of each forward op; 0: none
    choice = [data.draw(number) for _ in forward_ops(graph)]
    blocks = [tuple(i for i, k in enumerate(choice) if k == block) for block in (1, 2, 3)]
    changed = recompute_blocks(graph, blocks)
    assert_well_formed(graph, changed)
    assert_same_gradients(graph, changed, seed)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", TINY)
def test_every_family_keeps_its_gradients(name, mode):
    graph = tiny(name).training(2, "fp16-mixed", SGD)
    changed = with_recompute(graph, mode)
    assert_well_formed(graph, changed)
    assert_same_gradients(graph, changed)


@pytest.mark.parametrize("name", ["gpt", "bert", "cifar", "mixtral"])
def test_memory_equals_the_oracle(name):
    graph = with_recompute(tiny(name).training(2, "fp16-mixed"), "full")
    assert peak(graph).total == max(profile(graph))


@pytest.mark.parametrize("name", NAMES)
def test_full_recomputation_keeps_no_more_and_repeats_at_most_the_forward_pass(name):
    graph = shallow(name).training(2, "bf16-mixed")
    blocks = forward_blocks(graph)
    assert sorted({i for b in blocks for i in b}) == sorted(i for b in blocks for i in b)
    changed = with_recompute(graph, "full")
    assert changed.activation_bytes <= graph.activation_bytes
    again = changed.recomputed_flops - graph.recomputed_flops
    assert again <= graph.flops(Pass.FORWARD)
    if len(blocks) > 1:
        assert changed.activation_bytes < graph.activation_bytes


@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        *(("gpt2", 12), ("bert-large", 24), ("t5-small", 12), ("transformer-base", 12)),
        *(("resnet50", 16), ("resnet152", 50), ("densenet121", 58), ("amoebanet-d", 22)),
        *(("googlenet", 9), ("vit-b16", 12), ("mixtral-8x7b", 32), ("llama3-8b", 32)),
        *(("gnmt", 8), ("deepspeech2", 5), ("minigo", 19)),
    ],
)
def test_blocks_are_those_that_people_draw(name, blocks):
    graph = load_model(name).training(1)
    found = forward_blocks(graph)
    numbered = [b for b in found if len({graph.ops[i].layer.split(".")[0] for i in b}) == 1]
    assert len(numbered) >= blocks
    assert len(found) <= blocks + 4


def renamed(forward):
    """The same network, its layers named as if nobody had thought about it."""
    ops = tuple(replace(op, layer=f"op-{'x' * i}") for i, op in enumerate(forward.ops))
    return replace(forward, ops=ops)


@pytest.mark.parametrize("name", ["gpt2", "resnet50", "unet", "vgg16"])
def test_blocks_are_found_without_names(name):
    forward = renamed(load_model(name).forward(4, "fp16-mixed"))
    graph = training_graph(forward, SGD)
    changed = with_recompute(graph, "full")
    assert changed.activation_bytes < 0.5 * graph.activation_bytes
    assert peak(changed).total < peak(graph).total


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("recompute", MODES)
def test_activations_of_a_transformer_layer_are_those_of_korthikanti(batch, recompute):
    """s b h (34 + 5 a s / h), 34 s b h and 2 s b h bytes: arXiv:2205.05198, table 2, t = 1."""
    of = {n: load_model("gpt3-1.3b", {"layers": n}).training(batch, "fp16-mixed") for n in (2, 3)}
    few, many = (with_recompute(of[n], recompute).activation_bytes for n in (2, 3))
    network = load_model("gpt3-1.3b").network
    s, h, a = network.sequence, network.hidden, network.attention.heads
    factor = {"none": 34 + 5 * a * s / h, "selective": 34, "full": 2}[recompute]
    assert many - few == pytest.approx(s * batch * h * factor, rel=0.01)


def test_selective_recomputation_costs_what_korthikanti_says():
    """2 s h / (6 h^2 + s h) / 6... of all FLOPs: two of the 72 (1 + s / 6 h) of a layer, 1 / 36."""
    model = load_model("gpt3-1.3b", {"layers": 2})
    few = with_recompute(model.training(1, "fp16-mixed"), "selective")
    s, h = model.network.sequence, model.network.hidden
    assert few.recomputed_flops == 2 * 2 * s * s * h  # scores, in both layers


def test_attention_cores_are_found_by_what_ops_do():
    graph = load_model("t5-small").training(1)
    cores = attention_cores(graph)
    assert len(cores) == 18  # self-attention of 6 + 6 layers, cross-attention of 6
    kinds = {graph.ops[i].kind for core in cores for i in core}
    assert kinds >= {"attention-scores", "relative-bias", "softmax", "attention-context"}
    routed = load_model("mixtral-8x7b", {"layers": 2}).training(1)
    assert len(attention_cores(routed)) == 2  # the softmax of the router is none
    assert attention_cores(load_model("resnet50").training(1)) == ()


def test_fused_attention_has_nothing_to_recompute_selectively():
    model = load_model("gpt2", {"attention.kernel": "flash", "layers": 2})
    graph = model.training(1)
    assert with_recompute(graph, "selective").ops == graph.ops


def test_the_last_convolution_of_a_block_is_not_done_again():
    graph = load_model("resnet50").training(2)
    again = {op.layer for op in with_recompute(graph, "full").ops if op.pass_ is Pass.RECOMPUTE}
    assert "layer2.1.conv2" in again
    assert "layer2.1.add" not in again


def test_mistakes_are_explained():
    graph = load_model("mlp").training(1)
    with pytest.raises(RidgelineError, match="'full'"):
        with_recompute(graph, "ful")
    with pytest.raises(RidgelineError, match="recomputes already"):
        with_recompute(with_recompute(graph, "full"), "full")
