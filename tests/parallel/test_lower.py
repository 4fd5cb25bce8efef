"""Lowering: what a step becomes, folded as unfolded, and laws that a step must obey."""

from __future__ import annotations

import math
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from machines import write_machine
from ridgeline.hardware import load_cluster
from ridgeline.network.cluster_topology import from_cluster
from ridgeline.parallel.emit.buckets import gradient_buckets
from ridgeline.parallel.lower import COLLECTIVE
from ridgeline.parallel.plan.plan import Plan
from ridgeline.report.result import Result
from ridgeline.simulation import simulate
from ridgeline.workload.files import load_model
from ridgeline.workload.graph import Pass, Role
from stacked import stacked
from thoroughly import sample_of

MACHINE = tempfile.TemporaryDirectory()
NODE_FILE = str(write_machine(Path(MACHINE.name)))


def toy(plan: Plan, model: str = "mlp", **how: bool) -> Result:
    return simulate(load_model(model), load_cluster(NODE_FILE), plan, **how)


def test_every_gradient_is_in_one_bucket_and_no_bucket_is_early() -> None:
    graph = load_model("resnet18").training(2, "fp16-mixed")
    buckets = gradient_buckets(graph, 2**20)
    reduced = [name for bucket in buckets for name in bucket.tensors]
    weights = [t for t in graph.tensors.values() if t.role is Role.WEIGHT]
    assert len(reduced) == len(set(reduced)) == len(weights)
    assert all(bucket.size_bytes >= 2**20 for bucket in buckets[:-1])
    for bucket in buckets:
        written = {name for op in graph.ops[: bucket.ready + 1] for name in op.outputs}
        assert written.issuperset(bucket.tensors)
        assert graph.ops[bucket.ready].pass_ is not Pass.UPDATE


@pytest.mark.parametrize("sharding", [0, 2, 3])
def test_buckets_grow_with_the_replicas(sharding: int) -> None:
    def step(data: int, **sizes: str) -> Result:
        return toy(stacked(data=data, global_batch=8, zero_stage=sharding, **sizes))

    for data in (2, 4):
        grown, fixed = (
            step(data, gradients__bucket_per_rank="1 MB"),
            step(data, gradients__bucket=f"{data} MB"),
        )
        assert (
            step(data, gradients__bucket="1 B", gradients__bucket_per_rank="1 MB").step_time_s
            == fixed.step_time_s
        )
        assert grown.step_time_s == step(data).step_time_s  # 25 MiB are more


@pytest.mark.parametrize("precision", ["fp32", "fp16-mixed"])
@pytest.mark.parametrize("batch", [4, 512])
def test_folded_equals_unfolded_and_the_reference(precision: str, batch: int) -> None:
    plan = stacked(data=4, global_batch=batch, precision=precision, gradients__bucket="1 MiB")
    folded = toy(plan)
    assert folded.manifest["ranks"] == {"real": 4, "simulated": 1}
    for other in (toy(plan, fold=False), toy(plan, reference=True)):
        assert other.step_time_s == pytest.approx(folded.step_time_s, rel=1e-9)
        for part, joules in folded.energy_j.items():
            assert other.energy_j[part] == pytest.approx(joules, rel=1e-9)
        assert other.traffic_bytes == pytest.approx(folded.traffic_bytes, rel=1e-12)
        assert other.memory_bytes == folded.memory_bytes


def test_one_device_by_hand() -> None:
    """Without collectives a step is the sum of its ops' times."""
    result = toy(Plan(global_batch=64))
    device = load_cluster(NODE_FILE).device
    times = [cost.time_s(device) for cost in result.details.lowered.op_costs]
    assert result.step_time_s == pytest.approx(math.fsum(times), rel=1e-12)
    assert result.time_s["exposed_communication"] == result.time_s["bubble"] == 0
    assert "wire" not in result.traffic_bytes


def test_the_last_reduction_is_exposed_by_hand() -> None:
    """A first layer of 10^8 weights: its gradient comes last and cannot hide."""
    result = toy(stacked(data=4, global_batch=4, gradients__bucket="1 B"))
    timeline = result.details.timeline
    program = timeline.program
    kind = program.kind_names.index(COLLECTIVE)
    network = [stream for stream, name in enumerate(program.stream_names) if "network" in name]
    assert [int(program.stream_rank[s]) for s in network] == [0]
    reductions = np.flatnonzero(program.kind == kind)
    assert len(reductions) == len(result.details.lowered.schedules)
    updates = program.kind == program.kind_names.index(Pass.UPDATE.value)
    assert timeline.start_s[updates].min() >= timeline.end_s[reductions].max()
    # 4 ranks on one ring of 20 GB/s each way: 5 us to start, 6 rounds of 1 us.
    for task, schedule in zip(reductions, result.details.lowered.schedules, strict=True):
        expected = 5e-6 + 6 * (1e-6 + schedule.size_bytes / 4 / (2 * 20e9))
        assert timeline.durations_s[task] == pytest.approx(expected, rel=1e-9)
    exposed = result.time_s["exposed_communication"]
    assert exposed == pytest.approx(_idle(result), rel=1e-9)


