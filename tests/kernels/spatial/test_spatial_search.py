"""The search for a layout: against brute force, and what must never make it slower."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import RidgelineError
from ridgeline.kernels.spatial.clock import Machine
from ridgeline.kernels.spatial.constraints import Constraints
from ridgeline.kernels.spatial.dataflows import DATAFLOWS
from ridgeline.kernels.spatial.machine import Elements
from ridgeline.kernels.spatial.nest import LOOPS, Layout, Loop, Nest, nest_of
from ridgeline.kernels.spatial.search import best_layout, evaluate
from ridgeline.workload.graph import Conv, Gemm

NETWORKS = Machine(1, 2, 2, 1, True, True, True, False, True, 1, 2)
SMALL = Elements(
    2, 3, NETWORKS, (2, 4, 3), 10**6, 4.0, frozenset("xwy"), frozenset({"rows"}), ("any",)
)


def brute_force(nest: Nest, elements: Elements) -> int:
    """Cycles of the best of all layouts of four loops, every one of them counted."""
    loops = [d for d in LOOPS if nest.size(d) > 1]
    lengths = {d: {-(-nest.size(d) // n) for n in range(1, nest.size(d) + 1)} for d in loops}
    best = 10**18
    for tile in itertools.product(*lengths.values()):
        element = dict(zip(loops, tile, strict=True))
        for parts in itertools.product(range(1, 4), repeat=2 * len(loops)):
            rows = dict(zip(loops, parts[: len(loops)], strict=True))
            columns = dict(zip(loops, parts[len(loops) :], strict=True))
            if math.prod(rows.values()) > elements.rows:
                continue
            if math.prod(columns.values()) > elements.columns:
                continue
            base = Layout(element, rows, columns, ())
            trips = {d: -(-nest.size(d) // base.array_tile[d]) for d in loops}
            for order in itertools.permutations(loops):
                layout = replace(base, buffer=tuple(Loop(d, trips[d]) for d in order))
                if elements.refusal(nest, layout) is None:
                    best = min(best, evaluate(nest, elements, layout).cycles)
    return best


@pytest.mark.parametrize(
    "loops", [Gemm(2, 3, 2), Gemm(1, 7, 3), Gemm(6, 1, 4), Conv(1, 2, 3, 1, 3, 1, 1)]
)
def test_the_search_finds_what_brute_force_finds(loops: Gemm | Conv) -> None:
    found = best_layout(nest_of(loops), SMALL)
    assert found.complete
    assert found.cycles == brute_force(nest_of(loops), SMALL)


sizes = st.integers(1, 24)


@settings(max_examples=40, deadline=None)
@given(
    m=sizes, n=sizes, k=sizes, flow=st.sampled_from(sorted(DATAFLOWS)),
    field=st.sampled_from(["rows", "columns", "buffer_words", "memory_width", "w_words"]),
)  # fmt: skip
def test_more_of_anything_is_never_slower(m: int, n: int, k: int, flow: str, field: str) -> None:
    less = replace(SMALL, dataflows=(flow,), buffer_words=40)
    if field == "w_words":
        more = replace(less, networks=NETWORKS._replace(w_words=5))
    else:
        more = replace(less, **{field: 2 * getattr(less, field)})
    before, after = (best_layout(nest_of(Gemm(m, n, k)), e) for e in (less, more))
    if before.complete and after.complete:
        assert after.cycles <= before.cycles


convs = st.builds(
    Conv, batch=st.integers(1, 2), c_in=st.integers(1, 6), h_in=st.integers(5, 9),
    w_in=st.integers(5, 9), c_out=st.integers(1, 8), r=st.integers(1, 3), s=st.integers(1, 3),
    stride=st.sampled_from([(1, 1), (2, 2)]), padding=st.sampled_from([(0, 0), (1, 1)]),
)  # fmt: skip


@settings(max_examples=12, deadline=None)
@given(conv=convs, flow=st.sampled_from(sorted(DATAFLOWS)))
def test_what_is_found_fits_and_stays_above_the_bounds(conv: Conv, flow: str) -> None:
    nest = nest_of(conv)
    elements = replace(SMALL, room=(6, 12, 6), buffer_words=400, dataflows=(flow,))
    found = best_layout(nest, elements)
    assert elements.refusal(nest, found.layout) is None
    assert found.counts.busy_cycles * 6 >= nest.macs
    _, w, y_in, y_out = found.memory_words
    assert w >= nest.words("w")
    assert y_out - y_in == nest.words("y")
    assert found == best_layout.__wrapped__(nest, elements)  # deterministic


def test_a_settled_factor_and_order_are_kept() -> None:
    nest = nest_of(Gemm(8, 6, 10))
    settled = (("rows", "c", 2), ("element", "k", 3), ("buffer", "n", 4))
    found = best_layout(nest, SMALL, Constraints(settled=settled, ordered=("c", "k", "n")))
    assert found.layout.rows["c"] == 2
    assert found.layout.element["k"] == 3
    assert Loop("n", 4) in found.layout.buffer
    order = [loop.of for loop in found.layout.loops if loop.trips > 1]
    assert order == sorted(order, key=["c", "k", "n"].index)


def test_an_array_without_room_says_so() -> None:
    elements = replace(SMALL, buffer_words=2)
    with pytest.raises(RidgelineError, match=r"no layout of the loops m=4 n=4 k=4 fits"):
        best_layout(nest_of(Gemm(4, 4, 4)), elements)
