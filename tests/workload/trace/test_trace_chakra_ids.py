"""Numbers out of Chakra traces against what is obviously right."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.workload.trace.chakra_ids import distinct, whole_numbers


@given(
    st.lists(
        st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3) | st.sampled_from([2**40, 2**41])
    )
)
@settings(max_examples=60, deadline=None)
def test_different_values_are_numbered_as_they_appear(values: list[int]) -> None:
    which, first = distinct(np.array(values, np.int64))
    seen = list(dict.fromkeys(values))
    assert which.tolist() == [seen.index(value) for value in values]
    assert first.tolist() == [values.index(value) for value in seen]


def test_columns_that_do_not_lie_together_are_numbered_too() -> None:
    which, first = distinct(np.arange(20, dtype=np.int64).reshape(10, 2)[:, 1] // 4)
    assert which.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert first.tolist() == [0, 2, 4, 6, 8]


def test_whole_numbers_of_32_bits() -> None:
    whole, bad = whole_numbers(np.array([0.0, -0.0, np.nan, 2.0**31 - 1, 1 - 2.0**31]), -7)
    assert (whole.tolist(), bad) == ([0, 0, -7, 2**31 - 1, 1 - 2**31], -1)
    for value in (0.5, 2.0**31, -(2.0**31), np.inf, -np.inf):
        assert whole_numbers(np.array([1.0, value]), 0)[1] == 1