def _idle(result: Result) -> float:
    timeline = result.details.timeline
    return timeline.makespan_s - math.fsum(end - start for start, end in timeline.busy(0))


def test_micro_batches_accumulate() -> None:
    whole, parts = toy(Plan(global_batch=256)), toy(Plan(global_batch=256, micro_batch=64))
    assert parts.flops_per_step == whole.flops_per_step
    assert parts.memory_bytes["activations"] < whole.memory_bytes["activations"]
    assert parts.step_time_s > whole.step_time_s  # more launches, and gradients are added up
    labels = {row.label for row in parts.details.timeline.rows(range(10**3)[: _tasks(parts)])}
    assert any(label.endswith(".accumulate") for label in labels)


def _tasks(result: Result) -> int:
    return result.details.timeline.program.n_tasks


@cache
def baseline(data: int, batch: int, overlap: bool) -> Result:
    return toy(
        stacked(
            data=data, global_batch=batch, overlap__gradients=overlap, gradients__bucket="1 MiB"
        )
    )


plans = st.tuples(st.sampled_from([1, 2, 4]), st.sampled_from([12, 120, 1200]), st.booleans())


@settings(max_examples=40, deadline=None)
@given(plan=plans)
def test_the_accounts_add_up(plan: tuple[int, int, bool]) -> None:
    result = baseline(*plan)
    for account in (result.time_s, result.energy_j):
        parts = math.fsum(v for k, v in account.items() if k != "total")
        assert parts == pytest.approx(account["total"], rel=1e-9)
        assert min(account.values()) >= 0
    memory = {k: v for k, v in result.memory_bytes.items() if k not in {"total", "capacity"}}
    assert sum(memory.values()) == result.memory_bytes["total"]
    assert result.time_s["total"] == result.step_time_s
    assert math.fsum(result.limits_s.values()) == pytest.approx(result.step_time_s, rel=1e-9)
    assert result.energy_j["static"] == pytest.approx(10 * plan[0] * result.step_time_s)


@settings(max_examples=30, deadline=None)
@given(plan=plans)
def test_a_step_obeys_its_bounds(plan: tuple[int, int, bool]) -> None:
    data, batch, _ = plan
    result = baseline(*plan)
    assert 0 < result.mfu <= 1
    graph = result.details.graph
    assert result.flops_per_step == graph.flops() * data
    gradients = 4 * graph.parameters
    on_wire = result.traffic_bytes.get("wire", 0.0)
    assert on_wire >= 2 * (data - 1) * gradients * (1 - 1e-12)  # bandwidth-optimal all-reduce
    assert baseline(data, batch, True).step_time_s <= baseline(data, batch, False).step_time_s


@sample_of(
    8,
    30,
    plan=plans,
    field=st.sampled_from(
        [
            ("device.memory.hbm.bandwidth", "2 TB/s"),
            ("device.memory.l2.bandwidth", "9 TB/s"),
            ("device.engines.matrix.rates.fp32", "30 TFLOP/s"),
            ("device.launch_latency", "0.5 us"),
            ("node.link_types.wire.bandwidth", "50 GB/s"),
            ("node.link_types.wire.latency", "100 ns"),
            ("node.collective_latency", "0 s"),
        ]
    ),
)
def test_a_better_machine_is_never_slower(
    plan: tuple[int, int, bool], field: tuple[str, str]
) -> None:
    better = load_cluster(NODE_FILE, dict([field]))
    data, batch, overlap = plan
    faster = simulate(
        load_model("mlp"),
        better,
        stacked(
            data=data, global_batch=batch, overlap__gradients=overlap, gradients__bucket="1 MiB"
        ),
    )
    assert faster.step_time_s <= baseline(*plan).step_time_s * (1 + 1e-12)


def test_links_carry_what_the_schedule_says() -> None:
    result = baseline(4, 120, True)
    topology = from_cluster(load_cluster(NODE_FILE), 4)
    loads = np.zeros(topology.n_links)
    for schedule in result.details.lowered.schedules:
        for link, size in schedule.bytes_on_wire().items():
            loads[link] += size
    assert result.traffic_bytes["wire"] == pytest.approx(loads.sum(), rel=1e-12)
    assert np.ptp(loads) == 0  # a ring both ways loads every link alike
