"""Faster hardware is never slower, and no cut that a plan can name is faster than its own."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from check_faster import PARTS, check, faster, step_s
from ridgeline.hardware import load_cluster
from ridgeline.parallel.plan.plan import Plan
from ridgeline.simulation import simulate
from ridgeline.workload.files import load_model


def test_a_sample_of_random_plans_on_shipped_machines() -> None:
    """A fixed sample of ``benchmarks/check_faster.py``."""
    assert check(6, 2) == 0


PLAN = Plan(data=2, pipeline=4, micro_batch=8, global_batch=256)


@functools.cache
def on_a_dgx1_s(schedule: str, balance: str) -> float:
    own = {"stage_balance": balance} if balance else {}
    plan = PLAN.model_copy(update={"schedule": schedule, **own})
    return step_s(load_model("resnet50"), load_cluster("dgx1-v100"), plan)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("part", PARTS)
def test_stages_whose_messages_cross_slow_links(schedule: str, part: str) -> None:
    """Of the four stages of each replica on a DGX-1, two send over links of unequal speed."""
    before_s = on_a_dgx1_s(schedule, "")
    plan = PLAN.model_copy(update={"schedule": schedule})
    assert step_s(load_model("resnet50"), faster("dgx1-v100", part, 1.5), plan) < before_s
    for balance in ("layers", "ends"):
        assert before_s <= on_a_dgx1_s(schedule, balance) * (1 + 1e-9)


def test_a_slower_cut_of_a_plan_is_told() -> None:
    plan = Plan(data=2, pipeline=4, micro_batch=8, global_batch=256)
    network, cluster = load_model("resnet50"), load_cluster("dgx1-v100")

    def notes(balance: str) -> list[str]:
        asked = plan.model_copy(update={"stage_balance": balance})
        found = simulate(network, cluster, asked, software="ideal").manifest["notes"]
        return [note for note in found if "stage_balance" in note]

    assert notes("even") == notes("layers") == []
    (told,) = notes("ends")
    assert "stage_balance=ends" in told
    assert "about 16% sooner" in told  # 173.8 ms against 204.2 ms played


@pytest.mark.parametrize(
    ("model", "machine", "fields"),
    [
        ("unet", "pcie4-8gpu", {"pipeline": 4, "global_batch": 16}),
        ("resnet50", "pcie3-8gpu", {"data": 2, "pipeline": 4, "global_batch": 64}),
        ("t5-small", "pcie3-8gpu", {"pipeline": 4, "global_batch": 8, "schedule": "gpipe"}),
    ],
)
def test_where_messages_count_no_named_cut_is_faster(
    model: str, machine: str, fields: dict[str, Any]
) -> None:
    """Messages that share links, and those of skip connections, are played and not estimated."""
    network, cluster = load_model(model), load_cluster(machine)
    own = simulate(network, cluster, Plan(micro_batch=1, **fields), software="ideal")
    assert own.details.lowered.crowded_share > 0 or own.details.lowered.cut_as
    for balance in ("layers", "ends"):
        named = Plan(micro_batch=1, stage_balance=balance, **fields)
        other = simulate(network, cluster, named, software="ideal")
        assert own.step_time_s <= other.step_time_s * (1 + 1e-9)
        if own.details.lowered.cut_as == balance:
            assert own.step_time_s == other.step_time_s
            (told,) = (n for n in own.manifest["notes"] if "stage_balance" in n)
            assert f"as by stage_balance={balance}" in told


def test_a_named_cut_that_does_not_fit_is_told_of_one_that_does() -> None:
    network = load_model("gpt2")
    fields = {"data": 2, "pipeline": 4, "micro_batch": 2, "global_batch": 32, "zero_stage": 1}

    def notes(balance: str, size: str) -> tuple[bool, list[str]]:
        cluster = load_cluster("dgx-a100", {"device.memory.hbm.capacity": size})
        plan = Plan(stage_balance=balance, **fields)
        found = simulate(network, cluster, plan, software="ideal")
        return found.fits, [n for n in found.manifest["notes"] if "do not fit" in n]

    assert notes("even", "1.5 GB") == (True, [])
    fits, (told,) = notes("ends", "1.5 GB")
    assert not fits
    assert "stage_balance=ends" in told
    assert "about 86% of" in told  # 1.29 GB of 1.5
    assert notes("ends", "80 GB") == (True, [])
    assert notes("ends", "0.5 GB") == (False, [])  # nor does any other cut
