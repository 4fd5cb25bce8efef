"""Properties of played runs: time is conserved, work is done once, chance is repeatable."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.training.loops import STEP_S, loop_of, run_of

from ridgeline.training import goodput
from ridgeline.training.failures import Failure
from thoroughly import sample_of

DAY_S = 86400.0


@st.composite
def runs(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a run in which much goes wrong."""
    fields: dict[str, Any] = {"failures": {}}
    mode = draw(st.sampled_from(["synchronous", "asynchronous", "in-memory"]))
    fields["checkpoint"] = {
        "every": draw(st.integers(1, 200)),
        "save_time": f"{draw(st.integers(0, 900))} s",
        "mode": mode,
    }
    for name in draw(st.lists(st.sampled_from(["a", "b", "c"]), unique=True)):
        cause: dict[str, Any] = {
            "per_1000_node_days": draw(st.floats(10.0, 4000.0)),
            "shape": draw(st.sampled_from([1.0, 0.7, 1.5])),
            "detection": f"{draw(st.integers(0, 4000))} s",
            "replaces_node": draw(st.booleans()),
        }
        if draw(st.booleans()):
            cause |= {"effect": "slow", "factor": draw(st.floats(1.01, 3.0))}
        fields["failures"][name] = cause
    fields["recovery"] = {
        "restart": f"{draw(st.integers(0, 900))} s",
        "spares": draw(st.integers(0, 3)),
        "repair": "2 h",
    }
    if draw(st.booleans()):
        fields["evaluation"] = {"every": draw(st.integers(1, 300)), "time": "90 s"}
    if draw(st.booleans()):
        fields["maintenance"] = {"every": "5 h", "time": "20 min"}
    if draw(st.booleans()):
        fields["curtailment"] = {
            "start": "17 h", "duration": "3 h", "slower": 1.5, "power": 0.6,
        }  # fmt: skip
    if draw(st.booleans()):
        fields["stragglers"] = {"jitter": {"distribution": "exponential", "spread": 0.05}}
    return fields


@sample_of(15, 60, fields=runs(), seed=st.integers(0, 1000), nodes=st.integers(1, 6))
def test_time_is_conserved_and_spans_cover_the_run(
    fields: dict[str, Any], seed: int, nodes: int
) -> None:
    steps = 2000
    loop = loop_of(run_of(**fields), steps=steps, seed=seed, nodes=nodes, workers=4)
    account = loop.account.ordered()
    assert loop.done == steps
    assert math.isclose(sum(account.values()), loop.wall_s, rel_tol=1e-9)
    assert all(time_s >= -1e-6 for time_s in account.values()), account
    assert math.isclose(account[goodput.PRODUCTIVE], steps * STEP_S, rel_tol=1e-9)
    ends = [0.0]
    for span in loop.spans:
        assert math.isclose(span.start_s, ends[-1], rel_tol=1e-12, abs_tol=1e-6)
        assert span.end_s > span.start_s
        ends.append(span.end_s)
    assert math.isclose(ends[-1], loop.wall_s, rel_tol=1e-12, abs_tol=1e-6)


@settings(max_examples=20, deadline=None)
@given(fields=runs(), seed=st.integers(0, 1000))
def test_the_same_seed_gives_the_same_run(fields: dict[str, Any], seed: int) -> None:
    a, b = (loop_of(run_of(**fields), steps=500, seed=seed, nodes=3) for _ in range(2))
    assert a.spans == b.spans
    assert a.failures == b.failures


def test_nothing_goes_wrong() -> None:
    loop = loop_of(run_of(start_up="1 min"), steps=100)
    assert loop.wall_s == 100 * STEP_S + 60.0
    assert loop.account.ordered()[goodput.START_UP] == 60.0
    assert (loop.saves, loop.restarts, loop.lost_steps) == (0, 0, 0)


def test_saves_and_evaluations_by_hand() -> None:
    run = run_of(
        checkpoint={"every": 10, "save_time": "5 s"}, evaluation={"every": 25, "time": "7 s"}
    )
    loop = loop_of(run, steps=100)
    # The last step is neither saved nor evaluated: the run has ended.
    assert loop.saves == 9
    assert loop.wall_s == 1000.0 + 9 * 5.0 + 3 * 7.0


def test_a_write_beside_the_steps_stops_them_only_for_the_copy() -> None:
    run = run_of(checkpoint={"every": 10, "save_time": "50 s", "mode": "asynchronous"})
    assert loop_of(run, steps=100).wall_s == 1000.0 + 9 * 5.0
    # A write that takes longer than the work between two saves makes the next one wait.
    run = run_of(checkpoint={"every": 1, "save_time": "50 s", "mode": "asynchronous"})
    assert loop_of(run, steps=10).wall_s == pytest.approx(100.0 + 9 * 5.0 + 8 * 35.0)


