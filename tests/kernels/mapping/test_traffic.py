"""Traffic in closed form against a nest played element by element through explicit buffers."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nests import convs, gemms, mappings, nests

from oracles.mapping_trace import Trace, elements, index_of, points
from ridgeline.errors import RidgelineError
from ridgeline.kernels.mapping.footprint import count_touched
from ridgeline.kernels.mapping.mapping import LevelLoops, Mapping, TileLoop
from ridgeline.kernels.mapping.nest import ContractionNest, nest_of
from ridgeline.kernels.mapping.traffic import pack_axes, traffic
from ridgeline.workload.graph import Conv, Gemm
from thoroughly import sample_of


def check(nest: ContractionNest, mapping: Mapping) -> None:
    shuffled = random.Random(0)
    a, b = (
        {
            index: float(shuffled.randrange(-9, 10))
            for index in itertools.product(*(range(axis.extent) for axis in operand.axes))
        }
        for operand in nest.operands[:2]
    )
    played = Trace(nest, mapping, a, b)
    product: dict[tuple[int, ...], float] = {}
    for point in points({dim: (0, size) for dim, size in nest.size.items()}):
        at = [index_of(operand, point) for operand in nest.operands]
        if None not in at:
            product[at[2]] = product.get(at[2], 0.0) + a[at[0]] * b[at[1]]
    assert {i: v for i, v in played.result.items() if v} == {i: v for i, v in product.items() if v}
    for moved in traffic(nest, mapping):
        key = moved.level, moved.operand
        assert (moved.loads, moved.stores) == (played.loads[key], played.stores[key]), moved


@sample_of(63, 250, st.data())
def test_matrix_products(data: st.DataObject) -> None:
    nest = nest_of(data.draw(gemms()))
    check(nest, data.draw(mappings(nest)))


@sample_of(63, 250, st.data())
def test_convolutions_and_their_gradients(data: st.DataObject) -> None:
    nest = data.draw(nests)
    check(nest, data.draw(mappings(nest)))


@settings(deadline=None)
@given(convs(), st.data())
def test_elements_of_a_window(conv: Conv, data: st.DataObject) -> None:
    """The closed form of what a tile of output rows and filter rows touches of the image."""
    nest = nest_of(conv)
    size = nest.size
    tile = dict.fromkeys(nest.dims, (0, 1))
    for dim in "pr":
        low = data.draw(st.integers(0, size[dim] - 1))
        tile[dim] = (low, data.draw(st.integers(low + 1, size[dim])))
    rows = {
        index[3]
        for index in elements(nest.operands[0], {**tile, "q": (0, size["q"]), "s": (0, size["s"])})
    }
    axis = pack_axes(nest)[0][3]
    wide = elements(nest.operands[0], {**tile, "q": (0, size["q"]), "s": (0, size["s"])})
    if wide:  # some column is no padding
        assert count_touched(*tile["p"], *tile["r"], axis) == len(rows)


def test_the_textbook_orders_of_a_product() -> None:
    """(m, n, k), (n, k, m) and (m, k, n) with tiles of 8 x 8 x 8: a, b and c by hand."""
    m, n, k = 40, 24, 32
    nest = nest_of(Gemm(m, n, k))
    want = {
        "mnk": (m * k * 3, k * n * 5, m * n, 0),
        "nkm": (m * k * 3, k * n, m * n * 4, m * n * 3),
        "mkn": (m * k, k * n * 5, m * n * 4, m * n * 3),
    }
    trips = {"m": 5, "n": 3, "k": 4}
    inner = tuple(TileLoop(dim, 8) for dim in "mnk")
    for order, (a, b, stores, loads) in want.items():
        outer = tuple(TileLoop(dim, trips[dim]) for dim in order)
        mapping = Mapping((LevelLoops("far", outer), LevelLoops("near", inner)))
        moved = {x.operand: x for x in traffic(nest, mapping)}
        assert (moved["a"].loads, moved["b"].loads) == (a, b)
        assert (moved["c"].stores, moved["c"].loads, moved["c"].final) == (stores, loads, m * n)


def test_a_mapping_that_does_not_fit_its_nest() -> None:
    nest = nest_of(Gemm(4, 4, 4))
    whole = tuple(TileLoop(dim, 4) for dim in "mnk")
    far, near = LevelLoops("far"), LevelLoops("near", whole)
    traffic(nest, Mapping((far, near)))
    bad = {
        "no dimension 'o'": Mapping((far, LevelLoops("near", (*whole, TileLoop("o", 1))))),
        "cover 2 of 4": Mapping((far, LevelLoops("near", (*whole[:2], TileLoop("k", 2))))),
        "at least 1": Mapping((far, near), rows=(TileLoop("k", 0),)),
        "keeps a, b and c": Mapping((LevelLoops("far", keeps=("a",)), near)),
    }
    for message, mapping in bad.items():
        with pytest.raises(RidgelineError, match=message):
            traffic(nest, mapping)
