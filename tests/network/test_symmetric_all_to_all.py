"""An all-to-all of thousands is told from some sources, with the loads of all messages."""

from __future__ import annotations

import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import RidgelineError
from ridgeline.network import collective, from_text
from ridgeline.network.algorithm import ALGORITHMS, MANY
from ridgeline.network.schedule import CollectiveSchedule, closed_form_time_s
from ridgeline.network.symmetric import exchange_phases

PLACES = st.lists(st.integers(2, 6), min_size=2, max_size=3).map(lambda e: "x".join(map(str, e)))


@settings(max_examples=25, deadline=None)
@given(
    st.one_of(
        st.builds("Torus({}, 50 GB/s, 1 us)".format, PLACES),
        st.builds("Mesh({}, 50 GB/s, 1 us)".format, PLACES),
        st.builds("Switch({}, 50 GB/s, 1 us)".format, st.integers(2, 40)),
        st.builds("Switch({0}, 50 GB/s, 1 us)_Switch({0}, 9 GB/s, 2 us)".format, st.integers(2, 6)),
        st.just("FatTree(4, 10 GB/s, 1 us)"),
    )
)  # fmt: skip
def test_it_is_what_all_messages_put_on_the_links(text: str) -> None:
    topology = from_text(text)
    n = topology.n_devices
    whole = ALGORITHMS["all-to-all", "direct"](topology, tuple(range(n)), 1e6)
    folded = CollectiveSchedule("all-to-all", "direct", n, 1e6, exchange_phases(topology, 1e6))
    # which way a message goes half-way round may depend on other dimensions
    loads, expected = folded.bytes_on_wire(), whole.bytes_on_wire()
    assert loads.keys() == expected.keys()
    assert sorted(loads.values()) == pytest.approx(sorted(expected.values()), rel=1e-9)
    assert closed_form_time_s(folded, topology) == pytest.approx(
        closed_form_time_s(whole, topology), rel=1e-9
    )


def test_thousands_take_little_memory() -> None:
    topology = from_text("Torus(64x64, 50 GB/s, 1 us)")
    tracemalloc.start()
    began = time.perf_counter()
    found = collective("all-to-all", 1e8, topology)
    assert time.perf_counter() - began < 10
    assert tracemalloc.get_traced_memory()[1] < 2e8
    tracemalloc.stop()
    n = topology.n_devices
    assert n > MANY
    # n²/8 messages cross the middle one way on 64 rows of two cuts: 64 / 8 of the payload a link
    assert found.time_s == pytest.approx(64e-6 + 64 / 8 * 1e8 / 50e9, rel=0.05)


def test_what_does_not_fit_is_refused_before_it_is_taken() -> None:
    topology = from_text("Switch(8192, 50 GB/s, 1 us)")
    with pytest.raises(RidgelineError, match=r"has 67092481 messages, .* about 13 GB of memory"):
        collective("all-to-all", 1e6, topology, ranks=8191)