def test_failures_come_at_their_rate_by_cause() -> None:
    """Poisson counts: within four standard deviations, nodes and causes adding up."""
    rates = {"a": 400.0, "b": 100.0, "c": 250.0}
    run = run_of(
        checkpoint={"every": 100, "save_time": "0 s"},
        failures={name: {"per_1000_node_days": rate} for name, rate in rates.items()}
        | {"old": {"per_1000_node_days": 200.0, "shape": 0.6}},
        recovery={"spares": 100_000},
    )
    loop = loop_of(run, steps=300_000, nodes=20)
    days = loop.wall_s / DAY_S
    counted = Counter(failure.cause for failure in loop.failures)
    for name, rate in (rates | {"old": 200.0}).items():
        expected = rate / 1000 * 20 * days
        wide = 4.0 if name != "old" else 8.0  # a Weibull source is burstier than a Poisson one
        assert abs(counted[name] - expected) < wide * math.sqrt(expected), name
    nodes = Counter(failure.node for failure in loop.failures)
    assert set(nodes) == set(range(20))


def test_a_job_without_spares_waits_for_the_repair() -> None:
    fields: dict[str, Any] = {
        "checkpoint": {"every": 100, "save_time": "0 s"},
        "failures": {"any": {"per_1000_node_days": 500.0}},
    }
    none = loop_of(run_of(**fields, recovery={"repair": "3 h"}), steps=100_000)
    some = loop_of(run_of(**fields, recovery={"repair": "3 h", "spares": 3}), steps=100_000)
    waited = none.account.ordered()[goodput.SPARES]
    assert len(none.failures) > 4
    assert waited == pytest.approx(_covered(none.failures, 3 * 3600.0))
    assert some.account.ordered()[goodput.SPARES] < 0.1 * waited


def test_a_silent_slow_down_lasts_until_it_is_found() -> None:
    run = run_of(
        checkpoint={"every": 100, "save_time": "0 s"},
        failures={
            "hot": {"per_1000_node_days": 300.0, "effect": "slow", "factor": 1.25,
                    "detection": "4 h", "replaces_node": False},
        },
    )  # fmt: skip
    loop = loop_of(run, steps=300_000)
    slow_s = loop.account.ordered()[goodput.SLOWDOWN]
    assert len(loop.failures) > 4
    # At 1.25 times the time, a fifth of it is what the slow-down takes.
    # The step that a repair cuts off is lost, slow or not.
    cut_s = 0.25 * STEP_S * len(loop.failures)
    assert slow_s == pytest.approx(0.2 * _covered(loop.failures, 4 * 3600.0), abs=cut_s)
    assert loop.lost_steps == 0


def _covered(failures: Sequence[Failure], length_s: float) -> float:
    """Return the time that stretches of a length after each failure cover together."""
    covered = end_s = 0.0
    for failure in failures:
        begin_s = max(failure.time_s, end_s)
        end_s = failure.time_s + length_s
        covered += end_s - begin_s
    return covered


def test_curtailed_power_slows_by_the_hour_of_day() -> None:
    run = run_of(
        curtailment={"start": "17 h", "duration": "3 h", "slower": 1.5, "power": 0.6},
        facility={"start_hour": 16.0},
    )
    loop = loop_of(run, steps=8640 * 3)
    curtailed = [span for span in loop.spans if span.power_share < 1]
    assert curtailed[0].start_s == 3600.0
    assert curtailed[0].end_s == 4 * 3600.0
    assert loop.account.ordered()[goodput.CURTAILED] == pytest.approx(len(curtailed) * 3600.0)


def test_a_hundred_days_of_sixteen_thousand_devices() -> None:
    """500 failures on 2,048 nodes: the account holds, and few events are needed."""
    run = run_of(
        checkpoint={"every": 60, "save_time": "30 s"},
        failures={"any": {"per_1000_node_days": 500 / (100 * 2.048)}},
        recovery={"detection": "5 min", "restart": "5 min", "spares": 64, "repair": "2 day"},
    )
    loop = loop_of(run, steps=round(100 * DAY_S / STEP_S), nodes=2048)
    assert 400 < len(loop.failures) < 650
    assert len(loop.spans) < 40_000
    assert np.isclose(sum(loop.account.ordered().values()), loop.wall_s)
