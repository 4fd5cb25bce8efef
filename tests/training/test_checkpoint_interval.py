"""Closed forms of checkpoint intervals, against a search of the minimum and played runs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.training.loops import loop_of, run_of

from ridgeline.errors import RidgelineError
from ridgeline.training.checkpoint_interval import (
    daly_interval_s,
    expected_wall_time_s,
    young_interval_s,
)
from ridgeline.training.goodput import LOST_WORK, SAVE
from thoroughly import further

MINUTES, HOURS, DAYS = 60.0, 3600.0, 86400.0


@given(
    save_s=st.floats(1.0, 600.0), between_s=st.floats(1800.0, 1e6), restart_s=st.floats(0.0, 900.0)
)
def test_daly_is_within_a_percent_of_the_best_wall_time(
    save_s: float, between_s: float, restart_s: float
) -> None:
    intervals = np.geomspace(save_s / 10, 20 * between_s, 4000)
    times = [expected_wall_time_s(1.0, t, save_s, restart_s, between_s) for t in intervals]
    found = expected_wall_time_s(
        1.0, daly_interval_s(save_s, between_s), save_s, restart_s, between_s
    )
    assert found <= 1.01 * min(times)


@given(save_s=st.floats(0.1, 10.0), between_s=st.floats(1e4, 1e7))
def test_young_is_the_minimum_of_small_losses(save_s: float, between_s: float) -> None:
    def lost(interval_s: float) -> float:  # saves, and half a stretch of work at each failure
        return save_s / interval_s + interval_s / 2 / between_s

    best = young_interval_s(save_s, between_s)
    for other in (0.5 * best, 0.9 * best, 1.1 * best, 2.0 * best):
        assert lost(other) > lost(best)


def test_published_intervals() -> None:
    assert young_interval_s(40.0, 168 * HOURS) / HOURS == pytest.approx(1.93, abs=0.01)  # BLOOM
    assert daly_interval_s(100.0, 40.0) == 40.0  # a save longer than two failures apart


@pytest.mark.parametrize("runs", [100, *further(300)])
def test_played_runs_take_what_daly_expects(runs: int) -> None:
    """Mean over runs, exponential failures, saves of a minute: within three standard errors."""
    save_s, restart_s, between_s, interval_steps = MINUTES, 5 * MINUTES, 6 * HOURS, 360
    run = run_of(
        checkpoint={"every": interval_steps, "save_time": "60 s", "restore_time": "0 s"},
        failures={"any": {"per_1000_node_days": 1000 * DAYS / between_s, "replaces_node": False}},
        recovery={"restart": "5 min"},
    )
    steps = 100 * interval_steps  # of 10 s: 100 hours
    walls = np.array([loop_of(run, steps=steps, seed=k).wall_s for k in range(runs)])
    expected = expected_wall_time_s(
        steps * 10.0, interval_steps * 10.0, save_s, restart_s, between_s
    )
    error = walls.std() / math.sqrt(len(walls))
    # The last stretch has no save, which Daly counts.
    assert abs(walls.mean() - (expected - save_s)) < 3 * error
    assert error / expected < 0.005


@pytest.mark.parametrize("seeds", [20, *further(60)])
def test_the_best_played_interval_is_dalys_within_ten_percent_of_the_time_lost(seeds: int) -> None:
    save_s, between_s = 2 * MINUTES, 8 * HOURS
    best = round(daly_interval_s(save_s, between_s) / 10.0)

    def lost(every: int) -> float:
        run = run_of(
            checkpoint={"every": every, "save_time": "120 s", "restore_time": "0 s"},
            failures={"any": {"per_1000_node_days": 1000 * DAYS / between_s}},
            recovery={"spares": 1000},
        )
        played = [loop_of(run, steps=30_000, seed=seed) for seed in range(seeds)]
        return sum(p.account.seconds[SAVE] + p.account.seconds[LOST_WORK] for p in played)

    around = {share: lost(round(best * share)) for share in (0.25, 0.5, 1.0, 2.0, 4.0)}
    assert around[1.0] <= 1.1 * min(around.values())
    assert around[0.25] > around[1.0] < around[4.0]


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan])
def test_times_that_are_none(bad: float) -> None:
    with pytest.raises(RidgelineError):
        young_interval_s(bad, 10.0)
    with pytest.raises(RidgelineError):
        daly_interval_s(10.0, bad)
    with pytest.raises(RidgelineError):
        expected_wall_time_s(1.0, bad, 1.0, 0.0, 1.0)
