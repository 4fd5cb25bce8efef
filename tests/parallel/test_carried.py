"""ZB-H2 as a plan: gradients of weights of one step are made at the beginning of the next."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_plans_on_pods import CHAIN, FREE, POD, step

from ridgeline.errors import ConfigError
from ridgeline.hardware import load_cluster
from ridgeline.parallel.plan.plan import Plan
from ridgeline.parallel.plan.resolved import NEUTRAL
from ridgeline.parallel.schedule import PHASES, SCHEDULES
from ridgeline.report.result import Result
from ridgeline.simulation import simulate
from ridgeline.workload.files import load_model

H2 = "zero-bubble-h2"


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.integers(1, 40))
def test_what_is_carried_over_is_gradients_of_weights(stages: int, micro_batches: int) -> None:
    schedule = SCHEDULES[H2]
    for stage, order in enumerate(schedule(stages, micro_batches)):
        carried = schedule.carried(stage, stages, micro_batches, 1)
        last = order[len(order) - carried :]
        assert {slot.phase for slot in last} <= {PHASES[2]}
        assert len(order) == 3 * micro_batches
        held = most = 0
        for slot in order:
            held += {"F": 1, "B": 0, "W": -1}[slot.phase]
            most = max(most, held)
        assert most <= schedule.in_flight(stage, stages, micro_batches, 1)


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("chain") / "chain.yaml"
    path.write_text(CHAIN)
    model, cluster = load_model(str(path)), load_cluster(POD, FREE)

    def run(schedule: str, stages: int, micro_batches: int, **how: Any) -> Result:
        plan = Plan(
            pipeline=stages, schedule=schedule, global_batch=2048 * micro_batches,
            micro_batch=2048, precision="fp16-mixed", stage_balance="layers",
        )  # fmt: skip
        return simulate(model, cluster, plan, software=NEUTRAL, **how)

    return run


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 8), (4, 16), (8, 16)])
def test_bubble_and_memory_are_the_published_ones(
    chain: Any, stages: int, micro_batches: int
) -> None:
    """(K-1)(F+B-2W), nothing where all passes are alike, in 2 K - 1 micro-batches (table 1)."""
    results = [chain(name, stages, micro_batches) for name in ("zero-bubble", H2)]
    one, two = results
    program = two.details.timeline.program
    work = np.zeros(program.stream.max() + 1)
    np.add.at(work, program.stream, two.details.timeline.durations_s)
    busy = [work[i] for i, name in enumerate(program.stream_names) if name.endswith("compute")]
    assert two.step_time_s == pytest.approx(max(busy), rel=0.045)  # stages are not quite equal
    if micro_batches > 2 * stages:
        assert two.step_time_s == pytest.approx(max(busy), rel=1e-3)
    assert two.step_time_s < one.step_time_s
    ratio = two.memory_bytes["activations"] / one.memory_bytes["activations"]
    assert ratio == pytest.approx((2 * stages - 1) / stages, rel=0.01)
    slow = chain(H2, stages, micro_batches, reference=True)
    assert slow.step_time_s == pytest.approx(two.step_time_s, rel=1e-9)


@pytest.mark.parametrize(
    "fields",
    [
        {"pipeline": 4},
        {"pipeline": 4, "data": 2, "zero_stage": 1},
        {"pipeline": 2, "data": 2, "tensor": 2, "zero_stage": 2},
        {"pipeline": 3, "data": 2, "zero_stage": 3, "overlap__gradients": False},
        {"pipeline": 2, "recompute": "full"},
    ],
)
def test_a_step_ends_as_it_begins(fields: dict[str, Any]) -> None:
    """Every rank gives back what it takes, and all is done that a step of another order does."""
    how = {"micro_batch": 1, "global_batch": 8 * fields.get("data", 1), **fields}
    plain, carried = (step("resnet18", schedule=name, **how) for name in ("zero-bubble", H2))
    program = carried.details.timeline.program
    left: dict[tuple[int, int], int] = {}
    moves = zip(
        program.memory_rank.tolist(), program.memory_kind.tolist(),
        (program.memory_start + program.memory_end).tolist(), strict=True,
    )  # fmt: skip
    for rank, kind, size in moves:
        left[rank, kind] = left.get((rank, kind), 0) + size
    assert not any(left.values())
    assert carried.flops_per_step == plain.flops_per_step
    assert carried.traffic_bytes == pytest.approx(plain.traffic_bytes, rel=1e-12)
    assert carried.energy_j["compute"] == pytest.approx(plain.energy_j["compute"], rel=1e-12)
    whole = step("resnet18", schedule=H2, fold=False, **how)
    assert carried.step_time_s == pytest.approx(whole.step_time_s, rel=1e-9)
    assert carried.memory_bytes == whole.memory_bytes


@pytest.mark.parametrize("micro_batches", [1, 2, 3])
@pytest.mark.parametrize("fields", [{}, {"data": 2, "zero_stage": 2}, {"data": 2, "zero_stage": 3}])
def test_stages_that_wait_for_their_last_gradients_hold_what_these_read(
    fields: dict[str, Any], micro_batches: int
) -> None:
    """With few micro-batches, too, of which all are carried over, and gradients of one step."""
    how = {"pipeline": 2, "micro_batch": 1, "stage_balance": "layers", **fields}
    how["global_batch"] = micro_batches * fields.get("data", 1)
    plain, carried = (
        [most_of(name, rank, how) for rank in range(2)] for name in ("zero-bubble", H2)
    )
    kinds = ["weights", "optimizer", *([] if fields else ["gradients"])]  # scattered in any order
    for before, now in zip(plain, carried, strict=True):
        for kind in kinds:
            assert now[kind] == before[kind]
        assert now["activations"] >= before["activations"]


def most_of(schedule: str, rank: int, how: dict[str, Any]) -> dict[str, int]:
    """Most bytes of each kind that a rank holds, and never less than none."""
    timeline = step("resnet18", schedule=schedule, **how).details.timeline
    _, held = timeline.memory_profile(rank)
    assert (held >= 0).all()
    return dict(zip(timeline.program.memory_kinds, held.max(axis=0).tolist(), strict=True))


def test_weights_of_several_stages_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"'embedding.weight' is shared by stages 0, 1; allowed"):
        step("gpt2", schedule=H2, pipeline=2, micro_batch=4)


@pytest.mark.parametrize(
    ("name", "known"), [("ZB-H1", "zero-bubble"), ("ZB-H2", H2), ("ZB-V", "zero-bubble-v")]
)
def test_names_of_the_paper(name: str, known: str) -> None:
    assert Plan(global_batch=8, pipeline=2, schedule=name).schedule == known
    with pytest.raises(ConfigError, match="two times the memory of 1f1b there is zero-bubble-h2"):
        Plan(global_batch=8, pipeline=2, schedule="ZB-2p")
