"""Broadcast-grid cores against machines that move real data one cycle at a time."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.hardware import load_device
from ridgeline.kernels.broadcast_grid import (
    METHODS,
    Ring,
    core_gemm_cycles,
    full_rate_words_per_cycle,
    gemv_cycles,
    grid_gemm,
    method,
    reduction_cycles,
    ring_cycles,
    ring_gemm,
    sample_cost,
    spilled_share,
)
from ridgeline.kernels.single_op import gemm
from ridgeline.study.reproduce import caterpillar

Array = np.ndarray

# LAP_SIM 0.1, compiled and run: mc, kc, n, cycles, with 4 x 4 PEs and a multiply-add latency of 7.
LAP_SIM = [(32, 32, 32, 2354), (64, 64, 256, 66642), (64, 32, 128, 16690)]


def step_core_gemm(a: Array, b: Array, side: int, fma_latency: int) -> tuple[Array, int]:
    """One core: square A comes in, then a panel of B, then one rank-1 update a cycle."""
    size, n = a.shape[0], b.shape[1]
    cycles = 0
    local = np.zeros_like(a)  # element i, j is in PE i % side, j % side
    for column in range(size):
        for row in range(0, size, side):  # a word for each row of PEs over its bus
            local[row : row + side, column] = a[row : row + side, column]
            cycles += 1
    panel = np.zeros((size, side), dtype=b.dtype)
    for row in range(size):  # the first panel of B; later ones come in under the arithmetic
        panel[row] = b[row, :side]
        cycles += 1
    c = np.zeros((size, n), dtype=a.dtype)
    for first in range(0, n, side):
        panel = b[:, first : first + side].copy()
        for row in range(0, size, side):
            accumulators = np.zeros((side, side), dtype=a.dtype)
            for k in range(size):  # PE (i, j) hears one word of its row's and its column's bus
                accumulators += np.outer(local[row : row + side, k], panel[k])
                cycles += 1
            c[row : row + side, first : first + side] = accumulators
    # The last products leave the multiply-adders, the last results leave over both buses, and the
    # controller starts, switches and stops.
    return c, cycles + fma_latency + side + side + 3


def step_gemv(a: Array, x: Array, side: int) -> tuple[Array, int]:
    """Every PE multiplies its element of each block; neighbours add up pairs of pairs."""
    m, n = a.shape
    y, cycles = np.zeros(m, dtype=a.dtype), 0
    for row in range(0, m, side):
        sums = np.zeros((side, side), dtype=a.dtype)
        for column in range(0, n, side):
            sums += a[row : row + side, column : column + side] * x[column : column + side]
            cycles += 1
        levels = 0
        while sums.shape[1] > 1:
            sums = sums[:, 0::2] + sums[:, 1::2]
            levels += 1
        y[row : row + side] = sums[:, 0]
        cycles += max(0, levels - 1)  # the first pairs meet in the multiply-adders
    return y, cycles


def step_all_gather(parts: list[list[int]], side: int) -> tuple[list[set[int]], int]:
    """Cores pass on, `side` words a cycle, what they hold or heard from the core before."""
    cores = len(parts)
    heard = [list(part) for part in parts]
    position, cycles = [0] * cores, 0
    whole = sum(len(part) for part in parts)
    while any(len(words) < whole for words in heard):
        sent = [words[at : at + side] for words, at in zip(heard, position, strict=True)]
        for core, words in enumerate(sent):
            position[core] += len(words)
            heard[(core + 1) % cores] += words
        cycles += 1
    return [set(words) for words in heard], cycles


@pytest.mark.parametrize(("mc", "kc", "n", "cycles"), LAP_SIM)
def test_cycles_are_those_of_the_authors_simulator(mc: int, kc: int, n: int, cycles: int) -> None:
    assert core_gemm_cycles(mc, kc, n, side=4, fma_latency=7) == cycles


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([2, 4, 8]), st.integers(1, 4), st.integers(1, 4), st.integers(1, 9),
    st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_a_core_that_moves_data_takes_as_long(
    side: int, blocks: int, panels: int, latency: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    a = rng.integers(-9, 9, (blocks * side, blocks * side))
    b = rng.integers(-9, 9, (blocks * side, panels * side))
    c, cycles = step_core_gemm(a, b, side, latency)
    assert np.array_equal(c, a @ b)
    assert cycles == core_gemm_cycles(len(a), len(a), b.shape[1], side, latency)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([1, 2, 4, 8]), st.integers(1, 5), st.integers(1, 5), st.integers(0, 2**32 - 1)
)
def test_a_matrix_vector_product_that_moves_data_takes_as_long(
    side: int, rows: int, columns: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    a, x = rng.integers(-9, 9, (rows * side, columns * side)), rng.integers(-9, 9, columns * side)
    y, cycles = step_gemv(a, x, side)
    assert np.array_equal(y, a @ x)
    assert cycles == gemv_cycles(rows * side, columns * side, side)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 12), st.integers(1, 6), st.sampled_from([1, 2, 4]))
def test_a_ring_that_moves_words_takes_as_long(cores: int, parts: int, side: int) -> None:
    own = parts * side
    words = [list(range(core * own, (core + 1) * own)) for core in range(cores)]
    heard, cycles = step_all_gather(words, side)
    assert all(core == set(range(cores * own)) for core in heard)
    assert cycles == pytest.approx(ring_cycles(cores * own, cores, side))


def test_reductions_over_the_bus_and_over_links() -> None:
    assert [reduction_cycles(side) for side in (1, 2, 4, 16)] == [0, 0, 1, 3]
    assert [reduction_cycles(side, neighbour_links=False) for side in (1, 4, 16)] == [0, 3, 15]


@given(st.sampled_from([2, 4, 8]), st.integers(1, 9), st.integers(1, 9))
def test_at_the_bound_a_panel_comes_in_as_the_last_is_used(side: int, rows: int, sums: int) -> None:
    mc, kc = rows * side, sums * side
    used = mc * kc / side  # cycles of one panel of B
    moved = kc * side + 2 * mc * side  # the next panel; C in and out
    assert moved / used == pytest.approx(full_rate_words_per_cycle(mc, kc, side))


sizes = st.integers(1, 300)
rings = st.builds(
    Ring, st.integers(1, 40), st.sampled_from([2, 4, 16]), st.sampled_from([256, 4096, 16384]),
    st.floats(0.5, 50),
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(sizes, sizes, sizes, rings)
def test_a_product_on_all_cores_is_sane(m: int, n: int, k: int, ring: Ring) -> None:
    best = grid_gemm(m, n, k, ring, 7)
    assert best.cycles * ring.elements >= m * n * k
    assert 2 * best.block**2 * ring.word_bytes <= ring.side**2 * ring.local_bytes
    more = Ring(ring.cores + 1, ring.side, ring.local_bytes)
    larger = Ring(ring.cores, ring.side, 2 * ring.local_bytes)
    assert grid_gemm(m, n, k, more, 7).cycles <= best.cycles
    assert grid_gemm(m, n, k, larger, 7).cycles <= best.cycles


widths = st.lists(st.integers(1, 3000), min_size=2, max_size=6)


@settings(max_examples=300, deadline=None)
@given(widths, st.sampled_from(sorted(METHODS)), rings)
def test_a_training_sample_is_sane(net: list[int], name: str, ring: Ring) -> None:
    cost = sample_cost(net, method(name), ring)
    assert 0 < cost.utilisation <= 1
    assert math.isclose(cost.compute_cycles * ring.elements, cost.macs)
    weights = sum(m * n for m, n in pairwise(net))
    accesses = (cost.local_per_mac - 1 + cost.spilled_per_mac) * cost.macs
    assert accesses == pytest.approx(method(name).weight_accesses * weights / method(name).batch)
    wider = Ring(ring.cores, ring.side, ring.local_bytes, 2 * ring.spill_words_per_cycle)
    larger = Ring(ring.cores, ring.side, 2 * ring.local_bytes, ring.spill_words_per_cycle)
    assert sample_cost(net, method(name), wider).cycles <= cost.cycles
    assert sample_cost(net, method(name), larger).cycles <= cost.cycles
    assert spilled_share(net, larger) <= spilled_share(net, ring) <= 1


def test_matrix_products_save_sums_and_fetches_and_pipelining_saves_the_ring() -> None:
    ring, net = Ring(32, 4, 16384, 4.0), [784, 2500, 2000, 10]
    sgd, batched, pipelined = (
        sample_cost(net, method(name), ring) for name in ("SGD", "BGD50", "CP")
    )
    assert sgd.reduction_cycles > batched.reduction_cycles == pipelined.reduction_cycles == 0
    assert sgd.gather_cycles == batched.gather_cycles > pipelined.gather_cycles == 0
    assert sgd.spill_cycles >= 50 * batched.spill_cycles


@pytest.mark.parametrize("name", ["lap-sp", "lap-dp", "caterpillar-a", "caterpillar-b"])
def test_a_device_prices_a_product_by_its_cycles(name: str) -> None:
    device = load_device(name)
    grid = device.engines["cores"].grid
    assert grid is not None
    result = gemm(512, 768, 640, device)
    word = {"fp64": 8, "fp32": 4, "fp16": 2}[result.format]
    ring = Ring(grid.cores.value, grid.side.value, grid.local_memory.value, word_bytes=word)
    cycles = grid_gemm(512, 768, 640, ring, grid.fma_latency.value).cycles
    assert result.parts_s[f"cores.{result.format} arithmetic"] == pytest.approx(
        cycles / grid.clock.value, rel=0.01
    )
    assert result.calibrated
    assert 0 < result.utilisation <= 1


def test_mistakes_are_refused() -> None:
    with pytest.raises(RidgelineError, match="did you mean 'BGD8'"):
        method("BGD9")
    with pytest.raises(RidgelineError, match="at least two widths"):
        sample_cost([10], method("SGD"), Ring(1, 4, 16384))
    with pytest.raises(RidgelineError, match="side must be at least 1"):
        core_gemm_cycles(4, 4, 4, 0, 7)
    with pytest.raises(RidgelineError, match="too small for two blocks"):
        grid_gemm(8, 8, 8, Ring(1, 4, 2), 7)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("engines.cores.grid.cores", 7, "no rate of the engine is that"),
        ("engines.cores.grid.side", 0, "at least 1"),
        ("engines.cores.kind", "vector", "'grid' belongs to an engine of kind broadcast-grid"),
        ("engines.cores.grid.spill_words_per_cycle", 0.0, "more than 0"),
    ],
)
def test_a_grid_must_be_what_its_engine_says(path: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_device("caterpillar-a", {path: value})


@pytest.mark.parametrize("network", ["N1", "N2", "N3"])
@pytest.mark.parametrize("name", ["SGD", "BGD50", "CP", "DFA8", "DFA50"])
def test_prices_of_ops_add_up_to_the_law_of_a_sample(network: str, name: str) -> None:
    """`sample_cost` is the closed form of Li and Pedram; `run` and `reproduce` price op by op."""
    setup = caterpillar.published()["networks"][network]
    priced, device = caterpillar._cost(network, name)
    grid = device.engines["cores"].grid
    assert grid is not None
    assert grid.spill_words_per_cycle is not None
    ring = Ring(
        grid.cores.value, grid.side.value, grid.local_memory.value,
        grid.spill_words_per_cycle.value, 2,
    )  # fmt: skip
    law = sample_cost(setup["widths"], method(name), ring)
    assert priced.utilisation == pytest.approx(law.utilisation, abs=0.0015)
    assert priced.local_per_mac == pytest.approx(law.local_per_mac, rel=0.002)
    assert priced.spilled_per_mac == pytest.approx(law.spilled_per_mac, rel=0.02, abs=1e-12)


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 3000))
def test_one_operand_stays_and_the_ring_comes_beside(m: int, n: int, k: int) -> None:
    ring = Ring(32, 4, 16384)
    law = ring_gemm(m, n, k, ring)
    assert law.compute_cycles == m * n * k / ring.elements
    assert law.cycles >= law.compute_cycles
    assert law.resident_words == max(m, n) * k
    assert ring_gemm(n, m, k, ring).cycles == law.cycles
    assert ring_gemm(m, n, k, ring, gathered=True).cycles == law.compute_cycles


def test_a_vector_times_a_matrix_in_the_ordinary_price() -> None:
    forward = gemm(1, 500, 500, "caterpillar-a")
    cycles = 250_000 / 512 + 500 * (31 / 32) / 4 + 500 / 4  # products, ring, sums in columns
    assert forward.time_s == pytest.approx(cycles * 1e-9)
    assert forward.utilisation == pytest.approx(0.665, abs=0.001)
    assert forward.traffic_bytes["scratchpad"] == 0
    assert forward.traffic_bytes["local"] == 2 * 2 * 250_000  # a weight and a word for each product


def test_what_finds_no_room_comes_from_the_scratchpads() -> None:
    whole = gemm(1, 2000, 2000, "caterpillar-a")
    spilled = gemm(1, 3000, 3000, "caterpillar-a")
    assert whole.traffic_bytes["scratchpad"] == 0
    room = 512 * 16384 - 6000 * 2 * 32
    assert spilled.traffic_bytes["scratchpad"] == pytest.approx(2 * 3000**2 - room)


def test_a_method_has_the_batch_of_its_name() -> None:
    for name, known in METHODS.items():
        digits = "".join(filter(str.isdigit, name))
        assert known.batch == int(digits or 1), name
