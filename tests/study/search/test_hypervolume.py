"""Hypervolume against the cells that it counts."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.study.search.hypervolume import hypervolume, non_dominated

SIDE = 5


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_whole_points_dominate_as_many_cells(data: st.DataObject) -> None:
    d = data.draw(st.integers(1, 4))
    point = st.tuples(*[st.integers(0, SIDE + 1)] * d)
    points = data.draw(st.lists(point, max_size=8))
    cells = sum(
        any(all(p <= c for p, c in zip(point, cell, strict=True)) for point in points)
        for cell in itertools.product(range(SIDE), repeat=d)
    )
    assert hypervolume(np.array(points).reshape(-1, d), [SIDE] * d) == cells


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_the_front_is_what_no_other_point_beats(d: int, n: int, seed: int) -> None:
    points = np.random.default_rng(seed).integers(0, 4, (n, d)).astype(float)
    expected = {
        tuple(p) for p in points if not any((q <= p).all() and (q < p).any() for q in points)
    }
    assert {tuple(p) for p in non_dominated(points)} == expected
    whole = hypervolume(points, np.full(d, 4.0))
    assert whole == hypervolume(non_dominated(points), np.full(d, 4.0))
    assert whole >= hypervolume(points[: n // 2], np.full(d, 4.0))
