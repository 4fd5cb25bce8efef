"""Faster hardware is never slower, and no cut that a plan can name is faster than its own."""

from __future__ import annotations

import pytest

from check_faster import PARTS, check, faster, step_s
from ridgeline.hardware import load_cluster
from ridgeline.parallel.plan.plan import Plan
from ridgeline.simulation import simulate
from ridgeline.workload.files import load_model


def test_a_sample_of_random_plans_on_shipped_machines() -> None:
    """A fixed sample of ``benchmarks/check_faster.py``."""
    assert check(6, 2) == 0


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("part", PARTS)
def test_stages_whose_messages_cross_slow_links(schedule: str, part: str) -> None:
    """Of the four stages of each replica on a DGX-1, two send over links of unequal speed."""
    plan = Plan(data=2, pipeline=4, schedule=schedule, micro_batch=8, global_batch=256)
    network = load_model("resnet50")
    before_s = step_s(network, load_cluster("dgx1-v100"), plan)
    assert step_s(network, faster("dgx1-v100", part, 1.5), plan) < before_s
    for balance in ("layers", "ends"):
        other = plan.model_copy(update={"stage_balance": balance})
        assert before_s <= step_s(network, load_cluster("dgx1-v100"), other) * (1 + 1e-9)


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
