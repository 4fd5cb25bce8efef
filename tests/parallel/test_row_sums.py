"""Rows of experts that are added up for their tokens by atomic additions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ridgeline as rl
from ridgeline.hardware.load import load_device
from ridgeline.kernels import price
from ridgeline.parallel.passes.atomic_scatter_add import with_atomic_sums
from ridgeline.parallel.sharding.experts import expert_weights, with_experts
from ridgeline.workload.graph import Graph, Pass
from stacked import stacked

SMALL = {"layers": 2, "vocabulary": 64, "sequence": 64, "hidden": 64, "feed_forward.width": 96}
SUMS = {("combine", Pass.FORWARD), ("dispatch", Pass.INPUT_GRADIENT)}


def training(experts: int = 4, chosen: int = 2, ranks: int = 1) -> Graph:
    fields = {**SMALL, "mixture.experts": experts, "mixture.top_k": chosen}
    model = rl.load_model("mixtral-8x7b", {**fields, "mixture.width": 32})
    return with_experts(model.training(2, "bf16-mixed"), ranks)


@settings(max_examples=15, deadline=None)
@given(st.sampled_from([4, 8]), st.integers(1, 3), st.sampled_from([1, 2, 4]))
def test_only_how_rows_are_added_up_changes(experts: int, chosen: int, ranks: int) -> None:
    graph = training(experts, chosen, ranks)
    written = with_atomic_sums(graph)
    changed = []
    for before, after in zip(graph.ops, written.ops, strict=True):
        if (before.kind, before.pass_) not in SUMS:
            assert after is before
            continue
        changed.append(before.pass_)
        assert after.kind == "scatter-add"
        assert after.kernels == 2  # sums are set to zero first
        assert (after.inputs, after.outputs) == (before.inputs, before.outputs)
        assert written.read_bytes(after) == graph.read_bytes(before)
        assert written.write_bytes(after) == graph.write_bytes(before)
    assert changed.count(Pass.FORWARD) == changed.count(Pass.INPUT_GRADIENT) == 2
    assert written.flops() == graph.flops()
    assert written.tensors == graph.tensors


def test_weights_behind_the_sums_are_not_those_of_experts() -> None:
    graph = training(ranks=2)
    assert expert_weights(with_atomic_sums(graph)) == expert_weights(graph)


def test_a_device_that_states_their_rate_takes_that_long() -> None:
    device = load_device("b200")
    (row,) = (row for row in device.kernels if row.op == "scatter-add")
    assert row.throughput is not None
    written = with_atomic_sums(training())
    for op in (op for op in written.ops if op.kind == "scatter-add"):
        moved = written.read_bytes(op) + written.write_bytes(op)
        expected = 2 * row.latency.value + moved / row.throughput.value
        assert price(op, written, device).time_s(device) == pytest.approx(expected)


def test_others_take_one_launch_more_than_for_gathered_rows() -> None:
    device, graph = load_device("a100-sxm4-80gb"), training()
    assert not device.kernels
    written = with_atomic_sums(graph)
    for before, after in zip(graph.ops, written.ops, strict=True):
        more = price(after, written, device).time_s(device) - price(before, graph, device).time_s(
            device
        )
        launch = device.launch_latency.value if after is not before else 0.0
        assert more == pytest.approx(launch, abs=1e-12)


def test_a_step_is_longer_by_its_sums_and_computes_and_holds_the_same() -> None:
    def step(**fields: object) -> rl.Result:
        plan = stacked(global_batch=8, data=8, expert=8, micro_batch=1, **fields)
        shape = {"layers": 1, "sequence": 1024, "vocabulary": 1024}
        return rl.simulate(rl.load_model("mixtral-8x7b", shape), rl.load_cluster("hgx-b200"), plan)

    gathered, atomic = step(), step(moe__combine="atomic")
    numbers = 2 * 1024 * 2 * 4096  # sums of two passes, of two experts for each token
    assert atomic.step_time_s - gathered.step_time_s == pytest.approx(numbers / 218e9, rel=0.5)
    assert atomic.flops_per_step == gathered.flops_per_step
    assert atomic.memory_bytes == gathered.memory_bytes


def test_other_words_are_refused() -> None:
    with pytest.raises(rl.ConfigError, match="allowed: gathered, atomic; found 'atomics'"):
        stacked(global_batch=1, moe__combine="atomics")
