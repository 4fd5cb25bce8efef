"""Memory by liveness, against an oracle that asks at every op who still needs what."""

import pytest
from hypothesis import given, settings

from oracles.graph_memory import profile
from oracles.graph_networks import forward_pairs, optimized_graphs
from oracles.graph_zoo import TINY, one_of_each, shallow, tiny
from ridgeline.workload import Pass, Role, load_model, memory_entries, peak, training_graph
from ridgeline.workload.autodiff import weight_gradients
from ridgeline.workload.liveness import MEMORY_KINDS
from ridgeline.workload.optimizers import OPTIMIZERS
from thoroughly import one_in, sample_of


def replay(graph, plan):
    """Bytes by kind while each op runs, and after the last."""
    now, during = dict(plan.initial), []
    for entries in plan.entries:
        for entry in entries:
            assert entry.start_bytes >= 0 >= entry.end_bytes
            now[entry.kind] += entry.start_bytes
        during.append(dict(now))
        for entry in entries:
            now[entry.kind] += entry.end_bytes
        assert min(now.values()) >= 0
    return during, now


@sample_of(18, 70, optimized_graphs())
def test_memory_equals_the_oracle_at_every_op(case):
    forward, optimizer = case
    for graph in (forward, training_graph(forward, optimizer)):
        plan = memory_entries(graph)
        during, after = replay(graph, plan)
        totals = [sum(kinds.values()) for kinds in during]
        assert totals == profile(graph)
        assert after == plan.initial
        assert len(plan.entries) == len(graph.ops)
        fullest = peak(graph)
        assert fullest.total == max(totals)
        assert dict(fullest.bytes_by_kind) == during[totals.index(max(totals))]
        assert graph.ops[totals.index(max(totals))].name == fullest.op


def test_kept_tensors_are_held_until_the_backward_pass_begins():
    graph = load_model("lenet5").training(2, "fp32")
    first = next(i for i, op in enumerate(graph.ops) if op.pass_ is Pass.INPUT_GRADIENT)
    logits = next(op.outputs[0] for op in graph.ops if op.kind == "gemm")
    plain, _ = replay(graph, memory_entries(graph))
    kept, after = replay(graph, memory_entries(graph, kept=frozenset({logits})))
    more = [b["activations"] - a["activations"] for a, b in zip(plain, kept, strict=True)]
    assert set(more) <= {0, graph.tensors[logits].bytes}
    assert not any(more[first + 1 :])
    assert after == memory_entries(graph).initial


@settings(max_examples=50, deadline=None)
@given(optimized_graphs())
def test_persistent_gradients_are_held_from_the_beginning(case):
    forward, optimizer = case
    graph = training_graph(forward, optimizer)
    moving, held = memory_entries(graph), memory_entries(graph, gradients_persist=True)
    gradients = sum(graph.tensors[name].bytes for name in weight_gradients(graph).values())
    assert held.initial == {**moving.initial, "gradients": gradients}
    _, after = replay(graph, held)
    assert after == held.initial
    step = [i for i, op in enumerate(graph.ops) if op.pass_ is not Pass.UPDATE]
    gradients = [e for i in step for e in held.entries[i] if e.kind == "gradients"]
    assert sum(e.start_bytes + e.end_bytes for e in gradients) == 0  # nothing is left to pile up
    assert peak(graph, gradients_persist=True).total >= peak(graph).total


@settings(max_examples=100, deadline=None)
@given(optimized_graphs())
def test_activation_bytes_are_what_is_held_between_the_passes(case):
    forward, optimizer = case
    graph = training_graph(forward, optimizer)
    plan = memory_entries(graph)
    held = plan.initial["activations"]
    for op, entries in zip(graph.ops, plan.entries, strict=True):
        if op.pass_ is not Pass.FORWARD:
            break
        held += sum(e.start_bytes + e.end_bytes for e in entries if e.kind == "activations")
    assert graph.activation_bytes == held
    assert forward.activation_bytes == 0


@pytest.mark.parametrize("name", one_of_each())
def test_static_memory_is_weights_copies_statistics_and_states(name):
    optimizer = OPTIMIZERS["adam"]
    graph = shallow(name).training(2, "bf16-mixed", optimizer)
    plan = memory_entries(graph)
    role = {r: sum(t.bytes for t in graph.tensors.values() if t.role is r) for r in Role}
    initial = plan.initial
    assert tuple(initial) == MEMORY_KINDS
    assert initial["weights"] == role[Role.WEIGHT] + role[Role.WEIGHT_COPY] + role[Role.BUFFER]
    frozen = sum(graph.tensors[weight].elements for weight in graph.frozen)
    narrow = 2 if load_model(name).network.adapters else 4  # beside adapters in bf16
    assert role[Role.WEIGHT] == 4 * (graph.parameters - frozen) + narrow * frozen
    assert initial["optimizer"] == 8 * (graph.parameters - frozen)
    assert initial["gradients"] == initial["activations"] == initial["workspace"] == 0
    during, after = replay(graph, plan)
    assert after == initial
    assert max(sum(kinds.values()) for kinds in during) == peak(graph).total
    assert peak(graph).total >= sum(initial.values()) + graph.activation_bytes


FAMILIES = [n for n in TINY if n not in {"amoebanet", "ssd", "mask-rcnn"}]


@pytest.mark.parametrize("name", one_in(3, FAMILIES))
def test_memory_of_every_family_equals_the_oracle(name):
    graph = tiny(name).training(2, "fp16-mixed")
    during, _ = replay(graph, memory_entries(graph))
    assert [sum(kinds.values()) for kinds in during] == profile(graph)


@sample_of(13, 50, forward_pairs())
def test_memory_grows_with_the_batch_at_every_op(pair):
    """Linearly, but for what is kept once a step: statistics of batch norms, the loss."""
    small, large = (training_graph(forward, OPTIMIZERS["sgd"]) for forward in pair)
    few, many = (replay(graph, memory_entries(graph))[0] for graph in (small, large))
    for a, b in zip(few, many, strict=True):
        assert all(a[kind] <= b[kind] <= 3 * a[kind] for kind in MEMORY_KINDS)


def test_inference_needs_less_than_training():
    model = load_model("resnet50")
    assert peak(model.forward(8)).total < peak(model.training(8)).total / 3


@pytest.mark.parametrize(("precision", "batch"), [("fp16-mixed", 256), ("fp32", 112)])
def test_resnet50_fits_a_16_gb_v100_as_it_did(precision, batch):
    """NVIDIA trains these on DGX-1 with 16 GB V100s, and no batch twice as large.

    DeepLearningExamples, PyTorch/Classification/ConvNets, configs.yml and resnet50v1.5/README.md
    (Training performance: NVIDIA DGX-1 16GB). 1 GiB is left for CUDA's context and workspaces.
    """
    model = load_model("resnet50")
    assert peak(model.training(batch, precision)).total < 15 * 2**30
    assert peak(model.training(2 * batch, precision)).total > 16 * 2**30
