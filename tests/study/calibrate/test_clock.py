"""Times are taken around work that is done, and what was disturbed does not count."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.study.calibrate.clock import Stopwatch, measure, undisturbed


class Accelerator:
    """A device whose work takes time only when it is waited for."""

    def __init__(self, run_s: float, launch_s: float = 1e-6) -> None:
        self.time_s, self.queued_s, self.run_s, self.launch_s = 0.0, 0.0, run_s, launch_s
        self.runs = 0

    def run(self) -> None:
        self.runs += 1
        self.time_s += self.launch_s
        self.queued_s = max(self.queued_s - self.launch_s, 0.0) + self.run_s

    def synchronize(self) -> None:
        self.time_s += self.queued_s
        self.queued_s = 0.0


def test_work_that_was_only_started_is_waited_for() -> None:
    device = Accelerator(1e-3)
    watch = Stopwatch(lambda: device.time_s, device.synchronize)
    device.run()  # of before: it must not be counted
    assert watch.seconds(device.run, 10) == pytest.approx(1e-3, rel=0.01)
    careless = Stopwatch(lambda: device.time_s)
    assert careless.seconds(device.run, 10) == pytest.approx(1e-6)  # what the mistake would say


def test_short_work_is_repeated_and_long_work_is_not() -> None:
    short, long = Accelerator(2e-6), Accelerator(0.4)
    for device, runs in ((short, 500), (long, 10)):
        watch = Stopwatch(lambda d=device: d.time_s, device.synchronize)
        sample = measure(device.run, watch, 0.05)
        assert sample.seconds == pytest.approx(device.run_s, rel=0.01)
        assert (device.runs > runs) == (device is short)
    assert long.runs <= 2 + 4


def test_a_clock_that_stands_still_is_no_endless_loop() -> None:
    assert measure(lambda: None, Stopwatch(lambda: 0.0)).seconds == 0.0


@settings(max_examples=100, deadline=None)
@given(
    disturbed=st.lists(st.floats(1.5, 100.0), max_size=5),
    jitter=st.lists(st.floats(0.98, 1.02), min_size=6, max_size=12),
)
def test_what_was_disturbed_does_not_count(disturbed: list[float], jitter: list[float]) -> None:
    sample = undisturbed([*disturbed, *jitter])
    assert 0.98 <= sample.seconds <= 1.02
    assert sample.kept == len(jitter)
    assert sample.taken == len(jitter) + len(disturbed)
    assert sample.spread <= 0.04
