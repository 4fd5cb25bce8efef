"""Memory of a step by kind, against liveness, ZeRO's table and the network's own numbers."""

import numpy as np
import pytest

import ridgeline as rl
from oracles.graph_memory import profile
from oracles.graph_networks import optimized_graphs
from ridgeline.errors import RidgelineError
from ridgeline.parallel.memory.liveness_profile import held_bytes, memory, model_states
from ridgeline.workload import load_model, peak, training_graph
from ridgeline.workload.optimizers import OPTIMIZERS
from stacked import stacked
from thoroughly import sample_of


@sample_of(15, 60, optimized_graphs())
def test_timeline_equals_the_oracle_and_its_peak_that_of_liveness(case):
    forward, optimizer = case
    graph = training_graph(forward, optimizer)
    held = held_bytes(graph)
    assert held.sum(axis=1).tolist() == profile(graph)
    assert held.sum(axis=1).max() == peak(graph).total
    persistent = held_bytes(graph, gradients_persist=True)
    assert persistent.sum(axis=1).max() == peak(graph, gradients_persist=True).total
    assert np.all(held >= 0)


def test_memory_of_a_plan():
    plan = rl.Plan(global_batch=64, micro_batch=16, precision="fp16-mixed")
    result = rl.memory("resnet50", plan)
    graph = load_model("resnet50").training(16, "fp16-mixed")
    assert result.peak["total"] == peak(graph, gradients_persist=True).total
    assert result.peak["total"] == sum(v for k, v in result.peak.items() if k != "total")
    assert result.kinds == tuple(k for k in result.peak if k != "total")
    assert result.to_dict()["fullest_op"] == graph.ops[result.fullest].name
    sizes = [size for _, size in result.largest]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) <= result.peak["total"]
    assert "resnet50" in repr(result)


@pytest.mark.parametrize("name", ["resnet18", "gpt2"])
@pytest.mark.parametrize(
    "fields",
    [
        {"global_batch": 4},
        {"global_batch": 8, "micro_batch": 2, "recompute": "full"},
        {"global_batch": 16, "data": 8, "zero_stage": 1},
    ],
)
def test_memory_is_that_of_the_simulation(name, fields):
    plan = stacked(precision="fp16-mixed", **fields)
    model = load_model(name, {"layers": 3} if name == "gpt2" else None)
    simulated = rl.simulate(model, "dgx1-v100", plan).memory_bytes
    assert memory(model, plan).peak == {k: v for k, v in simulated.items() if k != "capacity"}


def test_what_the_framework_reserves_is_held_all_the_time():
    plain, more = (
        stacked(global_batch=4, precision="fp16-mixed", memory__runtime=size) for size in (0, 10**9)
    )
    assert (
        (memory("gpt2", more).held_bytes - memory("gpt2", plain).held_bytes).sum(1) == 10**9
    ).all()
    results = [rl.simulate("gpt2", "dgx1-v100", plan).memory_bytes for plan in (plain, more)]
    assert results[1]["total"] - results[0]["total"] == 10**9
    assert results[1]["workspace"] - results[0]["workspace"] == 10**9


@pytest.mark.parametrize("stages", [2, 4])
def test_outputs_that_stages_keep_wait_for_their_backward_pass(stages):
    """The first stage has as many micro-batches under way as there are stages."""
    shape, hidden = {"layers": 8, "sequence": 128}, 768
    totals = []
    for keep in (False, True):
        plan = stacked(
            global_batch=16, pipeline=stages, recompute="full", precision="fp16-mixed",
            micro_batch=2, pipeline__deallocate_outputs=not keep,
        )  # fmt: skip
        result = rl.simulate(load_model("gpt2", shape), "dgx1-v100", plan)
        profile = result.details.timeline.memory_profile(0)[1]
        totals.append(int(profile.sum(axis=1).max()))
    one = 2 * 128 * hidden * 2
    assert 0 < totals[1] - totals[0] <= stages * one
    assert totals[1] - totals[0] >= (stages - 1) * one


def test_sharding_of_gradients_and_weights_holds_less():
    totals = [
        memory("gpt2", rl.Plan(global_batch=8, data=8, zero_stage=stage)).peak["total"]
        for stage in range(4)
    ]
    assert totals == sorted(totals, reverse=True)
    assert totals[3] < 0.8 * totals[0]


def test_memory_with_savings():
    plan = rl.Plan(global_batch=32, precision="fp16-mixed")
    whole = memory("resnet50", plan)
    full = memory("resnet50", plan, recompute="full")
    away = memory("resnet50", plan, offload="all")
    budget = 0.6 * whole.peak["total"]
    fitted = memory("resnet50", plan, recompute="budget", budget_bytes=budget)
    assert fitted.peak["total"] <= budget
    assert max(full.peak["total"], away.peak["total"]) < whole.peak["total"]
    assert whole.recompute_share == away.recompute_share == 0 < fitted.recompute_share
    assert away.to_dict()["offloaded_bytes"] > 0


def test_divided_plans_are_left_to_the_simulation():
    plan = rl.Plan(global_batch=8).model_copy(update={"pipeline": 2})
    with pytest.raises(RidgelineError, match="pipeline=2 divides the model"):
        memory("gpt2", plan)


@pytest.mark.parametrize(
    ("sharding", "ranks", "published_gb"),
    [
        *((1, 1, 120), (1, 4, 52.5), (1, 16, 35.6), (1, 64, 31.4), (1, 256, 30.4)),
        *((1, 1024, 30.1), (2, 4, 41.2), (2, 16, 21.6), (2, 64, 16.6), (2, 256, 15.4)),
        *((2, 1024, 15.1), (3, 4, 30.0), (3, 16, 7.5), (3, 64, 1.88), (3, 256, 0.469)),
        (3, 1024, 0.117),
    ],
)
def test_model_states_are_zeros(sharding, ranks, published_gb):
    """arXiv:1910.02054, table 1, for 7.5e9 parameters: 2 + 2 + 12 bytes each with Adam.

    A perceptron casts all of its weights. In a transformer of this precision norms and embedding
    tables have no 16-bit copy, which ZeRO's formula counts for every parameter.
    """
    plain = load_model("mlp").training(1, "fp16-mixed", OPTIMIZERS["adam"])
    gpt = load_model("megatron-7.5b").training(1, "fp16-mixed", OPTIMIZERS["adam"])
    for graph, within in ((plain, 0.01), (gpt, 0.035)):
        states = model_states(graph, sharding, ranks)
        predicted_gb = sum(states.values()) / graph.parameters * 7.5
        assert predicted_gb == pytest.approx(published_gb, rel=within)


def test_unknown_stages_are_refused():
    with pytest.raises(RidgelineError, match="stages are 0 to 3"):
        model_states(load_model("mlp").training(1), 4, 8)
