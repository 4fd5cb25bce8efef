"""Steps of phases and ramps, against adding them up one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.training.steps import StepPhase, StepTimes, ramp_steps


@given(
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    share=st.floats(0.05, 0.95),
    cut=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_parts_are_the_whole(counts: list[int], share: float, cut: tuple[float, float]) -> None:
    grows = StepPhase(counts[0], 3.0, 0.3, 1.0, 0.0, share)
    times = StepTimes((grows, *(StepPhase(count, 1.0 + count) for count in counts[1:])))
    whole, waits = times.between(0, times.count)
    assert len(whole) == times.count == sum(counts)
    assert whole.sum() == pytest.approx(times.undisturbed_s)
    assert waits[: counts[0]].max() <= 0.3
    first, last = sorted(round(c * times.count) for c in cut)
    part, _ = times.between(first, last)
    assert np.array_equal(part, whole[first:last])


def test_a_ramp_by_counting_samples() -> None:
    start, batch, samples = 192, 2048, 9_765_625
    steps, taken = 0, 0.0
    while taken < samples:
        taken += start + taken * (batch - start) / samples
        steps += 1
    assert ramp_steps(start, batch, samples) == pytest.approx(steps, abs=2)
    # BLOOM's log: iteration 12,695 at 9.84 million samples.
    assert ramp_steps(start, batch, 9.84e6) == pytest.approx(12_695, rel=0.02)


def test_a_growing_batch_begins_small_and_ends_whole() -> None:
    phase = StepPhase(1000, 10.0, 1.0, 2.0, 0.0, 0.1)
    times = phase.between(0, 1000)
    assert times[0].tolist() == [2.0, 0.0]
    assert np.all(np.diff(times[:, 0]) > 0)
    assert times[-1, 0] == pytest.approx(10.0, rel=0.01)
