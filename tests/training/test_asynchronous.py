"""Asynchronous training against closed forms of staleness and throughput."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.training.loops import expected_largest_exponential

from ridgeline.errors import RidgelineError
from ridgeline.training.asynchronous import AsynchronousTraining, simulate_asynchronous


@pytest.mark.parametrize("workers", [1, 2, 8, 64, 500])
def test_mean_staleness_is_the_number_of_other_workers(workers: int) -> None:
    found = simulate_asynchronous(workers, 60 * workers + 20_000, gradient_s=0.2)
    assert found.mean_staleness == pytest.approx(workers - 1, rel=0.05)
    assert found.updates_per_s == pytest.approx(workers / 0.2, rel=0.05)


def test_workers_in_step_take_the_longest_of_their_times() -> None:
    """A bound of 0: N gradients in the time of the slowest, H_N for exponential times."""
    found = simulate_asynchronous(16, 32_000, gradient_s=1.0, bound=0)
    rounds = found.updates / 16
    assert found.time_s / rounds == pytest.approx(expected_largest_exponential(16), rel=0.02)
    assert max(found.staleness) <= 15


@settings(max_examples=25, deadline=None)
@given(
    workers=st.integers(1, 12), bound=st.integers(0, 5), seed=st.integers(0, 99),
    service=st.sampled_from(["exponential", "constant", "lognormal", "uniform"]),
)  # fmt: skip
def test_no_worker_is_ahead_of_its_bound(workers: int, bound: int, seed: int, service: str) -> None:
    training = AsynchronousTraining(
        workers, gradient_s=1.0, service=service, bound=bound, seed=seed, slow={0: 3.0},  # type: ignore[arg-type]
    )  # fmt: skip
    found = training.play(400)
    # Between two updates of the slowest, each other worker delivers bound + 1 gradients at most.
    assert max(found.staleness) <= (workers - 1) * (2 * bound + 1)
    assert sum(found.staleness.values()) == found.updates == 400
    assert 0.0 <= found.waited_s <= workers * found.time_s
    free = simulate_asynchronous(
        workers, 400, gradient_s=1.0, service=service, seed=seed, slow={0: 3.0}
    )
    assert free.waited_s == 0.0


def test_a_server_that_is_too_slow_sets_the_pace_and_shards_help() -> None:
    one = simulate_asynchronous(100, 20_000, gradient_s=1.0, apply_s=0.02)
    assert one.updates_per_s == pytest.approx(50.0, rel=0.02)
    assert one.server_busy > 0.99
    four = simulate_asynchronous(100, 20_000, gradient_s=1.0, apply_s=0.02, shards=4)
    assert four.updates_per_s == pytest.approx(99.0, rel=0.05)


def test_local_steps_send_less_often() -> None:
    often = simulate_asynchronous(8, 8000, gradient_s=1.0, push_s=0.5, pull_s=0.5)
    seldom = simulate_asynchronous(8, 800, gradient_s=1.0, push_s=0.5, pull_s=0.5, local_steps=10)
    assert often.updates_per_s == pytest.approx(8 / 2.0, rel=0.03)
    assert 10 * seldom.updates_per_s == pytest.approx(8 * 10 / 11.0, rel=0.03)


def test_the_same_seed_gives_the_same_bytes() -> None:
    a, b = (simulate_asynchronous(10, 3000, gradient_s=1.0, seed=5) for _ in range(2))
    assert a == b


@pytest.mark.parametrize(
    "bad",
    [{"workers": 0}, {"gradient_s": 0.0}, {"shards": 0}, {"bound": -1}, {"push_s": -1.0},
     {"local_steps": 0}, {"updates": 0}],
)  # fmt: skip
def test_settings_that_are_none(bad: dict[str, float]) -> None:
    settings_ = {"workers": 2, "updates": 5, "gradient_s": 1.0, **bad}
    with pytest.raises(RidgelineError):
        simulate_asynchronous(**settings_)  # type: ignore[arg-type]
