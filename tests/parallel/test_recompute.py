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
from oracles.graph_zoo import TINY, one_of_each, shallow, tiny
from ridgeline.errors import RidgelineError
from ridgeline.parallel.checkpointing.blocks import attention_cores, forward_blocks, forward_ops
from ridgeline.parallel.checkpointing.chain import DoesNotFit, sqrt_stretches
from ridgeline.parallel.checkpointing.ops import recompute_blocks
from ridgeline.parallel.checkpointing.recompute import MODES, with_recompute
from ridgeline.parallel.sharding.divide import ShardingSpec, divide
from ridgeline.workload import Pass, Role, load_model, ops, peak, training_graph
from ridgeline.workload.autodiff import weight_gradients
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.numerics import PRECISIONS
from ridgeline.workload.optimizers import OPTIMIZERS
from thoroughly import one_in, sample_of

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
    assert np.isclose(before[graph.loss], after[graph.loss], rtol=1e-12)
    for gradient in weight_gradients(graph).values():
        np.testing.assert_allclose(before[gradient], after[gradient], rtol=1e-9, atol=1e-12)


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
    # Of products of which a window or a chunk leaves out some, what is left counts.
    more = sum(
        op.matrix_flops if op.met_share == 1 else int(op.matrix_flops * op.met_share)
        for op in again
    )
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


