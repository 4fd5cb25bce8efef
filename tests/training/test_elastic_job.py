"""Jobs that shrink, wait in a queue or give way: by hand, and what they must conserve."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.errors import ConfigError
from ridgeline.study.point import Point
from ridgeline.training import goodput
from ridgeline.training.elastic_job import smaller_jobs
from ridgeline.training.run_file import Elastic
from ridgeline.training.steps import StepPhase, StepTimes
from ridgeline.training.storage import CheckpointTimes
from ridgeline.training.train import train
from ridgeline.training.training_loop import TrainingLoop

from .loops import run_of

RUN = """\
kind: run
name: r
model: lenet5
cluster: big-basin-p100-50gbe
plan: {data: 32, batch: 1024, precision: fp32}
step: {time: 1 s, source: test}
target: {steps: 5000}
checkpoint: {every: 100, save_time: 5 s}
"""
FAILING = "failures: {any: {per_1000_node_days: 5000}}\n"
HOUR_S = 3600.0


def loop_of(smaller: dict[int, float], seed: int, **fields: object) -> TrainingLoop:
    """Four nodes, steps of 10 s, a save of 2 s every 50 steps."""
    loop = TrainingLoop(
        run_of(**fields),
        StepTimes((StepPhase(2000, 10.0),)),
        nodes=4,
        workers=4,
        saving=(CheckpointTimes(1e9, 2.0, 2.0, 3.0), 50),
        smaller=smaller,
        seed=seed,
    )
    loop.play()
    return loop


def test_what_a_smaller_job_trains() -> None:
    """Replicas keep their share, so a job of 24 of 32 needs 4/3 of its steps."""
    point = Point(
        "lenet5", "big-basin-p100-50gbe", {"data": 32, "global_batch": 1024, "precision": "fp32"}
    )
    whole = point.simulate()
    found = smaller_jobs(point, whole, Elastic(least=9))
    assert list(found) == [1, 2]
    small = Point(
        "lenet5", "big-basin-p100-50gbe", {"data": 16, "global_batch": 512, "precision": "fp32"}
    ).simulate()
    assert found[2] == pytest.approx(2 * small.step_time_s / whole.step_time_s)
    with pytest.raises(ConfigError, match="a smaller one has fewer"):
        smaller_jobs(point, whole, Elastic(least=32))
    with pytest.raises(ConfigError, match="without one of its nodes has 24"):
        smaller_jobs(point, whole, Elastic(least=25))


def test_a_job_shrinks_instead_of_waiting_and_grows_again() -> None:
    """One failure: 10 min to notice, a restart with three nodes, 2 h until the fourth is back."""
    fields = {
        "failures": {"any": {"per_1000_node_days": 8_000}},
        "recovery": {"detection": "1 min", "restart": "1 min", "repair": "2 h"},
    }
    for seed in range(3):
        loop = loop_of({1: 1.5, 2: 2.2, 3: 4.0}, seed, **fields)
        waits = loop_of({}, seed, **fields)
        assert loop.account.total_s == pytest.approx(loop.wall_s)
        assert loop.account.seconds[goodput.PRODUCTIVE] == pytest.approx(20_000.0)
        assert loop.account.seconds[goodput.SMALLER] > 0
        assert waits.account.seconds[goodput.SMALLER] == 0
        assert loop.wall_s < waits.wall_s
        assert loop.account.seconds[goodput.SPARES] < waits.account.seconds[goodput.SPARES]
        small = [of for of in loop.spans if of.power_share in (0.75, 0.5, 0.25)]
        assert small


def test_one_missing_node_by_hand() -> None:
    """Nodes fail near 20,000 s and stay away: what is left takes as many times as long."""
    loop = loop_of(
        {1: 1.5, 2: 3.0, 3: 9.0},
        0,
        failures={"any": {"per_1000_node_days": 1e6 * 86400 / 20_000 / 1000, "shape": 20.0}},
        recovery={"repair": "30 day", "restart": "1 min"},
    )
    stops = sorted(failure.time_s for failure in loop.failures)
    assert len(stops) == 4 or loop.wall_s < 60_000
    seconds = loop.account.seconds
    assert loop.account.total_s == pytest.approx(loop.wall_s)
    by_missing = {0: 1.0, 1: 1.5, 2: 3.0, 3: 9.0}
    trained = [of for of in loop.spans if of.category == goodput.PRODUCTIVE]
    steps_s = sum(
        (of.end_s - of.start_s) / by_missing[round(4 * (1 - of.power_share))] for of in trained
    )
    lost_s = (
        sum((of.end_s - of.start_s) for of in trained)
        - seconds[goodput.PRODUCTIVE]
        - seconds[goodput.SMALLER]
    )
    assert steps_s >= 20_000.0
    assert steps_s - 20_000.0 <= lost_s + 1e-6


def test_preemption_with_notice_loses_no_work() -> None:
    preempted = {"every": "1 h", "time": "10 min"}
    warned = loop_of({}, 3, preemption={**preempted, "notice": "2 min"})
    sudden = loop_of({}, 3, preemption=preempted)
    assert warned.lost_steps == 0
    assert sudden.lost_steps > 0
    assert warned.restarts == pytest.approx(warned.wall_s / (1.1667 * HOUR_S), abs=8)
    for loop in (warned, sudden):
        assert loop.account.seconds[goodput.PREEMPTED] >= 600.0 * (loop.restarts - 1)
        away = [of for of in loop.spans if of.category == goodput.PREEMPTED]
        assert all(of.power_share == 0.0 for of in away)
        assert loop.account.total_s == pytest.approx(loop.wall_s)


def test_a_job_in_the_queue_pays_no_rent(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    text = RUN + FAILING + "facility: {device_hour: 1 USD/h}\nrecovery: {spares: 4%s}\n"
    path.write_text(text % ", requeue: 30 min")
    found = train(path)
    (of,) = found.outcomes
    held_s = of.wall_s - of.time_s[goodput.QUEUED]
    assert of.restarts
    assert of.time_s[goodput.QUEUED] == pytest.approx(1800.0 * of.restarts)
    assert of.footprint.device_hours == pytest.approx(32 * held_s / HOUR_S)
    assert of.footprint.rent_usd == pytest.approx(of.footprint.device_hours)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("recovery: {elastic: {least: 0}}", "recovery.elastic.least"),
        ("recovery: {elastic: {least: 32}}", "recovery.elastic.least: the job has 32 replicas"),
        ("recovery: {elastic: {least: 30}}", "recovery.elastic.least: a job without one"),
        ("recovery: {elastic: {leats: 3}}", "did you mean 'least'"),
        ("recovery: {elastic: {least: 8}}\nramp: {start: 64, samples: 1000}", "recovery.elastic"),
        ("recovery: {requeue: -1 s}", "recovery.requeue"),
        ("preemption: {every: 0 s, time: 1 s}", "preemption.every"),
        ("preemption: {time: 1 s}", "preemption"),
        ("preemption: {every: 1 s, time: 1 s}", "preemption.every: 110 s of work are needed"),
        ("preemption: {every: 0.3 s, time: 1 s, notice: 9 s}", "preemption.every: 11 s of work"),
        ("preemption: {every: 1 h, time: 1}", "preemption.time"),
    ],
)
def test_bad_elasticity(tmp_path: Path, given: str, says: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(RUN + given + "\n")
    with pytest.raises(ConfigError) as error:
        train(path)
    assert says in str(error.value)
    assert str(path) in str(error.value)
