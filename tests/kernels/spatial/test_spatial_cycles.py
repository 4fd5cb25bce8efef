"""The recurrence against the array of elements, which moves every word and returns the product."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import strategies as st
from layouts import Case, cases, convolution, operands

from oracles import pe_array
from oracles.pe_array import element_level_product
from ridgeline.errors import RidgelineError
from ridgeline.kernels.spatial.count import count, work_of
from ridgeline.kernels.spatial.cycle_model import CycleMachine
from ridgeline.kernels.spatial.nest import ConvolutionNest, SpatialLayout, TemporalLoop, nest_of
from ridgeline.workload.graph import Conv, Gemm
from thoroughly import sample_of

WIDE = CycleMachine(1, 1, 1, 1, True, True, True, True, True, 1, 0)


@sample_of(125, 500, case=cases(), seed=st.integers(0, 2**32))
def test_cycles_words_and_product_are_those_of_the_played_array(case: Case, seed: int) -> None:
    nest, layout, machine = case
    x, w = operands(nest, seed)
    product, cycles, words = element_level_product(x, w, work_of(nest, layout), machine)
    found = count(nest, layout, machine)
    assert (product == convolution(x, w, nest)).all()
    assert cycles == found.cycles
    assert words == [found.x_words, found.w_words, found.in_words, found.out_words]


@sample_of(50, 200, case=cases())
def test_leaving_out_repeated_iterations_changes_nothing(case: Case) -> None:
    assert count(*case) == count(*case, skip=False)


@sample_of(
    38, 150, case=cases(), field=st.sampled_from(CycleMachine._fields), more=st.integers(1, 5)
)
def test_a_better_array_is_never_slower(case: Case, field: str, more: int) -> None:
    now = getattr(case.machine, field)
    better = True if isinstance(now, bool) else now + more
    if field in {"hop", "setup"}:
        case, better = case._replace(machine=case.machine._replace(**{field: now + more})), now
    improved = count(case.nest, case.layout, case.machine._replace(**{field: better}))
    assert improved.cycles <= count(*case).cycles


@sample_of(38, 150, case=cases())
def test_bounds(case: Case) -> None:
    nest, layout, machine = case
    found, work = count(*case), work_of(nest, layout)
    used = int(np.prod(work.rows) * np.prod(work.columns))
    assert found.cycles > found.busy_cycles >= nest.macs / used
    for words, width in zip(
        (found.x_words, found.w_words, found.in_words, found.out_words), machine[:4], strict=True
    ):
        assert found.cycles >= words / width
    assert found.w_words >= nest.words("w")
    assert found.out_words - found.in_words == nest.words("y")


def test_an_element_that_lacks_a_word_stops_the_array(monkeypatch: pytest.MonkeyPatch) -> None:
    nest = ConvolutionNest((1, 1, 1, 2, 1, 4, 1, 3))
    layout = SpatialLayout({"s": 3}, {}, {}, (TemporalLoop("c", 2), TemporalLoop("q", 4)))
    x, w = operands(nest, 0)
    plan = pe_array.plan_of(work_of(nest, layout))
    monkeypatch.setattr(
        pe_array, "plan_of", lambda _: plan._replace(w_new=np.arange(len(plan.at)) == 0)
    )
    with pytest.raises(RidgelineError, match="lacks a word"):
        element_level_product(x, w, work_of(nest, layout), WIDE)


def test_a_row_stationary_pass_by_hand() -> None:
    # One row of 3 taps slides over 6 pixels: fill of 3 words and then one word a step of 3
    # multiplications; the last result leaves a cycle after the last multiplication.
    nest = nest_of(Conv(1, 1, 1, 6, 1, 1, 3))
    found = count(nest, SpatialLayout({"s": 3}, {}, {}, (TemporalLoop("q", 4),)), WIDE)
    assert (found.cycles, found.busy_cycles) == (3 + 4 * 3 + 1, 12)
    assert (found.x_words, found.w_words, found.out_words) == (6, 3, 4)


def test_multicast_sends_once_what_others_send_to_each() -> None:
    nest = nest_of(Gemm(1, 6, 5))
    layout = SpatialLayout({}, {}, {"k": 6}, (TemporalLoop("c", 5),))
    assert count(nest, layout, WIDE).x_words == 5
    assert count(nest, layout, WIDE._replace(x_multicast=False)).x_words == 30


def test_a_chain_of_neighbours_adds_up_before_its_sum_leaves() -> None:
    nest = nest_of(Gemm(1, 1, 8))
    alone = count(nest, SpatialLayout({"c": 8}, {}, {}, ()), WIDE)
    spread = count(nest, SpatialLayout({}, {"c": 8}, {}, ()), WIDE)
    assert alone.cycles == 8 + 8 + 1  # loads, multiplications, the sum leaves
    assert spread.cycles == 8 + 1 + 7 + 1  # loads, a multiplication, hops, the sum leaves


def test_counting_a_large_layer_takes_few_steps() -> None:
    nest = nest_of(Conv(256, 256, 56, 56, 256, 3, 3, padding=(1, 1)))
    loops = tuple(TemporalLoop(d, t) for d, t in zip("ncpkq", (256, 64, 4, 16, 56), strict=True))
    layout = SpatialLayout({"s": 3, "c": 4, "k": 16}, {"r": 3}, {"p": 14}, loops)
    found = count(nest, layout, WIDE)
    assert found.steps == np.prod([loop.trips for loop in loops])
    assert found.busy_cycles == found.steps * 192


@pytest.mark.parametrize(
    ("tile", "strides", "dilations"), [*itertools.product((1, 3), (1, 2), (1, 2))]
)
def test_words_of_a_window(tile: int, strides: int, dilations: int) -> None:
    nest = ConvolutionNest((1, 1, 1, 1, 5, 5, 3, 3), (strides,) * 2, (dilations,) * 2)
    places = {i * strides + j * dilations for i in range(tile) for j in range(3)}
    assert nest.words("x", {"p": tile, "q": 1, "r": 3}) == len(places)