def options(graph, mode):
    """What a mode needs: a budget that takes some recomputation."""
    if mode != "budget":
        return {}
    whole, least = peak(graph).total, peak(with_recompute(graph, "full")).total
    return {"budget_bytes": max((whole + least) // 2, 0.9 * whole)}


SLOW = {"amoebanet", "mask-rcnn", "fcn"}  # for the interpreter; ssd takes seconds


FAMILIES_AND_MODES = [
    (n, m) for n in TINY for m in MODES[1:] if n != "ssd" and (n not in SLOW or m == "full")
]


@pytest.mark.parametrize(("name", "mode"), one_in(4, FAMILIES_AND_MODES))
def test_every_family_keeps_its_gradients(name, mode):
    graph = tiny(name).training(2, "fp16-mixed", SGD)
    try:
        changed = with_recompute(graph, mode, **options(graph, mode))
    except DoesNotFit:
        assert mode == "budget"  # most bytes of a tiny network are weights
        return
    assert_well_formed(graph, changed)
    assert_same_gradients(graph, changed)


@pytest.mark.parametrize("name", ["gpt", "bert", "cifar", "mixtral"])
def test_memory_equals_the_oracle(name):
    graph = with_recompute(tiny(name).training(2, "fp16-mixed"), "full")
    assert peak(graph).total == max(profile(graph))


@pytest.mark.parametrize("name", one_of_each())
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
    named = tuple(replace(op, layer=f"op-{'x' * i}") for i, op in enumerate(forward.ops))
    return replace(forward, ops=named)


@pytest.mark.parametrize("name", ["gpt2", "resnet50", "unet", "vgg16"])
def test_blocks_are_found_without_names(name):
    forward = renamed(load_model(name).forward(4, "fp16-mixed"))
    graph = training_graph(forward, SGD)
    changed = with_recompute(graph, "full")
    assert changed.activation_bytes < 0.5 * graph.activation_bytes
    assert peak(changed).total < peak(graph).total


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
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


def test_every_other_product_and_attention_are_kept():
    """A Llama layer keeps q, v and gate, the output of attention, and its input; of what "down"
    makes only the sum is read."""
    held = []
    for layers in (2, 4):
        shape = {"layers": layers, "attention.kernel": "flash", "sequence": 256}
        graph = load_model("llama3-8b", shape).training(2, "bf16-mixed")
        held.append(with_recompute(graph, "alternate").activation_bytes)
    elements = 4096 + (4096 + 1024) + 4096 + 14336  # input; q, v; attention; gate
    log_sums = 32 * 4
    assert (held[1] - held[0]) / 2 == 2 * 256 * (2 * elements + log_sums)


@pytest.mark.parametrize(("mode", "more"), [("projections", 0), ("products", 2 * 4096 + 32 * 4)])
def test_all_products_of_weights_are_kept(mode, more):
    """A Llama layer keeps its input, q, k, v, what its two output products make, gate and up; of
    what "down" makes only the sum is read. Attention and its sums of exponentials are kept too, or
    formed again; with either no product of weights is."""
    held = []
    for layers in (2, 4):
        shape = {"layers": layers, "attention.kernel": "flash", "sequence": 256}
        graph = load_model("llama3-8b", shape).training(2, "bf16-mixed")
        changed = with_recompute(graph, mode)
        held.append(changed.activation_bytes)
        again = [op for op in changed.ops if op.pass_ is Pass.RECOMPUTE]
        assert {op.kind for op in again if op.loops is not None} == (
            {"flash-attention"} if mode == "projections" else set()
        )
        assert {"rms-norm", "rotary", "swiglu"} <= {op.kind for op in again}
    elements = 4096 + (4096 + 2 * 1024) + 4096 + 2 * 14336
    assert (held[1] - held[0]) / 2 == 2 * 256 * (2 * elements + more)


def test_what_devices_add_up_is_kept_as_the_sum():
    """Of 4 tensor-parallel devices that share positions each keeps a quarter of the sum."""
    shape = {"layers": 2, "attention.kernel": "flash", "sequence": 256}
    graph = load_model("llama3-8b", shape).training(2, "bf16-mixed")
    local = with_recompute(
        divide(graph, ShardingSpec(tensor=4, sequence=True)).graph, "projections"
    )
    read = {name for op in local.ops if op.pass_ is not Pass.FORWARD for name in op.inputs}
    made = {op.name: op for op in local.ops if op.pass_ is Pass.FORWARD}
    assert read.isdisjoint(made["blocks.0.attention.output"].outputs)
    assert not read.isdisjoint(made["blocks.0.attention.output.y.reduce-scatter"].outputs)
    assert not any("reduce-scatter" in op.kind for op in local.ops if op.pass_ is Pass.RECOMPUTE)


def test_of_a_product_with_several_results_those_that_are_read_are_formed_again() -> None:
    """Of q, k, v, gate and up of a Llama layer, k and up; and its output's product."""
    work = []
    for layers in (2, 4):
        shape = {"layers": layers, "attention.kernel": "flash", "sequence": 256}
        graph = load_model("llama3-8b", shape).training(2, "bf16-mixed")
        changed = with_recompute(graph, "alternate")
        again = [op for op in changed.ops if op.pass_ is Pass.RECOMPUTE and op.loops is not None]
        work.append(sum(op.matrix_flops for op in again))
        for op in again:
            assert sum(changed.tensors[name].shape[-1] for name in op.outputs) == op.loops.n
        assert changed.recomputed_flops - graph.recomputed_flops == work[-1]
    assert (work[1] - work[0]) / 2 == 2 * (2 * 256) * 4096 * (1024 + 4096 + 14336)


def test_the_last_convolution_of_a_block_is_not_done_again():
    graph = load_model("resnet50").training(2)
    again = {op.layer for op in with_recompute(graph, "full").ops if op.pass_ is Pass.RECOMPUTE}
    assert "layer2.1.conv2" in again
    assert "layer2.1.add" not in again


@settings(max_examples=40, deadline=None)
@given(forward_graphs(), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_steps_done_several_times_give_the_same_gradients(forward, slots, seed):
    graph = training_graph(forward, SGD)
    changed = with_recompute(graph, "optimal", slots=slots)
    assert_well_formed(graph, changed)
    assert_same_gradients(graph, changed, seed)


@sample_of(10, 40, forward_graphs(), st.floats(0.3, 1.0), st.integers(0, 2**32 - 1))
def test_a_budget_is_kept_or_refused(forward, share, seed):
    graph = training_graph(forward, SGD)
    budget = share * peak(graph).total
    try:
        changed = with_recompute(graph, "budget", budget_bytes=budget)
    except DoesNotFit:
        return
    assert peak(changed).total <= budget
    assert_well_formed(graph, changed)
    assert_same_gradients(graph, changed, seed)


@pytest.mark.parametrize(("name", "batch"), [("resnet18", 16), ("unet", 2), ("gpt2", 2)])
def test_more_memory_is_less_work_and_no_mode_does_with_less_of_both(name, batch):
    few = {"layers": 4} if name == "gpt2" else None
    graph = load_model(name, few).training(batch, "fp16-mixed")
    work = []
    for mode in ("full", "sqrt"):
        other = with_recompute(graph, mode)
        budget = peak(other).total
        changed = with_recompute(graph, "budget", budget_bytes=budget)
        assert peak(changed).total <= budget
        assert again_flops(changed) <= again_flops(other)
    whole = peak(graph).total
    for share in (0.8, 0.9, 1.0):
        changed = with_recompute(graph, "budget", budget_bytes=share * whole)
        assert peak(changed).total <= share * whole
        work.append(again_flops(changed))
    assert work == sorted(work, reverse=True)
    assert work[-1] == 0 < work[0]


def again_flops(graph):
    again = [op for op in graph.ops if op.pass_ is Pass.RECOMPUTE]
    return sum(op.matrix_flops + op.vector_flops for op in again)


def chain(layers, batch=2048):
    """A plain chain of equal layers that have two tensors to keep each."""
    b = GraphBuilder("chain", batch, PRECISIONS["fp32"])
    x, t = b.input("x", (batch, 32)), b.input("t", (batch, 32))
    for i in range(layers):
        x = ops.activation(b, f"f{'x' * i}", ops.linear(b, f"l{'x' * i}", x, 32), "gelu")
    return training_graph(b.graph(ops.mean_squared_error(b, "loss", x, t)), SGD)


@pytest.mark.parametrize("layers", [8, 18, 50])
def test_sqrt_holds_about_two_roots_of_a_chain_of_equal_tensors(layers):
    graph = chain(layers)
    tensor, root = 2048 * 32 * 4, round((2 * layers) ** 0.5)
    assert root / 2 <= len(sqrt_stretches(graph)) <= 2 * root
    changed = with_recompute(graph, "sqrt")
    assert graph.activation_bytes >= 2 * layers * tensor
    held = peak(changed).bytes_by_kind["activations"]
    assert held <= (2 * root + 4) * tensor  # mini-batch, targets, what is being made
    assert changed.recomputed_flops <= graph.flops(Pass.FORWARD)


def test_revolve_trades_repeats_for_slots_on_a_chain():
    graph = chain(30)
    kept, work = [], []
    for slots in (2, 3, 5, 8):
        changed = with_recompute(graph, "optimal", slots=slots)
        kept.append(changed.activation_bytes)
        work.append(changed.recomputed_flops)
    assert kept == sorted(kept)
    assert work == sorted(work, reverse=True)


def test_times_decide_what_is_recomputed():
    """With one part that is said to take forever, the others are recomputed."""
    graph = load_model("resnet50").training(32, "fp16-mixed")
    slow = {op.layer for op in graph.ops if op.layer.startswith("layer3.2.")}
    time_s = [1e6 if op.layer in slow else 1.0 for op in graph.ops]
    budget = 0.7 * peak(graph).total
    changed = with_recompute(graph, "budget", budget_bytes=budget, time_s=time_s)
    again = {op.layer for op in changed.ops if op.pass_ is Pass.RECOMPUTE}
    assert again
    assert again.isdisjoint(slow)


def test_mistakes_are_explained():
    graph = load_model("mlp").training(1)
    with pytest.raises(RidgelineError, match="needs budget_bytes"):
        with_recompute(graph, "budget")
    with pytest.raises(RidgelineError, match="belongs to mode 'budget'"):
        with_recompute(graph, "full", budget_bytes=1e9)
    with pytest.raises(RidgelineError, match="at least 1 slot"):
        with_recompute(graph, "optimal", slots=0)
    with pytest.raises(DoesNotFit, match="the least found is"):
        with_recompute(graph, "budget", budget_bytes=1e3)
    with pytest.raises(RidgelineError, match="'full'"):
        with_recompute(graph, "ful")
    with pytest.raises(RidgelineError, match="recomputes already"):
        with_recompute(with_recompute(graph, "full"), "full")
