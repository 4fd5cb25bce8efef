"""The interval arithmetic behind the time account, against a brute-force clock."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.report.accounting import overlap, union

intervals = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12).map(
    lambda pairs: np.array([(a, a + d) for a, d in pairs], dtype=float).reshape(-1, 2)
)


def ticks(spans: np.ndarray) -> set[int]:
    """All whole ticks that are covered."""
    return {t for start, end in spans for t in range(int(start), int(end))}


@given(a=intervals, b=intervals)
def test_union_and_overlap_against_a_clock(a: np.ndarray, b: np.ndarray) -> None:
    first, second = union(a[:, 0], a[:, 1]), union(b[:, 0], b[:, 1])
    assert ticks(first) == ticks(a)
    assert np.all(first[1:, 0] > first[:-1, 1])
    assert overlap(first, second) == pytest.approx(len(ticks(a) & ticks(b)))
