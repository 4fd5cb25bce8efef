"""Compressed and sparse collectives."""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.errors import RidgelineError
from ridgeline.network import collective
from ridgeline.network.sparse import Compression, compression_of

WHERE = "FullyConnected({n}, 1 GB/s, 0 s)"


def time_s(algorithm: str, n: int, size: float, compression: Compression | None) -> float:
    return collective(
        "all-reduce", size, WHERE.format(n=n), algorithm=algorithm, compression=compression
    ).time_s


@pytest.mark.parametrize("algorithm", ["ring", "halving-doubling", "recursive-doubling", "direct"])
@pytest.mark.parametrize("n", [2, 5, 8, 16])
def test_dense_values_of_another_width_scale_the_bytes(algorithm: str, n: int) -> None:
    plain = time_s(algorithm, n, 1e8, None)
    assert time_s(algorithm, n, 1e8, Compression()) == pytest.approx(plain)
    assert time_s(algorithm, n, 1e8, Compression(value_bits=8)) == pytest.approx(plain / 4)
    agreed = Compression(density=0.01, place_bits=16, fill_in="none")
    assert time_s(algorithm, n, 1e8, agreed) == pytest.approx(plain * 0.01 * 48 / 32)


@pytest.mark.parametrize("n", [4, 16, 64])
def test_density_doubles_in_every_round_at_worst(n: int) -> None:
    d, size = 1e-3, 1e8
    worst = Compression(density=d, fill_in="worst")
    rounds = n.bit_length() - 1
    expected = sum(min(2**k * d * 1.5, 1.0) for k in range(rounds)) * size / 1e9
    assert time_s("recursive-doubling", n, size, worst) == pytest.approx(expected)


@pytest.mark.parametrize("n", [3, 8])
def test_a_ring_fills_in_as_independent_places_do(n: int) -> None:
    d, size = 0.05, 1e8
    reduced = sum(1 - (1 - d) ** c for c in range(1, n))  # of round c: c contributions
    gathered = (n - 1) * (1 - (1 - d) ** n)
    expected = (reduced + gathered) * 1.5 * size / n / 1e9
    assert time_s("ring", n, size, Compression(density=d)) == pytest.approx(expected)


def test_fill_in_is_that_of_random_sets() -> None:
    rng = np.random.default_rng(0)
    sets = rng.random((8, 200_000)) < 0.03
    for c in (1, 2, 5, 8):
        found = sets[:c].any(axis=0).mean()
        share = Compression(density=0.03, place_bits=0).share(np.array([c]))[0]
        assert share == pytest.approx(found, rel=0.02)


@pytest.mark.parametrize("fill_in", ["independent", "worst"])
def test_what_switches_add_up_fills_in(fill_in: str) -> None:
    # A leaf sends up what its two hosts sent, and everyone gets what all eight sent, which is the
    # most that passes a link; four leaves have two hosts and one uplink of the same bandwidth each.
    d, size, where = 0.01, 1e8, "Tree(8, 2, 2, 1 GB/s, 0 s)"
    packed = Compression(density=d, fill_in=fill_in)  # type: ignore[arg-type]
    one, two, all_s = packed.share(np.array([1, 2, 8])) * size / 1e9
    found = collective("all-reduce", size, where, algorithm="in-network", compression=packed)
    assert found.time_s == pytest.approx(all_s)
    share = {name.split(" ")[0]: part for name, part in found.link_utilisation.items()}
    assert share["host0->leaf0"] == pytest.approx(one / all_s)
    assert share["leaf1->core"] == pytest.approx(two / all_s)
    # never chosen by itself: the switches that are described add dense values
    best = collective("all-reduce", size, where, compression=packed)
    assert "in-network" not in best.algorithm
    assert best.time_s > found.time_s


def test_deep_gradient_compression_has_its_ceiling() -> None:
    # Lin et al., ICLR 2018: 0.1 % of the values, 32 bits each and 16 for the run length
    assert 1 / Compression(density=0.001).share(np.array([1]))[0] == pytest.approx(667, abs=0.5)


def test_more_values_never_take_less_time() -> None:
    times = [time_s("ring", 8, 1e8, Compression(density=d)) for d in (1e-4, 1e-2, 0.3, 0.7, 1.0)]
    assert times == sorted(times)
    assert times[-1] == times[-2]  # dense is sent where places would cost more


def test_what_a_compression_refuses() -> None:
    assert compression_of("density=0.01 place=32 fill_in=worst") == Compression(
        0.01, place_bits=32.0, fill_in="worst"
    )
    for wrong in ("density=0", "density=2", "densty=0.1", "value=x", "fill_in=some"):
        with pytest.raises(RidgelineError):
            compression_of(wrong)
