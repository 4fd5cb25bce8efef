"""Local steps: traffic and time against synchronous training and by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

import ridgeline as rl
from ridgeline.errors import ConfigError
from ridgeline.training.local_steps import local_round
from ridgeline.training.run_file import LocalSteps, point_of, read_run

FILE = Path(__file__).parents[2] / "docs" / "examples" / "runs" / "diloco.yaml"
SMALL = {
    "model": "gpt2", "plan.data": 8, "plan.tensor": 1, "plan.batch": 64, "plan.recompute": "none",
}  # fmt: skip


def rounds(every: int, **settings: object) -> tuple[float, float, float]:
    run = read_run(FILE, SMALL)
    point = point_of(run)
    step = point.simulate()
    local = LocalSteps.model_validate({"every": every, **settings})
    found = local_round(point, step, local)
    return found.mean_step_s, found.sent_bytes / every, step.step_time_s


def test_traffic_falls_as_one_over_the_steps() -> None:
    """DiLoCo's 500 times: the bytes of a step are a five-hundredth."""
    once, often = rounds(1)[1], rounds(500)[1]
    assert once / often == pytest.approx(500)


def test_one_step_is_as_long_as_synchronous_training_but_for_the_outer_optimizer() -> None:
    mean_s, _, synchronous_s = rounds(1)
    assert synchronous_s <= mean_s <= 1.2 * synchronous_s
    assert rounds(2)[0] < mean_s
    assert rounds(500)[0] < rounds(2)[0]


def test_islands_by_hand() -> None:
    """Eight replicas of GPT-2 over 1 Gb/s: 2 x 7/8 of 498 MB, and 14 messages."""
    slow, _, _ = rounds(100, bandwidth="0.125 GB/s", latency="50 ms")
    fast, _, _ = rounds(100, bandwidth="1000 GB/s", latency="0 s")
    sent = 2 * 7 / 8 * 4 * rl.load_model("gpt2").training(1).parameters
    assert slow - fast == pytest.approx((sent / 0.125e9 + 14 * 0.05) / 100, rel=1e-3)


def test_one_replica_has_nobody_to_exchange_with() -> None:
    run = read_run(FILE, {**SMALL, "plan.data": 1, "plan.batch": 8})
    point = point_of(run)
    with pytest.raises(ConfigError, match="several replicas"):
        local_round(point, point.simulate(), LocalSteps(every=10))
