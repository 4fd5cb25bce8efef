"""Updates on the host: memory that is saved, and the time of three queues, written out by hand."""

from __future__ import annotations

from typing import Any

import pytest

import ridgeline as rl
from oracles.graph_zoo import tiny
from ridgeline.errors import ConfigError
from ridgeline.hardware import load_cluster
from ridgeline.network.cluster_topology import from_cluster
from ridgeline.parallel.checkpointing.host_updates import (
    ATTAINED,
    BACK,
    HOST,
    OUT,
    HostRate,
    is_host_update,
    with_host_updates,
)
from ridgeline.parallel.checkpointing.offload import host_link
from ridgeline.parallel.emit.zero import with_sharding
from ridgeline.parallel.memory.liveness_profile import memory
from ridgeline.workload import memory_entries
from ridgeline.workload.graph import Graph, Role
from ridgeline.workload.optimizers import OPTIMIZERS


def graph_of(name: str = "gpt", rule: str = "adamw", precision: str = "bf16-mixed") -> Graph:
    return tiny(name).training(2, precision, OPTIMIZERS[rule])


def step(model: str = "gpt2", machine: str = "dgx-h100", **fields: Any) -> rl.Result:
    plan = {"global_batch": 8, "precision": "bf16-mixed", "optimizer": "adamw", **fields}
    return rl.simulate(model, machine, rl.Plan(**plan), software="ideal")


def test_no_share_changes_nothing() -> None:
    graph = graph_of()
    assert with_host_updates(graph, 0.0) is graph


@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed", "fp16-mixed"])
def test_state_and_masters_leave_the_device(precision: str) -> None:
    """Of weights with a copy the master goes, too; what passes compute with stays."""
    graph = graph_of(precision=precision)
    before, after = (memory_entries(g).initial for g in (graph, with_host_updates(graph, 1.0)))
    copies = {t.name for t in graph.tensors.values() if t.role is Role.WEIGHT_COPY}
    copied = {op.inputs[0] for op in graph.ops if op.kind == "cast" and op.outputs[0] in copies}
    assert after["optimizer"] == 0 < before["optimizer"]
    assert before["weights"] - after["weights"] == sum(graph.tensors[n].bytes for n in copied)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.9, 1.0])
def test_the_share_is_of_parameters_in_order(share: float) -> None:
    graph = graph_of()
    updates = [op for op in graph.ops if op.kind == "optimizer"]
    sizes = [graph.tensors[op.inputs[0]].elements for op in updates]
    moved = [is_host_update(op) for op in with_host_updates(graph, share).ops
             if op.kind == "optimizer"]  # fmt: skip
    count = sum(moved)
    assert moved == [True] * count + [False] * (len(moved) - count)
    assert sum(sizes[:count]) >= share * sum(sizes) > sum(sizes[: count - 1])


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("ranks", [2, 4])
def test_bytes_of_an_update_are_those_of_a_ranks_part(stage: int, ranks: int) -> None:
    """Weight, gradient and two moments are read, three written, and a 16-bit copy goes back."""
    graph = with_host_updates(with_sharding(graph_of(), stage, ranks, 1e6), 1.0)
    whole = graph_of()
    copied = {op.inputs[0] for op in whole.ops if op.kind == "cast"}
    part = ranks if stage else 1
    for op in graph.ops:
        if not is_host_update(op):
            continue
        said = dict(op.attrs)
        count = whole.tensors[op.inputs[0]].elements / part
        back = 2 if op.inputs[0] in copied else 4
        slack = 64  # parts are rounded up
        assert said[OUT] == pytest.approx(4 * count, abs=slack)
        assert said[BACK] == pytest.approx(back * count, abs=slack)
        assert said[HOST] == pytest.approx((4 * 4 + 3 * 4 + 4 + back) * count, abs=6 * slack)


def test_a_step_ends_with_three_queues_one_behind_the_other() -> None:
    """Each gradient goes out, is used, and its weight comes back: a table filled in by hand."""
    model, cluster = rl.load_model("gpt2"), load_cluster("dgx-h100")
    graph = with_host_updates(model.training(8, "bf16-mixed", OPTIMIZERS["adamw"]), 1.0)
    link = host_link(from_cluster(cluster, 1))
    rate = ATTAINED * 614.4e9
    out = host = back = 0.0
    for op in graph.ops:
        if is_host_update(op):
            said = {name: float(value) for name, value in op.attrs if name in {HOST, OUT, BACK}}
            out += link.copy_s(said[OUT])
            host = max(out, host) + said[HOST] / rate
            back = max(host, back) + link.copy_s(said[BACK])
    with_host, without = step(optimizer_offload=1.0), step()
    took = with_host.step_time_s - (without.step_time_s - without.time_s["optimizer"])
    casts = without.time_s["compute"] + without.time_s["memory_stall"]
    casts -= with_host.time_s["compute"] + with_host.time_s["memory_stall"]
    assert took + casts == pytest.approx(back + with_host.time_s["optimizer"], rel=0.02)


def test_more_on_the_host_holds_less_and_takes_longer() -> None:
    results = [step(optimizer_offload=share, data=2) for share in (0.0, 0.25, 0.5, 1.0)]
    held = [result.memory_bytes["total"] for result in results]
    times = [result.step_time_s for result in results]
    assert held == sorted(held, reverse=True)
    assert times == sorted(times)
    assert len(set(held)) == len(set(times)) == 4


def test_devices_of_a_node_share_the_host() -> None:
    node = load_cluster("dgx-h100").nodes
    alone, eight, more = (HostRate.of(node, n).bytes_per_s for n in (1, 8, 64))
    assert alone == pytest.approx(8 * eight)
    assert eight == more
    # each of eight replicas updates all of the weights; of eight that share states an eighth
    every, shared = (
        step(optimizer_offload=1.0, data=8, zero_stage=stage).time_s["exposed_communication"]
        for stage in (0, 1)
    )
    assert every > 3 * shared


@pytest.mark.parametrize(
    "plan",
    [
        {"data": 2, "tensor": 2, "pipeline": 2, "micro_batch": 1, "zero_stage": 1},
        {"data": 8, "zero_stage": 3, "micro_batch": 1},
        {"data": 4, "micro_batch": 1, "offload": "all"},
    ],
)
def test_plans_of_all_kinds_run(plan: dict[str, Any]) -> None:
    usual, there = step(**plan), step(**plan, optimizer_offload=1.0)
    assert there.memory_bytes["optimizer"] == 0 < usual.memory_bytes["optimizer"]
    assert there.step_time_s > usual.step_time_s


def test_matrices_stay_on_the_device() -> None:
    graph = with_host_updates(graph_of(rule="muon"), 1.0)
    moved = {dict(op.attrs)["rule"] for op in graph.ops if is_host_update(op)}
    assert moved == {"adamw"}
    held = memory_entries(graph).initial["optimizer"]
    assert 0 < held < memory_entries(graph_of(rule="muon")).initial["optimizer"]


def test_memory_of_a_network_alone_knows_it_too() -> None:
    plan = rl.Plan(global_batch=2, precision="bf16-mixed", optimizer="adamw")
    there = memory("gpt2", plan.model_copy(update={"optimizer_offload": 1.0}))
    assert there.peak["optimizer"] == 0 < memory("gpt2", plan).peak["optimizer"]


def test_a_host_of_unknown_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"memory of its host .* --set cluster\.nodes"):
        step(machine="pcie4-8gpu", optimizer_offload=1.0)
    with pytest.raises(ConfigError, match=r"plan\.optimizer_offload"):
        rl.Plan(global_batch=8, optimizer_offload=1.5)
