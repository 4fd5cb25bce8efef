"""Order statistics of synchronous steps, against drawing every worker and against closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from tests.training.loops import expected_largest_exponential

from ridgeline.errors import RidgelineError
from ridgeline.training.stragglers import (
    StepJitter,
    Stragglers,
    waited_for,
)


@pytest.mark.parametrize("workers", [1, 8, 1024, 16384])
def test_exponential_delays_are_harmonic_numbers(workers: int) -> None:
    of = Stragglers(jitter=StepJitter(distribution="exponential", spread=0.1))
    drawn = waited_for(of, workers, 200_000, np.random.default_rng(1))
    expected = 1.0 + 0.1 * expected_largest_exponential(workers)
    assert abs(drawn.mean() - expected) < 4 * drawn.std() / np.sqrt(len(drawn))


def test_harmonic_numbers() -> None:
    assert expected_largest_exponential(4) == pytest.approx(1 + 1 / 2 + 1 / 3 + 1 / 4)
    exact = sum(1 / k for k in range(1, 5001))
    assert expected_largest_exponential(5000) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("distribution", ["exponential", "lognormal", "pareto", "uniform"])
@pytest.mark.parametrize(("slow", "backups"), [(0, 0), (0, 2), (1, 0), (3, 1), (2, 3)])
def test_against_every_worker_drawn(distribution: str, slow: int, backups: int) -> None:
    """Quantiles of 40,000 steps of twelve workers, drawn one by one and by order statistics."""
    workers, steps, factor = 12, 40_000, 1.3
    jitter = StepJitter.model_validate({"distribution": distribution, "spread": 0.2})
    of = Stragglers.model_validate(
        {
            "jitter": jitter.model_dump(),
            "backup_workers": backups,
            **({"slow": {"count": slow, "factor": factor}} if slow else {}),
        }
    )
    random = np.random.default_rng(7)
    every = jitter.quantile(random.random((steps, workers)))
    every[:, :slow] *= factor
    plain = np.sort(every, axis=1)[:, workers - 1 - backups]
    drawn = waited_for(of, workers, steps, np.random.default_rng(8))
    for share in (0.1, 0.5, 0.9):
        assert np.quantile(drawn, share) == pytest.approx(np.quantile(plain, share), rel=0.02)


@pytest.mark.parametrize("distribution", ["exponential", "lognormal", "pareto", "uniform"])
def test_the_spread_is_the_mean_delay(distribution: str) -> None:
    jitter = StepJitter.model_validate({"distribution": distribution, "spread": 0.5})
    middle = (np.arange(1_000_000) + 0.5) / 1_000_000
    assert (jitter.quantile(middle) - 1).mean() == pytest.approx(0.5, rel=0.01)


def test_one_slow_worker_is_waited_for_unless_it_is_a_backup() -> None:
    slow = Stragglers.model_validate({"slow": {"factor": 1.024}})
    assert waited_for(slow, 8, 3, np.random.default_rng(0)) == pytest.approx([1.024] * 3)
    spared = Stragglers.model_validate({"slow": {"factor": 1.024}, "backup_workers": 1})
    assert waited_for(spared, 8, 3, np.random.default_rng(0)) == pytest.approx([1.0] * 3)


def test_more_workers_wait_longer_and_backups_wait_less() -> None:
    def mean(workers: int, backups: int) -> float:
        of = Stragglers.model_validate(
            {"jitter": {"distribution": "pareto", "spread": 0.1}, "backup_workers": backups}
        )
        return float(waited_for(of, workers, 20_000, np.random.default_rng(3)).mean())

    assert mean(10, 0) < mean(100, 0) < mean(1000, 0)
    assert mean(104, 4) < mean(102, 2) < mean(100, 0)


def test_all_workers_cannot_be_backups() -> None:
    with pytest.raises(RidgelineError, match="4 backup workers of 4"):
        waited_for(Stragglers(backup_workers=4), 4, 1, np.random.default_rng(0))
