"""The search for a layout: against brute force, and what must never make it slower."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import RidgelineError
from ridgeline.kernels.spatial import space
from ridgeline.kernels.spatial.constraints import FREE, Constraints
from ridgeline.kernels.spatial.cycle_model import CycleMachine
from ridgeline.kernels.spatial.dataflows import DATAFLOWS
from ridgeline.kernels.spatial.machine import Elements, LayoutPrices
from ridgeline.kernels.spatial.nest import (
    LOOPS,
    ConvolutionNest,
    SpatialLayout,
    TemporalLoop,
    nest_of,
)
from ridgeline.kernels.spatial.search import _STEPS, _Search, best_layout, evaluate
from ridgeline.workload.graph import Conv, Gemm

NETWORKS = CycleMachine(1, 2, 2, 1, True, True, True, False, True, 1, 2)
SMALL = Elements(
    2, 3, NETWORKS, (2, 4, 3), 10**6, 4.0, frozenset("xwy"), frozenset({"rows"}), ("any",)
)


def all_cycles(nest: ConvolutionNest, elements: Elements) -> float:
    """Time of the best of all layouts of four loops, every one of them counted."""
    loops = [d for d in LOOPS if nest.size(d) > 1]
    lengths = {d: {-(-nest.size(d) // n) for n in range(1, nest.size(d) + 1)} for d in loops}
    best = math.inf
    for tile in itertools.product(*lengths.values()):
        element = dict(zip(loops, tile, strict=True))
        for parts in itertools.product(range(1, 4), repeat=2 * len(loops)):
            rows = dict(zip(loops, parts[: len(loops)], strict=True))
            columns = dict(zip(loops, parts[len(loops) :], strict=True))
            if math.prod(rows.values()) > elements.rows:
                continue
            if math.prod(columns.values()) > elements.columns:
                continue
            base = SpatialLayout(element, rows, columns, ())
            trips = {d: -(-nest.size(d) // base.array_tile[d]) for d in loops}
            for order in itertools.permutations(loops):
                layout = replace(base, buffer=tuple(TemporalLoop(d, trips[d]) for d in order))
                if elements.refusal(nest, layout) is None:
                    best = min(best, evaluate(nest, elements, layout).time_cycles)
    return best


@pytest.mark.parametrize(
    "loops", [Gemm(2, 3, 2), Gemm(1, 7, 3), Gemm(6, 1, 4), Conv(1, 2, 3, 1, 3, 1, 1)]
)
def test_the_search_finds_what_counting_everything_finds(loops: Gemm | Conv) -> None:
    found = best_layout(nest_of(loops), SMALL)
    assert found.complete
    assert found.time_cycles == all_cycles(nest_of(loops), SMALL)


def every_layout(nest: ConvolutionNest, elements: Elements) -> Iterator[SpatialLayout]:
    """All layouts of the stated space, one after the other; the buffer splits any one loop."""
    for flow in DATAFLOWS[elements.dataflows[0]]:
        tiles = space.element_tiles(nest, elements, flow, FREE)
        axes = [space.spreads(nest, elements, flow, FREE, axis) for axis in ("rows", "columns")]
        orders = space.orders_of(nest, flow, FREE)
        for tile, rows, columns, order in itertools.product(tiles, *axes, orders):
            base = SpatialLayout(tile, rows, columns, ())
            trips = [-(-nest.size(d) // base.array_tile[d]) for d in order]
            loops = [TemporalLoop(d, trip) for d, trip in zip(order, trips, strict=True)]
            for cut, loop in enumerate(loops):
                for most in range(1, loop.trips + 1):
                    memory = (*loops[:cut], TemporalLoop(loop.of, -(-loop.trips // most)))
                    buffer = (TemporalLoop(loop.of, most), *loops[cut + 1 :])
                    layout = replace(base, buffer=buffer, memory=memory)
                    if elements.refusal(nest, layout) is None:
                        yield layout


few, width, flag = st.integers(1, 3), st.sampled_from([1, 2, 4]), st.booleans()
nests = st.builds(
    lambda sizes, *steps: ConvolutionNest(tuple(sizes), steps[:2], steps[2:]),
    st.lists(st.sampled_from([1, 1, 1, 2, 3, 5]), min_size=8, max_size=8).filter(
        lambda sizes: 1 < math.prod(sizes) <= 60
    ),
    few, few, few, few,
)  # fmt: skip
machines = st.builds(
    Elements, few, few,
    st.builds(
        CycleMachine, width, width, width, width, flag, flag, flag, flag, flag, few,
        st.sampled_from([0, 5]),
    ),
    st.tuples(few, few, few), st.sampled_from([6, 12, 30, 200]),
    st.sampled_from([0.25, 0.5, 1.0, 4.0]),
    st.sampled_from([frozenset("xwy"), frozenset("xy"), frozenset("xw"), frozenset("w")]),
    st.sampled_from([frozenset({"rows"}), frozenset({"rows", "columns"}), frozenset()]),
    st.sampled_from([(flow,) for flow in sorted(DATAFLOWS)]),
    st.builds(
        LayoutPrices, st.sampled_from([0.0, 0.5]), st.sampled_from([0.0, 30.0]), st.just(1.0),
        st.sampled_from([0.0, 5.0]), st.sampled_from([0.0, 0.3]), st.just(2.0),
        st.sampled_from(["time", "energy", "edp"]),
    ),
)  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(nest=nests, elements=machines)
def test_no_layout_of_the_stated_space_ranks_better(
    nest: ConvolutionNest, elements: Elements
) -> None:
    ranks = [
        evaluate(nest, elements, layout).rank
        for layout in itertools.islice(every_layout(nest, elements), 1500)
    ]
    if not ranks:
        with pytest.raises(RidgelineError, match="no layout of the loops"):
            best_layout(nest, elements)
        return
    found = best_layout(nest, elements)
    assert found.complete
    assert found.rank <= tuple(part * (1 + 1e-12) for part in min(ranks))


@settings(max_examples=150, deadline=None)
@given(nest=nests, elements=machines, data=st.data())
def test_words_in_closed_form_are_those_of_the_steps(
    nest: ConvolutionNest, elements: Elements, data: st.DataObject
) -> None:
    # The energy of words alone is counted in closed form; the steps are played afterwards.
    prices = LayoutPrices(
        near_j=1.0, far_j=data.draw(st.sampled_from([0.0, 100.0])), objective="energy"
    )
    elements = replace(elements, prices=prices)
    try:
        search = _Search(nest, elements, DATAFLOWS[elements.dataflows[0]][0], FREE)
        found = search.best(None)[0]
    except RidgelineError:
        return
    if found is not None:
        assert search.rank == found.rank


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
    assert after.time_cycles <= before.time_cycles


@settings(max_examples=40, deadline=None)
@given(
    nest=nests, less=machines,
    field=st.sampled_from(
        ["rows", "columns", "buffer_words", "memory_width", "x", "w", "y",
        *CycleMachine._fields[:9]]
    ),
    more=st.integers(1, 4),
)  # fmt: skip
def test_no_resource_slows_an_array_down(
    nest: ConvolutionNest, less: Elements, field: str, more: int
) -> None:
    less = replace(less, prices=less.prices._replace(objective="time"))
    try:
        before = best_layout(nest, less)
    except RidgelineError:
        return
    if field in {"x", "w", "y"}:
        room = tuple(n + more * (o == field) for n, o in zip(less.room, "xwy", strict=True))
        better = replace(less, room=room)
    elif field in CycleMachine._fields:
        now = getattr(less.networks, field)
        wider = True if isinstance(now, bool) else now + more
        better = replace(less, networks=less.networks._replace(**{field: wider}))
    else:
        better = replace(less, **{field: getattr(less, field) + more})
    after = best_layout(nest, better)
    assert after.time_cycles <= before.time_cycles
    used = less.rows * less.columns
    assert before.time_cycles >= max(nest.macs / used, sum(before.memory_words) / less.memory_width)


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
    assert TemporalLoop("n", 4) in found.layout.buffer
    order = [loop.of for loop in found.layout.loops if loop.trips > 1]
    assert order == sorted(order, key=["c", "k", "n"].index)


@pytest.mark.parametrize(
    ("change", "constraints", "message"),
    [
        ({"buffer_words": 2}, FREE, r"needs 3 words of 2 in the buffer \(images 1"),
        (
            {}, Constraints(settled=(("element", "k", 4), ("element", "c", 2))),
            "filters need 8 words of 4 in each element",
        ),
        ({}, Constraints(settled=(("rows", "k", 4),)), "rows have 2 elements, and 4 are needed"),
        (
            {}, Constraints(settled=(("columns", "c", 2),)),
            "columns add up no sums, so that k cannot be spread along them",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said_with_its_level_and_operand(
    change: dict[str, int], constraints: Constraints, message: str
) -> None:
    elements = replace(SMALL, **change)  # type: ignore[arg-type]
    with pytest.raises(RidgelineError, match=f"no layout of the loops m=4 n=4 k=4 fits.*{message}"):
        best_layout(nest_of(Gemm(4, 4, 4)), elements, constraints)


def test_rounds_of_the_search_begin_above_the_bound_and_look_at_no_layout_twice() -> None:
    assert all(before < after for before, after in itertools.pairwise((1.0, *_STEPS)))
    assert _STEPS[-1] == math.inf  # the last round leaves nothing out
