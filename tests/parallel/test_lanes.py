"""Forward and backward passes of two micro-batches side by side (`overlap_expert`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

import ridgeline as rl
from ridgeline.engine.reference import run_reference
from ridgeline.parallel.plan.resolved import NEUTRAL, resolved
from stacked import stacked
from thoroughly import sample_of

SHAPE = {
    "layers": 8, "sequence": 512, "vocabulary": 512, "hidden": 512, "attention.heads": 8,
    "attention.kv_heads": 8, "feed_forward.width": 512, "mixture.width": 512,
}  # fmt: skip
MODEL = rl.load_model("mixtral-8x7b", SHAPE)
CLUSTER = rl.load_cluster("selene-a100")


def step(**fields: Any) -> rl.Result:
    return rl.simulate(MODEL, CLUSTER, stacked(**{"micro_batch": 1, "expert": 2, **fields}))


def streams(result: rl.Result, queue: str) -> list[int]:
    """Return the queues of a name, of the first rank of every stage."""
    names = result.details.timeline.program.stream_names
    return [i for i, name in enumerate(names) if name.endswith(f"/{queue}")]


def tasks(result: rl.Result, kind: str, label: str) -> list[int]:
    """Return the tasks of a kind that are called so."""
    program = result.details.timeline.program
    kinds = np.array(program.kind_names)[program.kind] == kind
    named = np.array([name == label for name in program.label_names])[program.label]
    return np.flatnonzero(kinds & named).tolist()


@st.composite
def plans(draw: st.DrawFn) -> dict[str, Any]:
    data, pipeline = draw(st.sampled_from((2, 4, 16))), draw(st.sampled_from((1, 1, 2, 4)))
    chunks = draw(st.sampled_from((1, 2))) if pipeline > 1 else 1
    rounds = draw(st.integers(1, 3))
    return {
        "data": data,
        "expert": draw(st.sampled_from([n for n in (2, 4, 8) if data % n == 0])),
        "pipeline": pipeline,
        "virtual_stages": chunks,
        "schedule": "interleaved" if chunks > 1 else "1f1b",
        "stage_balance": "layers",  # even cuts do not see what experts exchange (0174)
        "global_batch": data * pipeline * rounds,
        "zero_stage": draw(st.integers(0, 2)),
        "overlap__gradients": draw(st.booleans()),
    }


@sample_of(4, 12, plans())
def test_the_same_is_done_and_no_later(plan: dict[str, Any]) -> None:
    apart, together = step(**plan), step(**plan, overlap__moe_a2a=True)
    assert together.flops_per_step == apart.flops_per_step
    assert together.traffic_bytes == pytest.approx(apart.traffic_bytes)
    # what is ready first is done first, which may be the wrong one: but never by much
    assert together.step_time_s <= apart.step_time_s * 1.02
    for queue in ("compute", "network-expert"):
        of = streams(apart, queue)
        assert of == streams(together, queue)
        for stream in of:
            before, after = (r.details.timeline.busy(stream) for r in (apart, together))
            assert (after[1:, 0] >= after[:-1, 1]).all()  # one at a time
            if queue == "compute":  # messages may share links with others
                assert np.diff(after).sum() == pytest.approx(np.diff(before).sum(), rel=1e-9)
    assert together.memory_bytes["total"] >= apart.memory_bytes["total"]


def test_both_executors_play_pairs_alike() -> None:
    plan = {
        "data": 4,
        "pipeline": 2,
        "virtual_stages": 2,
        "schedule": "interleaved",
        "global_batch": 16,
    }
    timeline = step(**plan, overlap__moe_a2a=True).details.timeline
    assert len(set(timeline.program.priority.tolist())) > 1
    other = run_reference(timeline.program)
    assert np.allclose(timeline.end_s, other.end_s, rtol=1e-9)


def test_of_many_micro_batches_all_to_alls_are_hidden_but_for_the_ends() -> None:
    """One stage: only the first forward pass and the last backward pass have no other beside."""
    few, many = (
        [
            step(data=16, expert=8, global_batch=16 * n, overlap__moe_a2a=over)
            for over in (False, True)
        ]
        for n in (8, 16)
    )
    exposed = [
        [result.time_s["exposed_communication"] for result in results] for results in (few, many)
    ]
    apart, together = (after - before for before, after in zip(*exposed, strict=True))
    assert apart > 0
    assert together < apart / 2


def test_passes_of_one_micro_batch_stay_in_order() -> None:
    """A backward pass begins when its own forward pass has ended, and pairs one after the other."""
    result = step(data=2, global_batch=16, overlap__moe_a2a=True)
    timeline = result.details.timeline
    forward = np.sort(timeline.end_s[tasks(result, "forward", "loss")])
    backward = np.sort(timeline.start_s[tasks(result, "input-gradient", "loss.input-gradient")])
    assert len(forward) == len(backward) == 8
    assert (backward >= forward).all()
    assert (forward[2:] > backward[:-2]).all()  # at most two micro-batches are under way


def test_memory_holds_one_micro_batch_more() -> None:
    plan = {"data": 2, "global_batch": 16}
    apart, together, two = (
        step(**{**plan, **more})
        for more in ({}, {"overlap__moe_a2a": True}, {"micro_batch": 2, "overlap__moe_a2a": False})
    )
    held = [result.memory_bytes["activations"] for result in (apart, together, two)]
    assert held[0] < held[1] <= held[2] * 1.1


def test_one_micro_batch_has_no_other() -> None:
    plan = {"data": 2, "global_batch": 2}
    assert step(**plan).step_time_s == step(**plan, overlap__moe_a2a=True).step_time_s


@pytest.mark.parametrize(
    ("fields", "notes"),
    [
        ({"expert": 1}, 0),
        ({"schedule": "gpipe"}, 1),
        ({"schedule": "zero-bubble", "pipeline": 2}, 1),
    ],
)
def test_a_stack_overlaps_no_pairs_in_plans_without_them(
    fields: dict[str, Any], notes: int
) -> None:
    stack = NEUTRAL.with_settings({"overlap.moe_a2a": True})
    plan = resolved(rl.Plan(**{"global_batch": 8, "data": 4, "expert": 2, **fields}), stack)
    assert not plan.overlaps_experts
    assert len(plan.notes) == notes


def test_rows_on_their_way_take_processors_of_what_runs_beside_them() -> None:
    plan = {"data": 16, "expert": 8, "global_batch": 64}
    for beside in (True, False):
        free, slowed = (
            step(
                **plan, overlap__moe_a2a=beside, overlap__contention=slows, overlap__gradients=False
            )
            for slows in (False, True)
        )
        assert slowed.traffic_bytes == free.traffic_bytes
        if beside:
            assert free.step_time_s < slowed.step_time_s < 1.3 * free.step_time_s
        else:  # nothing does
            assert slowed.step_time_s == pytest.approx(free.step_time_s, rel=1e-9)
