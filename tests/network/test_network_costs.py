"""LogGP with message semantics, and BSP."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import RidgelineError
from ridgeline.network import collective
from ridgeline.network.algorithm import DoesNotApplyError
from ridgeline.network.collectives import ALGORITHMS
from ridgeline.network.loggp_bsp_costs import BSP, LogGP, cost_of

WHERE = "FullyConnected({n}, 10 GB/s, 1 us)"


def time_s(op: str, algorithm: str, n: int, size: float, cost: LogGP | BSP) -> float:
    return collective(op, size, WHERE.format(n=n), algorithm=algorithm, cost=cost).time_s


def test_one_message_costs_latency_two_overheads_and_its_bytes() -> None:
    cost = LogGP(overhead_s=3e-6, gap_s=1e-6)
    assert time_s("send", "direct", 2, 1e6, cost) == pytest.approx(1e-6 + 2 * 3e-6 + 1e-4)
    one_sided = LogGP(overhead_s=3e-6, semantics="one-sided")
    assert time_s("send", "direct", 2, 1e6, one_sided) == pytest.approx(1e-6 + 3e-6 + 1e-4)
    asking = LogGP(overhead_s=3e-6, rendezvous_bytes=1e6)
    assert time_s("send", "direct", 2, 1e6, asking) == pytest.approx(3e-6 + 2 * 3e-6 + 1e-4)
    assert time_s("send", "direct", 2, 1e6 - 1, asking) < 1.08e-4


@pytest.mark.parametrize("n", [2, 5, 16])
def test_direct_messages_leave_one_after_the_other(n: int) -> None:
    size = 8.0 * n  # a few bytes each
    each = 8.0 / 10e9
    for overhead, gap in ((2e-6, 0.0), (0.0, 2e-6), (1e-6, 3e-6)):
        cost = LogGP(overhead_s=overhead, gap_s=gap, semantics="one-sided")
        expected = overhead + (n - 2) * max(overhead, gap, each) + 1e-6 + each
        assert time_s("all-to-all", "direct", n, size, cost) == pytest.approx(expected, rel=1e-3)


@settings(max_examples=60, deadline=None)
@given(
    key=st.sampled_from(sorted(ALGORITHMS)),
    n=st.integers(2, 17),
    size=st.sampled_from([0.0, 1e3, 12345678.9]),
)
def test_costs_are_ordered(key: tuple[str, str], n: int, size: float) -> None:
    """Overheads and rendezvous never help; receivers that take no part never hurt."""
    op, name = key
    try:
        free = time_s(op, name, n, size, LogGP())
    except DoesNotApplyError:
        return
    except RidgelineError:
        return  # not made for a complete graph
    eager = time_s(op, name, n, size, LogGP(1e-6, 5e-7))
    asking = time_s(op, name, n, size, LogGP(1e-6, 5e-7, rendezvous_bytes=0.0))
    put = time_s(op, name, n, size, LogGP(1e-6, 5e-7, "one-sided"))
    assert free <= put * (1 + 1e-12)
    assert put <= eager * (1 + 1e-12)
    assert eager <= asking * (1 + 1e-12)


@pytest.mark.parametrize("n", [2, 7, 32])
def test_without_overheads_a_ring_takes_its_closed_form(n: int) -> None:
    plain = collective("all-reduce", 1e6, WHERE.format(n=n), algorithm="ring").time_s
    assert time_s("all-reduce", "ring", n, 1e6, LogGP()) == pytest.approx(plain, rel=1e-12)


def test_bsp_adds_up_supersteps() -> None:
    cost = BSP(gap_s_per_byte=1e-9, barrier_s=5e-6, work_s=1e-6)
    n, size = 8, 8e5
    expected = 2 * (n - 1) * (1e-6 + size / n * 1e-9 + 5e-6)
    assert time_s("all-reduce", "ring", n, size, cost) == pytest.approx(expected)
    # h of a direct gather is what the root receives
    expected = 1e-6 + size * (n - 1) / n * 1e-9 + 5e-6
    assert time_s("gather", "direct", n, size, cost) == pytest.approx(expected)
    # by default g of the ports and a tree of latencies
    assert time_s("gather", "direct", n, size, BSP()) == pytest.approx(
        size * (n - 1) / n / 10e9 + 3 * 1e-6
    )


def test_auto_takes_the_cheapest_by_the_cost() -> None:
    slow = LogGP(overhead_s=1e-3)
    best = collective("all-to-all", 1e4, WHERE.format(n=16), cost=slow)
    assert best.algorithm == "bruck"  # four messages a rank instead of fifteen
    assert collective("all-to-all", 1e4, WHERE.format(n=16)).algorithm == "direct"


def test_costs_are_read() -> None:
    assert cost_of("bsp g=0.5ns l=2us") == BSP(0.5e-9, 2e-6, 0.0)
    assert cost_of("loggp overhead=1us semantics=one-sided rendezvous=64kB") == LogGP(
        1e-6, 0.0, "one-sided", 64e3
    )
    for wrong in ("log", "bsp q=1us", "loggp semantics=three", "loggp overhead=1MB"):
        with pytest.raises(RidgelineError):
            cost_of(wrong)


def test_one_rank_has_nothing_to_do() -> None:
    answer = collective("all-reduce", 1e6, "dgx-a100", ranks=1)
    assert answer.time_s == 0.0
    assert not answer.link_utilisation
    assert np.isclose(answer.energy_j, 0.0)
