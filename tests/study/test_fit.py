"""What would make a plan fit: each change is checked by simulating it, and none smaller does."""

from __future__ import annotations

import functools

import pytest

from ridgeline.errors import RidgelineError
from ridgeline.hardware.load import load_cluster
from ridgeline.parallel import size
from ridgeline.parallel.plan.plan import Plan
from ridgeline.report.result import Result
from ridgeline.simulation import simulate
from ridgeline.study import fitting_plan
from ridgeline.study.fitting_plan import Advice, Remedy, what_would_fit

CASES = {
    "micro-batch": ("resnet18", "dgx1-v100", {"data": 2, "global_batch": 512}, "700 MB"),
    "transformer": ("bert-base", "selene-a100", {"data": 4, "global_batch": 32}, "5 GB"),
    "together": ("gpt2", "selene-a100", {"data": 2, "global_batch": 4, "micro_batch": 2}, "1.2 GB"),
    "more devices": ("gpt2", "selene-a100", {"global_batch": 1}, "700 MB"),
    "many micro-batches": ("mlp", "dgx1-v100", {"global_batch": 2**15}, "10 MB"),
    "none": ("mlp", "dgx1-v100", {"global_batch": 8}, "30 kB"),
}


@functools.cache
def full(case: str) -> Result:
    model, name, fields, capacity = CASES[case]
    cluster = load_cluster(name, {"device.memory.hbm.capacity": capacity})
    return simulate(model, cluster, Plan(**fields))  # type: ignore[arg-type]


@functools.cache
def advised(case: str) -> Advice:
    return what_would_fit(full(case))


def with_changes(result: Result, **changes: str | int) -> Result:
    details = result.details
    stated = CASES[next(case for case in CASES if full(case) is result)][2]
    plan = Plan(**{**stated, "precision": details.plan.precision, **changes})  # type: ignore[arg-type]
    return simulate(details.model, details.cluster, plan)


@pytest.mark.parametrize("case", [case for case in CASES if case != "none"])
def test_what_is_said_to_fit_does(case: str) -> None:
    result = full(case)
    assert not result.fits
    advice = advised(case)
    assert advice.remedies
    for remedy in advice.remedies:
        tried = with_changes(result, **remedy.changes)
        assert tried.fits
        assert tried.memory_bytes["total"] == remedy.memory_bytes
        assert tried.step_time_s == pytest.approx(remedy.step_time_s, rel=1e-12)
        assert tried.details.plan.devices == remedy.devices
    order = [(len(r.changes), r.devices, r.step_time_s) for r in advice.remedies]
    assert order == sorted(order)
    words = list(advice.lines())
    assert len(words) == len(advice.remedies)
    assert all("would fit" in line for line in words)


def test_of_one_kind_of_change_the_smallest_is_told() -> None:
    single = [r for r in advised("transformer").remedies if len(r.changes) == 1]
    assert single
    smaller = {
        "micro_batch": [m for m in (1, 2, 4) if m > one(single, "micro_batch", 8)],
        "zero_stage": [s for s in (1, 2, 3) if s < one(single, "zero_stage", 0)],
    }
    for name, values in smaller.items():
        for value in values:
            assert not with_changes(full("transformer"), **{name: value}).fits


def one(remedies: list[Remedy], name: str, otherwise: int) -> int:
    found = [int(r.changes[name]) for r in remedies if set(r.changes) == {name}]
    return found[0] if found else otherwise


def test_several_changes_are_taken_together_where_one_is_not_enough() -> None:
    advice = advised("together")
    assert min(len(r.changes) for r in advice.remedies) > 1
    for name, values in {
        "recompute": ["selective", "full", "sqrt"], "zero_stage": [1, 2, 3], "micro_batch": [1],
        "offload": ["all"],
    }.items():  # fmt: skip
        for value in values:
            try:
                assert not with_changes(full("together"), **{name: value}).fits
            except RidgelineError:
                continue


def test_more_devices_are_named_where_the_same_are_too_few() -> None:
    advice = advised("more devices")
    assert min(r.devices for r in advice.remedies) > full("more devices").details.plan.devices


def test_what_memory_it_takes_is_said_where_nothing_fits() -> None:
    advice = advised("none")
    assert not advice.remedies
    assert advice.least is not None
    (text,) = advice.lines()
    assert "instead of 29.30 KiB" in text


def test_micro_batches_too_many_to_play_do_not_end_the_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is said to be least fits on no device that has as much, whatever was tried."""
    advice = advised("many micro-batches")
    assert {"micro_batch"} in [set(remedy.changes) for remedy in advice.remedies]
    result = full("many micro-batches")
    samples = result.details.plan.global_batch
    tasks = len(result.details.lowered.graph.ops) * samples
    monkeypatch.setattr(size, "MOST_BYTES", size.TASK_BYTES * tasks / 8)
    with pytest.raises(RidgelineError, match="micro-batches a step") as refused:
        with_changes(result, micro_batch=1)
    assert "devices" not in str(refused.value)
    enough = int(str(refused.value).partition("use micro_batch=")[2].split()[0])
    with_changes(result, micro_batch=enough)
    with pytest.raises(RidgelineError, match="micro-batches a step"):
        with_changes(result, micro_batch=enough // 2)
    assert what_would_fit(result) == advice


def test_a_pipeline_is_tried_with_as_small_micro_batches_as_can_be_played(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = load_cluster("selene-a100", {"device.memory.hbm.capacity": "1 MB"})
    fields = {"pipeline": 2, "global_batch": 8, "micro_batch": 8}
    result = simulate("gpt2", cluster, Plan(**fields))  # type: ignore[arg-type]
    tasks = result.details.lowered.program.n_tasks
    monkeypatch.setattr(fitting_plan, "_MOST_TASKS", 2 * tasks)
    advice = what_would_fit(result)
    assert advice.untried
    assert not advice.remedies
    assert advice.least is not None
    assert advice.least.changes.get("micro_batch", 8) == 4
    assert "smaller micro-batches were not tried" in list(advice.lines())[-1]
