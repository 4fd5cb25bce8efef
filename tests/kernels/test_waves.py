"""Tiles, splits and waves: against plain Python, by hand, and laws that they must obey."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.kernels.processors import padding
from ridgeline.kernels.wave_quantization import (
    _SPLITS,
    EARLY_LEAST_SUM,
    EARLY_TILES,
    TILES,
    WaveMachine,
    best_blocking,
)
from ridgeline.workload.graph import Conv, Gemm

V100 = WaveMachine(80, 100e12, 2e12, 0.6e-6, 2e-6)

sizes = st.one_of(st.integers(1, 300), st.integers(1, 20000))
gemms = st.builds(Gemm, sizes, sizes, sizes, st.integers(1, 4))
machines = st.builds(
    WaveMachine,
    st.sampled_from([1, 3, 56, 80, 108]),
    st.floats(1e9, 1e15),
    st.one_of(st.just(math.inf), st.floats(1e9, 1e13)),
    st.sampled_from([0.0, 1e-6]),
    st.sampled_from([0.0, 2e-6]),
    least_sum=st.sampled_from([128, 512, 4096, 10**9]),
)


def bytes_of(gemm: Gemm) -> tuple[float, float]:
    return 2.0 * gemm.batch * gemm.m * gemm.k, 2.0 * gemm.batch * gemm.k * gemm.n


def slow(gemm: Gemm, floor_s: float, machine: WaveMachine) -> float:
    """The least time over the menu, in plain Python."""
    a, b = bytes_of(gemm)
    times = []
    for rows, columns in TILES:
        for split in _SPLITS:
            if split > 1 and gemm.k < machine.least_sum * split:
                continue
            down, across = -(-gemm.m // rows), -(-gemm.n // columns)
            waves = -(-gemm.batch * down * across * split // machine.processors)
            in_flight = min(waves, 2) * rows * columns
            rate = machine.rate_flop_per_s / machine.processors
            rate *= math.sqrt(min(1.0, in_flight / 128**2))
            arithmetic = waves * 2 * rows * columns * -(-gemm.k // split) / rate
            near, latency = a * across + b * down, -(-waves // 2) * machine.round_latency_s
            if split > 1:
                near += 2 * 4 * split * gemm.batch * gemm.m * gemm.n
                latency += machine.launch_s
            times.append(latency + max(arithmetic, near / machine.near_bytes_per_s, floor_s))
    return min(times)


def fast(gemm: Gemm, floor_s: float, machine: WaveMachine) -> float:
    a, b = bytes_of(gemm)
    best = best_blocking(gemm, a, b, floor_s, machine)
    near = a * math.ceil(gemm.n / best.columns) + b * math.ceil(gemm.m / best.rows)
    near_s = (near + best.partial_bytes) / machine.near_bytes_per_s
    return best.latency_s + max(best.arithmetic_s, near_s, floor_s)


@settings(max_examples=300, deadline=None)
@given(gemm=gemms, machine=machines, floor_s=st.sampled_from([0.0, 1e-5, 1e-3]))
def test_the_best_of_the_menu_is_found(gemm: Gemm, machine: WaveMachine, floor_s: float) -> None:
    assert fast(gemm, floor_s, machine) == pytest.approx(slow(gemm, floor_s, machine), rel=1e-12)


@settings(max_examples=200, deadline=None)
@given(gemm=gemms, machine=machines, factor=st.floats(1, 50))
def test_better_is_never_slower_and_nothing_beats_the_peak(
    gemm: Gemm, machine: WaveMachine, factor: float
) -> None:
    time = fast(gemm, 0.0, machine)
    assert time >= 2 * gemm.macs / machine.rate_flop_per_s * (1 - 1e-12)
    for better in (
        replace(machine, rate_flop_per_s=machine.rate_flop_per_s * factor),
        replace(machine, near_bytes_per_s=machine.near_bytes_per_s * factor),
        replace(machine, round_latency_s=0.0),
        replace(machine, least_sum=max(1, machine.least_sum // 3)),
    ):
        assert fast(gemm, 0.0, better) <= time * (1 + 1e-12)


def test_a_long_sum_is_split_and_a_short_one_is_not() -> None:
    """The weight gradient of a convolution has few outputs and a sum over all pixels."""
    long, short = Gemm(64, 64, 802816), Gemm(64, 64, 64)
    assert best_blocking(long, *bytes_of(long), 0.0, V100).split > 16
    assert best_blocking(short, *bytes_of(short), 0.0, V100).split == 1
    whole = replace(V100, least_sum=802816)
    assert best_blocking(long, *bytes_of(long), 0.0, whole).split == 1


def test_waves_quantise() -> None:
    free = replace(V100, near_bytes_per_s=math.inf, round_latency_s=0.0, launch_s=1.0)
    times = {}
    for tiles in (80, 81, 160):
        gemm = Gemm(128 * tiles, 128, 1024)
        times[tiles] = best_blocking(gemm, *bytes_of(gemm), 0.0, free).arithmetic_s
    assert times[80] == pytest.approx(2 * 128 * 80 * 128 * 1024 / 100e12, rel=1e-12)
    assert times[80] < times[81] <= times[160] == 2 * times[80]


def test_narrow_convolutions_are_padded() -> None:
    assert padding(Conv(1, 3, 224, 224, 64, 7, 7)) == 8 / 3
    assert padding(Conv(1, 64, 56, 56, 64, 3, 3)) == 1
    assert padding(Conv(1, 64, 56, 56, 64, 3, 3, groups=64)) == 8


def test_tiles_of_the_menu_have_sides_of_powers_of_two_and_both_orientations() -> None:
    """A library that has a tile for C = A B has its transpose for C' = B' A'."""
    assert {(columns, rows) for rows, columns in TILES} == set(TILES)
    assert all(side & (side - 1) == 0 for tile in TILES for side in tile)


def test_an_early_library_splits_a_sum_into_parts_of_2048_at_least() -> None:
    """One tile of results on a device of many processors: nothing else keeps them busy."""
    early = replace(V100, least_sum=EARLY_LEAST_SUM, tiles=EARLY_TILES)
    for k, split in ((4095, 1), (4096, 2), (2048 * 16, 16)):
        gemm = Gemm(64, 64, k)
        assert best_blocking(gemm, *bytes_of(gemm), 0.0, early).split == split
