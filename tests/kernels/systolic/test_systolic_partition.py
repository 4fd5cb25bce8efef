"""Several arrays: the search finds the best division, and more arrays are never slower."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.kernels.systolic import gemm_cycles
from ridgeline.kernels.systolic.closed_form import FoldSchedule
from ridgeline.kernels.systolic.partition import (
    ArrayChain,
    Arrays,
    best_partition,
    divided,
    reduction_cycles,
)
from thoroughly import sample_of

sizes = st.integers(1, 60)
networks = st.none() | st.builds(
    ArrayChain, st.integers(0, 20), st.sampled_from([0.5, 1.0, 4.0, 64.0])
)
arrays = st.builds(
    Arrays,
    rows=st.integers(1, 9), columns=st.integers(1, 9), number=st.integers(1, 6),
    schedules=st.lists(
        st.builds(
            FoldSchedule, st.sampled_from(["os", "ws", "is"]),
            st.sampled_from(["serial", "pipelined", "overlapped"]),
            st.sampled_from(["exact", "full"]),
            st.integers(1, 3), st.integers(1, 3), st.integers(1, 3),
        ),
        min_size=1, max_size=2,
    ).map(tuple),
    network=networks,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(sizes, sizes, sizes, st.integers(1, 12), arrays)
def test_best_of_all_divisions(m: int, n: int, k: int, batch: int, machine: Arrays) -> None:
    best = best_partition(m, n, k, batch, machine)
    every = [
        divided(m, n, k, batch, parts, how, machine).cycles
        for parts in product(range(1, machine.number + 1), repeat=4)
        if prod(parts) <= machine.number and (machine.network is not None or parts[3] == 1)
        for how in machine.schedules
    ]
    assert best.cycles == min(every)
    assert best.arrays <= machine.number
    assert best.cycles * machine.number * machine.rows * machine.columns >= batch * m * n * k


@sample_of(50, 200, sizes, sizes, sizes, st.integers(1, 12), arrays)
def test_more_arrays_and_faster_networks_are_never_slower(
    m: int, n: int, k: int, batch: int, machine: Arrays
) -> None:
    base = best_partition(m, n, k, batch, machine).cycles
    more = machine._replace(number=machine.number + 1)
    assert best_partition(m, n, k, batch, more).cycles <= base
    connected = machine._replace(network=machine.network or ArrayChain(1, 1.0))
    assert best_partition(m, n, k, batch, connected).cycles <= base
    assert connected.network is not None
    faster = connected._replace(network=connected.network._replace(words_per_cycle=128.0))
    assert (
        best_partition(m, n, k, batch, faster).cycles
        <= best_partition(m, n, k, batch, connected).cycles
    )


def test_one_array_is_the_closed_form() -> None:
    machine = Arrays(32, 32, 1, (FoldSchedule("ws"),))
    assert best_partition(100, 200, 300, 2, machine).cycles == gemm_cycles(
        100, 200, 300, 32, 32, batch=2
    )


def test_axes_that_are_split() -> None:
    four = Arrays(16, 16, 4, (FoldSchedule("os"),), ArrayChain(10, 16.0))
    batch = best_partition(16, 16, 1000, 4, four)
    assert (batch.batch_parts, batch.reduction_cycles) == (4, 0)
    wide = best_partition(16, 64, 1000, 1, four)
    assert (wide.n_parts, wide.reduction_cycles) == (4, 0)
    # A weight gradient: a small result, a long sum. Three steps of 10 + 64 words / 16.
    deep = best_partition(16, 16, 100_000, 1, four)
    assert (deep.k_parts, deep.reduction_cycles) == (4, 3 * (10 + 4))
    assert deep.cycles == gemm_cycles(16, 16, 25_000, 16, 16, "os") + deep.reduction_cycles
    assert best_partition(16, 16, 100_000, 1, four._replace(network=None)).k_parts == 1


def test_the_better_dataflow_is_taken() -> None:
    either = Arrays(16, 16, 1, (FoldSchedule("ws"), FoldSchedule("is")))
    # 2,000 rows of A pass 3 tiles of B in 6,000 steps; 40 columns of B pass 125 tiles of A in
    # 5,000.
    assert best_partition(2000, 40, 16, 1, either).dataflow == "is"
    assert best_partition(40, 2000, 16, 1, either).dataflow == "ws"


@pytest.mark.parametrize(("words", "parts"), [(1, 2), (10, 3), (64, 4), (1000, 7)])
def test_reduction_is_that_of_a_ring_played_out(words: int, parts: int) -> None:
    network, each = ArrayChain(5, 3.0), -(-words // parts)
    bounds = [(min(p * each, words), min((p + 1) * each, words)) for p in range(parts)]
    sums = [[{array} for _ in range(words)] for array in range(parts)]
    cycles = 0
    for step in range(parts - 1):
        sent = [[set(x) for x in held] for held in sums]
        longest = 0
        for array in range(parts):
            first, last = bounds[(array - step) % parts]
            longest = max(longest, last - first)
            for word in range(first, last):
                sums[(array + 1) % parts][word] |= sent[array][word]
        cycles += network.latency_cycles + -(-longest // 3)
    for array in range(parts):
        first, last = bounds[(array + 1) % parts]
        assert all(sums[array][word] == set(range(parts)) for word in range(first, last))
    assert reduction_cycles(words, parts, network) == cycles


def test_passes_count_the_words_of_all_arrays() -> None:
    two = Arrays(16, 16, 2, (FoldSchedule("ws"),))
    split = best_partition(1000, 64, 48, 1, two)
    assert (split.m_parts, split.n_parts) in {(2, 1), (1, 2)}
    # Each array reads its part of A once for each of its column folds, B as often as m is split.
    assert split.a_passes == split.n_parts * (64 // split.n_parts // 16)
    assert split.b_passes == split.m_parts
    assert split.c_passes == 48 // 16
