"""The lazy Gaussian process against one that is made anew from its definition."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import RidgelineError
from ridgeline.study.search.gaussian_process import (
    Floats,
    LazyGaussianProcess,
    fitted,
    log_likelihood,
    solve_lower,
)


def matern(a: Floats, b: Floats, scales: Floats) -> Floats:
    """Matern 5/2, a pair at a time."""
    made = np.empty((len(a), len(b)))
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            r = np.sqrt(5.0) * np.sqrt((((x - y) / scales) ** 2).sum())
            made[i, j] = (1.0 + r + r * r / 3.0) * np.exp(-r)
    return made


def plain_posterior(
    x: Floats, y: Floats, at: Floats, scales: Floats, nugget: float
) -> tuple[Floats, Floats]:
    """Mean and deviation by the textbook, with an inverse."""
    inverse = np.linalg.inv(matern(x, x, scales) + nugget * np.eye(len(x)))
    across, away = matern(x, at, scales), y - y.mean(axis=0)
    scale = np.einsum("ik,ij,jk->k", away, inverse, away) / len(x)
    variance = 1.0 - np.einsum("im,ij,jm->m", across, inverse, across)
    mean = y.mean(axis=0) + across.T @ inverse @ away
    return mean, np.sqrt(np.outer(np.maximum(variance, 0.0), scale))


def grown(x: Floats, scales: Floats, nugget: float) -> LazyGaussianProcess:
    process = LazyGaussianProcess(scales, nugget)
    for point in x:
        process.extend(point)
    return process


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(2, 60), d=st.integers(1, 5), outputs=st.integers(1, 3),
    nugget=st.sampled_from([1e-4, 1e-2]), seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_posterior_is_that_of_a_full_factor(
    n: int, d: int, outputs: int, nugget: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x, y, at = rng.random((n, d)), rng.normal(size=(n, outputs)), rng.random((7, d))
    scales = rng.uniform(0.1, 2.0, d)
    process = grown(x, scales, nugget)
    mean, deviation = process.posterior(at, y)
    expected_mean, expected_deviation = plain_posterior(x, y, at, scales, nugget)
    np.testing.assert_allclose(mean, expected_mean, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(deviation, expected_deviation, rtol=1e-6, atol=1e-8)
    full = np.linalg.cholesky(matern(x, x, scales) + nugget * np.eye(n))
    np.testing.assert_allclose(process.factor, full, atol=1e-10)


def test_posterior_at_600_samples_is_that_of_a_factor_made_at_once() -> None:
    rng = np.random.default_rng(1)
    x, scales = rng.random((600, 4)), np.full(4, 0.4)
    process, at = grown(x, scales, 1e-6), rng.random((20, 4))
    y = np.sin(6 * x).sum(axis=1)[:, None]
    lazy = process.posterior(at, y)
    process.rebuild(scales, 1e-6)
    for one, other in zip(lazy, process.posterior(at, y), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-8)


def test_a_row_more_costs_far_less_than_a_factor_anew() -> None:
    rng = np.random.default_rng(2)
    x = rng.random((1210, 3))
    process = grown(x[:1200], np.full(3, 0.3), 1e-6)
    start = time.process_time()
    for point in x[1200:]:
        process.extend(point)
    a_row_s = (time.process_time() - start) / 10
    start = time.process_time()
    process.rebuild(np.full(3, 0.3), 1e-6)
    assert time.process_time() - start > 10 * a_row_s


def test_the_first_samples_alone_are_a_process_of_their_own() -> None:
    rng = np.random.default_rng(3)
    x, y, at = rng.random((50, 2)), rng.normal(size=(50, 1)), rng.random((5, 2))
    whole, part = grown(x, np.full(2, 0.3), 1e-4), grown(x[:30], np.full(2, 0.3), 1e-4)
    for one, other in zip(whole.posterior(at, y[:30]), part.posterior(at, y[:30]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)


def test_deviation_falls_to_nothing_at_samples_and_never_grows_with_more() -> None:
    rng = np.random.default_rng(4)
    x, at = rng.random((40, 2)), rng.random((30, 2))
    before = np.full(30, np.inf)
    for n in (5, 20, 40):
        process = grown(x[:n], np.full(2, 0.5), 1e-6)
        # The first n values differ in scale, so that the share of the variance is compared.
        _, deviation = process.posterior(at, np.arange(n, dtype=float)[:, None])
        _, far = process.posterior(np.full((1, 2), 1e6), np.arange(n, dtype=float)[:, None])
        share = deviation[:, 0] / far[0, 0]
        assert (share <= before + 1e-9).all()
        before = share
    _, there = process.posterior(x, np.arange(40, dtype=float)[:, None])
    assert (there[:, 0] < 2e-3 * far[0, 0]).all()


@pytest.mark.parametrize(("scales", "nugget"), [([0.0], 1e-6), ([1.0, -1.0], 1e-6), ([1.0], 0.0)])
def test_hyperparameters_exceed_zero(scales: list[float], nugget: float) -> None:
    with pytest.raises(RidgelineError, match="exceed 0"):
        LazyGaussianProcess(scales, nugget)


def test_a_repeated_sample_is_refused_where_the_nugget_is_below_rounding() -> None:
    process = LazyGaussianProcess([0.5], 1e-18)
    process.extend([0.3])
    with pytest.raises(RidgelineError, match="a larger nugget"):
        process.extend([0.3])


def test_likelihood_is_that_of_the_definition() -> None:
    rng = np.random.default_rng(5)
    x, y, scales = rng.random((12, 2)), rng.normal(size=(12, 1)), np.array([0.3, 0.7])
    full = matern(x, x, scales) + 1e-3 * np.eye(12)
    away = y - y.mean()
    variance = float((away.T @ np.linalg.inv(full) @ away)[0, 0]) / 12
    expected = -0.5 * (12 * np.log(variance) + np.linalg.slogdet(full)[1])
    assert log_likelihood(x, y, scales, 1e-3) == pytest.approx(expected, rel=1e-9)


def test_fit_finds_which_dimension_matters() -> None:
    rng = np.random.default_rng(6)
    x = rng.random((60, 2))
    scales, nugget = fitted(x, np.sin(8 * x[:, :1]), np.array([0, 1]))
    assert scales[0] < 0.6 * scales[1]
    assert nugget < 1e-3


def test_triangular_solution_over_many_blocks() -> None:
    rng = np.random.default_rng(7)
    factor = np.tril(rng.random((200, 200))) + 10 * np.eye(200)
    right = rng.random((200, 3))
    np.testing.assert_allclose(factor @ solve_lower(factor, right), right, atol=1e-12)
