"""Hogwild, gossip and elastic averaging against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ridgeline.errors import RidgelineError
from ridgeline.training.elastic_averaging import round_contraction, simulate_elastic_averaging
from ridgeline.training.gossip import simulate_gossip
from ridgeline.training.hogwild import simulate_hogwild


def repairman(threads: int, gradient_s: float, memory_s: float) -> float:
    """Updates a second of the machine-repairman queue with one channel."""
    ratio = memory_s / gradient_s
    terms = [math.perm(threads, k) * ratio**k for k in range(threads + 1)]
    return (1.0 - 1.0 / sum(terms)) / memory_s


@pytest.mark.parametrize(("threads", "memory_s"), [(2, 0.5), (8, 0.02), (8, 0.2), (32, 0.1)])
def test_threads_on_one_memory_are_the_repairman_queue(threads: int, memory_s: float) -> None:
    found = simulate_hogwild(threads, 8_000, gradient_s=1.0, memory_s=memory_s)
    assert found.updates_per_s == pytest.approx(repairman(threads, 1.0, memory_s), rel=0.05)
    assert found.server_busy == pytest.approx(found.updates_per_s * memory_s, rel=0.05)


@pytest.mark.parametrize("service", ["constant", "uniform", "exponential", "lognormal"])
def test_mean_staleness_is_one_less_than_the_threads_by_little(service: str) -> None:
    found = simulate_hogwild(
        12, 8_000, gradient_s=1.0, memory_s=0.05, channels=2, service=service  # type: ignore[arg-type]
    )  # fmt: skip
    assert found.mean_staleness == pytest.approx(11.0, rel=0.02)
    assert sum(found.staleness.values()) == found.updates


def test_sparse_updates_rarely_meet() -> None:
    """Ten of 100,000 weights: of about 7 others one meets an update with 10 x 10 / 100,000 each."""
    sparse = simulate_hogwild(8, 5000, gradient_s=1.0, density=1e-4, parameters=100_000)
    assert sparse.conflict_share == pytest.approx(sparse.mean_staleness * 1e-3, rel=0.02)
    dense = simulate_hogwild(8, 5000, gradient_s=1.0)
    fresh = dense.staleness.get(0, 0)
    assert dense.conflict_share == pytest.approx(1.0 - fresh / 5000)


@pytest.mark.parametrize("workers", [2, 3, 16])
def test_pairs_wait_as_two_exponential_times_say(workers: int) -> None:
    """One waits 1 / (N - 1) gradients for the next; a pair takes 1 / N + 1 / (N - 1)."""
    found = simulate_gossip(workers, 8_000, gradient_s=1.0)
    pair_s = 1.0 / workers + 1.0 / (workers - 1)
    assert found.updates_per_s == pytest.approx(2.0 / pair_s, rel=0.05)
    idle = (1.0 / (workers - 1)) / pair_s / workers
    assert 1.0 - found.worker_busy == pytest.approx(idle, rel=0.05)


def test_each_pair_takes_its_share_of_the_disagreement() -> None:
    """The expected variance shrinks by 1 - 1 / (N - 1) a mean of a random pair."""
    workers, exchanges = 8, 12
    left = [
        simulate_gossip(workers, 2 * exchanges, gradient_s=1.0, seed=seed).disagreement
        for seed in range(400)
    ]
    assert np.mean(left) == pytest.approx((1 - 1 / (workers - 1)) ** exchanges, rel=0.1)


def test_one_sided_messages_never_wait_and_are_older() -> None:
    """Between writing and use each of the N - 1 others is as likely to be next as the reader."""
    workers = 16
    one = simulate_gossip(workers, 8_000, gradient_s=1.0, messages="one-sided")
    two = simulate_gossip(workers, 8_000, gradient_s=1.0)
    assert one.waited_s == 0.0
    assert one.updates_per_s == pytest.approx(workers, rel=0.05)
    assert one.mean_staleness == pytest.approx(workers - 1, rel=0.05)
    assert two.staleness == {0: two.exchanges}
    late = simulate_gossip(workers, 8_000, gradient_s=1.0, exchange_s=0.5, messages="one-sided")
    assert late.updates_per_s == pytest.approx(workers, rel=0.05)
    assert late.mean_staleness == pytest.approx(workers - 1 + workers * 0.5, rel=0.05)
    assert simulate_gossip(workers, 8_000, gradient_s=1.0, exchange_s=0.5).updates_per_s < 12


@pytest.mark.parametrize(
    ("workers", "alpha", "decay", "period"),
    [(1, 0.3, 0.9, 1), (4, 0.2, 0.95, 1), (8, 0.1, 0.9, 4), (5, 0.3, 0.5, 2)],
)
def test_rounds_in_turn_contract_as_their_matrices(
    workers: int, alpha: float, decay: float, period: int
) -> None:
    found = simulate_elastic_averaging(
        workers, 400 * workers, gradient_s=1.0, alpha=alpha, decay=decay, period=period,
        service="constant",
    )  # fmt: skip
    expected = round_contraction(workers, alpha=alpha, decay=decay, period=period)
    assert found.contraction == pytest.approx(expected, rel=1e-3)
    assert found.mean_staleness == pytest.approx(workers - 1, rel=0.05)


def test_one_worker_and_its_centre_by_hand() -> None:
    """alpha = 1/2, a step that jumps to the optimum: half of the distance is left each time."""
    assert round_contraction(1, alpha=0.5, decay=0.0) == pytest.approx(0.5)


def test_a_busy_centre_sets_the_pace() -> None:
    found = simulate_elastic_averaging(50, 4000, gradient_s=1.0, alpha=0.1, decay=0.9, apply_s=0.1)
    assert found.updates_per_s == pytest.approx(10.0, rel=0.05)
    assert found.server_busy == pytest.approx(1.0, abs=0.03)


def test_seeds() -> None:
    for simulate in (
        lambda seed: simulate_hogwild(4, 500, gradient_s=1.0, memory_s=0.1, seed=seed),
        lambda seed: simulate_gossip(4, 500, gradient_s=1.0, messages="one-sided", seed=seed),
        lambda seed: simulate_elastic_averaging(
            4, 500, gradient_s=1.0, alpha=0.2, decay=0.9, seed=seed
        ),
    ):
        assert simulate(1) == simulate(1)
        assert simulate(1) != simulate(2)


def test_bad_numbers() -> None:
    for bad in (
        lambda: simulate_hogwild(0, 10, gradient_s=1.0),
        lambda: simulate_hogwild(1, 10, gradient_s=0.0),
        lambda: simulate_hogwild(1, 10, gradient_s=1.0, memory_s=-1.0),
        lambda: simulate_hogwild(1, 10, gradient_s=1.0, density=0.0),
        lambda: simulate_gossip(1, 10, gradient_s=1.0),
        lambda: simulate_gossip(2, 0, gradient_s=1.0),
        lambda: simulate_gossip(2, 10, gradient_s=1.0, exchange_s=-1.0),
        lambda: simulate_gossip(2, 10, gradient_s=1.0, messages="none"),  # type: ignore[arg-type]
        lambda: simulate_elastic_averaging(2, 3, gradient_s=1.0, alpha=0.1, decay=0.9),
        lambda: simulate_elastic_averaging(2, 30, gradient_s=1.0, alpha=1.0, decay=0.9),
        lambda: simulate_elastic_averaging(2, 30, gradient_s=1.0, alpha=0.1, decay=1.0),
    ):
        with pytest.raises(RidgelineError):
            bad()
