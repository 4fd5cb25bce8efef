"""Cuts of a pipeline that know their messages, against every cut written out."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.parallel.stages.cuts import Pace, balance_step

NUMBERS = st.floats(0.01, 4.0)


def step_of(times: list[float], cuts: tuple[int, ...], sizes: list[float], pace: Pace) -> float:
    """Seconds of messages of one micro-batch, and all periods but one, by the rules in words."""
    stages = [sum(times[i:j]) for i, j in pairwise(cuts)]
    sent = [
        2 * (late + each * sizes[cut - 1])
        for late, each, cut in zip(pace.late_s, pace.byte_s, cuts[1:-1], strict=True)
    ]
    period = max([*stages, *sent])
    if pace.returns:
        for k in range(len(stages)):
            round_trip = sum(stages[k:]) + sum(sent[k:])
            period = max(period, round_trip / (len(stages) - k))
    return max(pace.micro_batches - 1, 1) * period + sum(sent)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_cut_written_out_gives_a_shorter_step(data: st.DataObject) -> None:
    n = data.draw(st.integers(2, 8))
    stages = data.draw(st.integers(2, min(n, 5)))
    times = data.draw(st.lists(NUMBERS, min_size=n, max_size=n))
    sizes = data.draw(st.lists(NUMBERS, min_size=n, max_size=n))
    links = st.lists(NUMBERS, min_size=stages - 1, max_size=stages - 1).map(tuple)
    pace = Pace(
        data.draw(st.integers(1, 20)), data.draw(links), data.draw(links), data.draw(st.booleans())
    )
    found = balance_step(times, stages, sizes, pace)
    cuts = (0, *(stage.stop for stage in found))
    least = min(
        step_of(times, (0, *inner, n), sizes, pace)
        for inner in combinations(range(1, n), stages - 1)
    )
    assert step_of(times, cuts, sizes, pace) == pytest.approx(least, rel=1e-8)
