"""Steps that offload: on the engine as by the recurrence, and what they add to the accounts."""

import pytest
from hypothesis import strategies as st

from ridgeline import Plan, simulate
from ridgeline.errors import RidgelineError
from ridgeline.hardware import load_cluster
from ridgeline.kernels import price
from ridgeline.network.cluster_topology import from_cluster
from ridgeline.parallel.checkpointing.offload import (
    COPIES,
    copied_bytes,
    host_link,
    overlapped,
    with_offload,
)
from ridgeline.parallel.checkpointing.recompute import with_recompute
from ridgeline.parallel.memory.liveness_profile import memory, training_graph_of
from ridgeline.parallel.plan.resolved import NEUTRAL
from ridgeline.workload import load_model
from stacked import stacked
from thoroughly import sample_of

TITAN, DGX = load_cluster("titan-x-pcie3"), load_cluster("dgx1-v100")
SMALL = ("alexnet", "resnet18", "lenet5", "mlp", "gpt2")


@sample_of(
    4,
    15,
    name=st.sampled_from(SMALL),
    batch=st.integers(1, 8),
    offload=st.sampled_from(["conv", "all"]),
    recompute=st.sampled_from(["none", "full"]),
)
def test_one_device_takes_what_the_recurrence_says(name, batch, offload, recompute):
    plan = Plan(
        global_batch=batch, offload=offload, recompute=recompute, precision="fp32", optimizer="sgd"
    )
    result = simulate(name, TITAN, plan, software=NEUTRAL)
    graph = with_recompute(training_graph_of(load_model(name), plan), recompute)
    graph = with_offload(graph, offload)
    times = {
        op.name: price(op, graph, TITAN.device).time_s(TITAN.device)
        for op in graph.ops
        if op.kind not in COPIES
    }
    expected = overlapped(graph, times, host_link(from_cluster(TITAN, 1)))
    # Copies take memory bandwidth of kernels beside them, which the recurrence does not know.
    assert expected.step_s * (1 - 1e-9) < result.step_time_s < 1.01 * expected.step_s
    away = copied_bytes(graph)
    assert result.traffic_bytes.get("pcie3-x16", 0.0) == pytest.approx(2 * away)
    # What has gone out is given back at once there, with its layer in the order of ops.
    held = memory(name, plan, software=NEUTRAL).peak["total"]
    assert 0.99 * held < result.memory_bytes["total"] <= held


def test_devices_behind_one_switch_share_the_way_to_the_host():
    one = simulate("alexnet", DGX, Plan(global_batch=64, offload="all", precision="fp32"))
    pair = simulate("alexnet", DGX, Plan(global_batch=128, data=2, offload="all", precision="fp32"))
    exposed = [r.time_s["exposed_communication"] for r in (one, pair)]
    assert exposed[1] > 1.5 * exposed[0]
    assert "exposed communication (host)" in pair.limits_s
    moved = [sum(v for k, v in r.traffic_bytes.items() if "pcie" in k) for r in (one, pair)]
    assert moved[1] == pytest.approx(2 * moved[0])


@pytest.mark.parametrize(
    "fields",
    [
        {"pipeline": 2, "micro_batch": 1},
        {"pipeline": 2, "micro_batch": 1, "schedule": "zero-bubble"},
        {"tensor": 2},
        {"data": 2, "zero_stage": 3},
        {"pipeline": 2, "micro_batch": 1, "schedule": "gpipe", "recompute": "full"},
    ],
    ids=str,
)
def test_offload_goes_with_every_other_dimension(fields):
    """Less is held, the step is no faster, and the same is computed."""
    fields |= {"global_batch": 4, "precision": "fp16-mixed"}
    runs = [simulate("gpt2", DGX, stacked(offload=policy, **fields)) for policy in ("none", "all")]
    assert runs[1].memory_bytes["activations"] < runs[0].memory_bytes["activations"]
    assert runs[1].step_time_s >= runs[0].step_time_s
    assert runs[1].flops_per_step == runs[0].flops_per_step
    folded = runs[1].step_time_s
    plan = stacked(offload="all", **fields)
    assert simulate("gpt2", DGX, plan, reference=True).step_time_s == pytest.approx(folded)


def test_a_node_without_a_host_cannot_offload():
    with pytest.raises(RidgelineError, match="to a host"):
        simulate("lenet5", "v100-sxm2-16gb", Plan(global_batch=8, offload="all"))
