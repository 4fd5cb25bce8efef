"""Compressed gradients: published ratios, gains with warm-up, fill-in of drawn gradients."""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.errors import RidgelineError
from ridgeline.training.compression import COMPRESSIONS, warm_up_gain


def test_the_ceiling_of_deep_gradient_compression() -> None:
    """0.1 % of fp32 numbers with 16-bit run lengths: 32 / (48 x 0.001) = 667."""
    assert COMPRESSIONS["deep-gradient-compression"].ratio() == pytest.approx(666.67, abs=0.01)


def test_gains_of_one_bit_adam() -> None:
    """DeepSpeed's blog: 6.6 times in 85 % of the steps, and 6.2 in 75 %."""
    assert warm_up_gain(0.15, 6.6) == pytest.approx(3.59, abs=0.005)
    assert warm_up_gain(0.25, 6.2) == pytest.approx(2.70, abs=0.005)
    assert warm_up_gain(0.15, 16.0) == pytest.approx(4.92, abs=0.005)
    assert warm_up_gain(0.0, 7.0) == 7.0
    assert warm_up_gain(1.0, 7.0) == pytest.approx(1.0)


@pytest.mark.parametrize("workers", [1, 2, 8, 64])
def test_fill_in_against_drawn_gradients(workers: int) -> None:
    of = COMPRESSIONS["deep-gradient-compression"]
    random = np.random.default_rng(3)
    numbers = 400_000
    union = np.zeros(numbers, bool)
    for _ in range(workers):
        union[random.choice(numbers, int(of.density * numbers), replace=False)] = True
    assert of.filled(workers) == pytest.approx(union.mean(), rel=0.02)
    assert of.filled(workers) <= of.filled(workers, "worst") <= 1.0


def test_all_reduce_bytes_round_by_round() -> None:
    of = COMPRESSIONS["deep-gradient-compression"]
    numbers, per_number = 10**6, 6.0
    expected = sum(numbers * of.filled(2**k) * per_number for k in range(3))
    assert of.all_reduce_bytes(numbers, 8) == pytest.approx(expected)
    assert of.all_reduce_bytes(numbers, 1) == 0.0
    # No sum takes more than the dense one, however many workers fill it in.
    assert of.all_reduce_bytes(numbers, 2**20, "worst") <= 20 * 4 * numbers
    with pytest.raises(RidgelineError, match="power of two"):
        of.all_reduce_bytes(numbers, 6)


def test_low_rank_factors() -> None:
    of = COMPRESSIONS["powersgd-rank-2"]
    assert of.low_rank_bytes(((512, 256, 3, 3), (512,))) == 4 * (2 * (512 + 2304) + 512)
    assert of.low_rank_bytes(((3, 2),)) == 4 * 6  # never more than the matrix itself
    with pytest.raises(RidgelineError, match="depends on the shapes"):
        of.ratio()


def test_every_method_has_a_source_and_an_unknown_name_its_nearest() -> None:
    for name, method in COMPRESSIONS.items():
        assert method.name == name
        assert len(method.source) > 20
    with pytest.raises(RidgelineError, match="did you mean 'fp16'"):
        COMPRESSIONS["fp-16"]
