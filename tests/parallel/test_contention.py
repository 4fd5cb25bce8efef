"""What gradients cost besides their reduction: copies, a coordinator's cycle, shares of devices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ridgeline as rl
from ridgeline.parallel.comm.contention import _traffic
from ridgeline.parallel.emit.buckets import moved
from stacked import stacked

MODEL = rl.load_model("mlp", {"widths": [2048] * 8})


def step(cluster: str = "dgx1-v100", reference: bool = False, **fields: object) -> rl.Result:
    plan = {"global_batch": 4096, "data": 8, "precision": "fp32", **fields}
    return rl.simulate(MODEL, cluster, stacked(**plan), reference=reference)


def parts(result: rl.Result) -> float:
    return sum(v for k, v in result.time_s.items() if k != "total")


def test_copies_into_buckets_move_every_gradient_four_times() -> None:
    without, copied = step(), step(gradients__bucket_copies=True)
    gradients = 4 * without.details.graph.parameters
    moved = copied.traffic_bytes["hbm"] - without.traffic_bytes["hbm"]
    assert moved == 8 * 4 * gradients
    assert copied.memory_bytes["workspace"] - without.memory_bytes["workspace"] == gradients
    device = copied.details.cluster.device
    weights = sum(op.kind == "optimizer" for op in copied.details.graph.ops)
    far = device.memory[device.far_memory]
    rate = far.bandwidth.value * far.achievable.value
    expected = 4 * gradients / rate + 2 * weights * device.launch_latency.value
    assert copied.step_time_s - without.step_time_s == pytest.approx(expected, rel=1e-6)
    assert parts(copied) == pytest.approx(copied.time_s["total"])
    assert step(data=1, gradients__bucket_copies=True).step_time_s == step(data=1).step_time_s


def test_only_what_is_reduced_at_the_end_is_copied() -> None:
    plan = stacked(global_batch=8, data=8, gradients__bucket_copies=True)
    assert moved(plan, MODEL.training(1), {}).size_bytes == 0.0
    assert (
        step(zero_stage=3, gradients__bucket_copies=True).step_time_s
        == step(zero_stage=3).step_time_s
    )


@settings(max_examples=12, deadline=None)
@given(st.floats(1e-7, 1e-1), st.booleans())
def test_the_last_gradients_wait_for_half_a_cycle(cycle: float, overlap: bool) -> None:
    free, late = (
        step(overlap__gradients=overlap),
        step(overlap__gradients=overlap, gradients__fusion_cycle_time=cycle),
    )
    longer = late.step_time_s - free.step_time_s
    assert -1e-12 <= longer <= cycle / 2 * (1 + 1e-9)
    most = free.time_s["total"]  # the reductions before the last can hide no more than a step
    assert longer >= cycle / 2 - most
    assert late.traffic_bytes == free.traffic_bytes
    assert parts(late) == pytest.approx(late.time_s["total"])


def test_a_single_bucket_waits_for_all_of_half_a_cycle() -> None:
    one = {"gradients__bucket": "1 GB", "gradients__fusion_cycle_time": 5e-3}
    longer = step(**one).step_time_s - step(gradients__bucket="1 GB").step_time_s
    assert longer == pytest.approx(2.5e-3, rel=1e-9)


@pytest.mark.parametrize("fields", [{}, {"zero_stage": 1}, {"zero_stage": 3}])
def test_collectives_slow_what_runs_beside_them(fields: dict[str, object]) -> None:
    free, slowed = step(**fields), step(overlap__contention=True, **fields)
    assert free.step_time_s < slowed.step_time_s < 1.3 * free.step_time_s
    assert parts(slowed) == pytest.approx(slowed.time_s["total"])
    assert slowed.traffic_bytes == free.traffic_bytes
    assert slowed.memory_bytes == free.memory_bytes
    assert "slow-down of compute by overlapping communication" in free.manifest["not_modelled"]
    assert (
        "slow-down of compute by overlapping communication" not in slowed.manifest["not_modelled"]
    )
    other = step(overlap__contention=True, reference=True, **fields)
    assert other.step_time_s == pytest.approx(slowed.step_time_s, rel=1e-9)


def test_what_runs_alone_is_not_slowed() -> None:
    one, alone = {"data": 1}, {"overlap__gradients": False}
    for fields in (one, alone):
        free, same = step(**fields), step(overlap__contention=True, **fields)
        assert same.step_time_s == pytest.approx(free.step_time_s, rel=1e-9)


@pytest.mark.parametrize(("sharding", "share"), [(0, 1), (1, 1), (2, 8), (3, 8)])
def test_passes_over_gradients_stream_what_a_rank_holds_of_them(sharding: int, share: int) -> None:
    """Of gradients that are shared, a rank's own part; in any plan, whatever is reduced."""
    without, passing = step(zero_stage=sharding), step(zero_stage=sharding, gradients__sweeps=4)
    gradients = 4 * without.details.graph.parameters
    moved = passing.traffic_bytes["hbm"] - without.traffic_bytes["hbm"]
    assert moved == pytest.approx(8 * 4 * gradients / share, rel=1e-4)
    assert passing.memory_bytes == without.memory_bytes
    longer = passing.step_time_s - without.step_time_s
    assert 0 <= longer < 4.5 * gradients / share / 700e9 + 1e-5
    assert longer > 0 or sharding > 1  # these go on while the last gradients are scattered
    assert parts(passing) == pytest.approx(passing.time_s["total"])


