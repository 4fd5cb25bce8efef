"""Bulk-synchronous tiles: supersteps against tiles that exchange sets of words; bounds."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles.bsp_tiles import play
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.hardware import load_device
from ridgeline.kernels.bsp_gemm import ElementSizes, EqualTiles, TilePlan, best_plan, planned
from ridgeline.kernels.single_op import gemm
from ridgeline.workload.graph import Gemm

SIZES = ElementSizes(2, 2, 2, 4)
TILES = EqualTiles(16, 4096, 64e9, (1, 4, 4), 1 / 6.4e9, 1e-7)
dims = st.integers(1, 24)


@settings(max_examples=100, deadline=None)
@given(
    block=st.tuples(*[st.integers(1, 4)] * 3), parts=st.tuples(*[st.integers(1, 3)] * 2),
    turns=st.tuples(*[st.integers(1, 3)] * 3), seed=st.integers(0, 2**32),
)  # fmt: skip
def test_a_cut_costs_what_tiles_with_sets_of_words_pay(
    block: tuple[int, int, int], parts: tuple[int, int], turns: tuple[int, int, int], seed: int
) -> None:
    m, n = (x * p * t for x, p, t in zip(block, parts, turns, strict=False))
    k = block[2] * turns[2]
    plan = planned(Gemm(m, n, k), (1, *parts, 1), turns, SIZES, TILES)
    rng = np.random.default_rng(seed)
    a, b = rng.integers(-9, 10, (m, k)), rng.integers(-9, 10, (k, n))
    product, compute_s, exchange_s, steps = play(a, b, plan, SIZES, TILES)
    assert (product == a @ b).all()
    assert plan.compute_s == pytest.approx(compute_s, rel=1e-12)
    assert plan.exchange_s == pytest.approx(exchange_s, rel=1e-12)
    assert plan.supersteps == steps
    assert plan.time_s == plan.compute_s + plan.exchange_s + steps * TILES.sync_s


@settings(max_examples=40, deadline=None)
@given(m=dims, n=dims, k=dims, batch=st.integers(1, 3))
def test_no_cut_of_all_is_faster_than_the_best(m: int, n: int, k: int, batch: int) -> None:
    product = Gemm(m, n, k, batch)
    tiles = TILES._replace(number=6, room_bytes=10**9)
    best = best_plan(product, SIZES, tiles).time_s
    for parts in itertools.product(range(1, 7), repeat=4):
        fits = all(p <= s for p, s in zip(parts, (batch, m, n, k), strict=True))
        if fits and math.prod(parts) <= 6:
            assert best <= planned(product, parts, (1, 1, 1), SIZES, tiles).time_s


@settings(max_examples=25, deadline=None)
@given(m=dims, n=dims, k=dims, room=st.integers(64, 4000))
def test_turns_are_those_of_a_plain_search(m: int, n: int, k: int, room: int) -> None:
    product, tiles = Gemm(m, n, k), TILES._replace(number=1, room_bytes=room)
    found: list[TilePlan] = []
    for m_turns, n_turns in itertools.product(*([2**i for i in range(9)] for _ in "mn")):
        ways = (
            planned(product, (1, 1, 1, 1), (min(m, m_turns), min(n, n_turns), turns), SIZES, tiles)
            for turns in range(1, k + 1)
        )
        found += [plan for plan in ways if plan.tile_bytes <= room]
    assert best_plan(product, SIZES, tiles).time_s == min(plan.time_s for plan in found)


@settings(max_examples=40, deadline=None)
@given(
    m=st.integers(1, 90), n=st.integers(1, 90), k=st.integers(1, 90),
    field=st.sampled_from(["number", "room_bytes", "flop_per_s", "byte_s", "sync_s", "least_s"]),
    factor=st.integers(2, 8), room=st.integers(64, 20000),
)  # fmt: skip
def test_more_of_anything_is_never_slower(
    m: int, n: int, k: int, field: str, factor: int, room: int
) -> None:
    less = TILES._replace(room_bytes=room, least_s=1e-8)
    now = getattr(less, field)
    is_cost = field in {"byte_s", "sync_s", "least_s"}
    better = less._replace(**{field: now / factor if is_cost else now * factor})
    before, after = (best_plan(Gemm(m, n, k), SIZES, tiles) for tiles in (less, better))
    assert after.time_s <= before.time_s * (1 + 1e-12)


@settings(max_examples=40, deadline=None)
@given(
    m=st.integers(1, 150), n=st.integers(1, 150), k=st.integers(1, 150), room=st.integers(64, 20000)
)
def test_bounds(m: int, n: int, k: int, room: int) -> None:
    tiles = TILES._replace(room_bytes=room)
    plan = best_plan(Gemm(m, n, k), SIZES, tiles)
    assert plan.tile_bytes <= room
    assert plan.tiles <= tiles.number
    assert plan.compute_s >= 2 * m * n * k / (tiles.number * tiles.flop_per_s) * (1 - 1e-12)
    assert plan.supersteps >= 1
    # Every element of A and B is received at least once.
    assert plan.received_bytes >= SIZES.a * m * k + SIZES.b * k * n - 1e-6


def test_a_sum_that_is_cut_pays_for_its_partial_sums() -> None:
    one, four = (planned(Gemm(8, 8, 64), (1, 1, 1, p), (1, 1, 1), SIZES, TILES) for p in (1, 4))
    assert four.supersteps == one.supersteps + 1
    # A quarter of the operands, and of 16 sums the three others' partial ones.
    assert four.exchange_s == pytest.approx(
        (one.exchange_s / TILES.byte_s / 4 + 3 * 16 * 4) * TILES.byte_s
    )


def test_the_longest_share_of_partial_sums_counts() -> None:
    """Of 7 x 9 sums on 4 tiles, one adds up 16: nobody can have 15.75."""
    plan = planned(Gemm(7, 9, 64), (1, 1, 1, 4), (1, 1, 1), SIZES, TILES)
    operands = (7 + 9) * 16 * SIZES.a
    assert plan.exchange_s == pytest.approx((operands + 3 * 16 * SIZES.sum) * TILES.byte_s)
    assert plan.received_bytes == pytest.approx(4 * (operands + 3 * 16 * SIZES.sum))
    assert plan.tile_bytes == max(operands + 7 * 9 * SIZES.sum, (7 * 9 + 3 * 16) * SIZES.sum)


def test_more_memory_keeps_the_rounder_pieces_of_the_smaller_one() -> None:
    # Two pieces of 6 fit the larger memory; three of 4 are no more than a granule each.
    tiles = EqualTiles(1, 70, 64e9, (1, 1, 4), 1 / 6.4e9, 0.0)
    plan = best_plan(Gemm(3, 2, 12), SIZES, tiles)
    assert plan.compute_s == pytest.approx(2 * 3 * 2 * 12 / 64e9)


def test_traffic_under_the_arithmetic_is_part_of_what_is_minimised() -> None:
    slow = TILES._replace(flop_per_s=1e8, sync_s=1e-5, room_bytes=10**6)
    product = Gemm(1, 1, 4096)
    alone = best_plan(product, SIZES, slow)
    plan = best_plan(product, SIZES, slow._replace(least_s=1e-3))
    assert plan.time_s == pytest.approx(1e-3 + plan.exchange_s + plan.sync_s)
    # Arithmetic hides under it, so that the sum is not cut and one barrier is enough.
    assert (alone.supersteps, plan.supersteps) == (2, 1)


def test_a_memory_for_nothing_is_an_error() -> None:
    message = "does not hold one element of each operand: A takes 2, B 2, a sum 4, 1 bytes too many"
    with pytest.raises(RidgelineError, match=message):
        best_plan(Gemm(8, 8, 8), SIZES, TILES._replace(room_bytes=7))


@pytest.mark.parametrize("name", ["ipu-gc2", "ipu-gc200"])
def test_an_ipu_prices_products(name: str) -> None:
    small, large = (gemm(n, n, n, name) for n in (64, 4096))
    assert small.utilisation < large.utilisation < 1
    assert not large.calibrated  # no measured share: a bound
    device = load_device(name)
    tiles = device.engines["amp"].bsp
    assert tiles is not None
    level = device.memory["tile-memory"]
    assert level.capacity.value == tiles.tiles.value * tiles.memory.value
    peak = 2 * 64 * tiles.tiles.value * tiles.clock.value / (2 if name == "ipu-gc2" else 1)
    assert device.engines["amp"].rates["fp16"].value == pytest.approx(peak, rel=0.005)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("engines.amp.bsp.tiles", 0, "must be at least 1, found 0"),
        ("engines.amp.bsp.reserved", 1.0, "at least 0 and less than 1"),
        ("engines.amp.kind", "systolic", "'bsp' belongs to an engine of kind bsp"),
    ],
)
def test_a_description_that_makes_no_sense_is_refused(
    field: str, value: object, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load_device("ipu-gc2", {field: value})