@pytest.mark.parametrize("optimizer", ["adam", "lamb"])
@pytest.mark.parametrize(("sharding", "share"), [(0, 1), (1, 8), (2, 8), (3, 8)])
def test_passes_before_updates_stream_what_a_rank_updates(
    optimizer: str, sharding: int, share: int
) -> None:
    """Of shared optimizer states (ZeRO 1), too, a rank's own part; whatever its rule reads."""
    fields = {"zero_stage": sharding, "optimizer": optimizer}
    without, passing = step(**fields), step(optimizer__clip_sweeps=3, **fields)
    gradients = 4 * without.details.graph.parameters
    moved = passing.traffic_bytes["hbm"] - without.traffic_bytes["hbm"]
    assert moved == pytest.approx(8 * 3 * gradients / share, rel=1e-3)
    assert passing.memory_bytes == without.memory_bytes
    both = step(optimizer__clip_sweeps=3, gradients__sweeps=4, **fields).traffic_bytes["hbm"]
    alone = step(gradients__sweeps=4, **fields).traffic_bytes["hbm"]
    assert both - alone == pytest.approx(moved, rel=1e-6)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 12), st.sampled_from([1, 2, 8]))
def test_every_pass_over_gradients_takes_as_long(passes: int, data: int) -> None:
    free, once, many = (step(data=data, gradients__sweeps=n).step_time_s for n in (0, 1, passes))
    launch = rl.load_cluster("dgx1-v100").device.launch_latency.value
    assert many - free == pytest.approx(
        max(passes * (once - free - launch) + launch, 0) if passes else 0, rel=1e-6, abs=1e-12
    )


@pytest.mark.parametrize("degrees", [{"data": 8}, {"context": 8}, {"data": 2, "context": 4}])
def test_a_ring_sends_by_all_of_its_ranks(degrees: dict[str, int]) -> None:
    """Weights are summed over all that hold them, whichever dimension of the plan they are in."""
    model = rl.load_model("gpt2", {"layers": 1, "sequence": 1024})
    plan = stacked(global_batch=8, micro_batch=1, precision="bf16-mixed", **degrees)
    details = rl.simulate(model, "dgx-h100", plan).details
    program = details.lowered.program
    labels = np.array(program.label_names)[program.label]
    sums = np.flatnonzero(np.char.startswith(labels, "all-reduce"))
    ranks = len(np.unique(program.stream_rank[program.stream[sums]]))
    sent, _ = _traffic(details.timeline, sums, details.lowered)
    held = 4 * details.graph.parameters
    assert sent.sum() / ranks == pytest.approx(2 * held * 7 / 8)
