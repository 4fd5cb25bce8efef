"""Constants of a machine from measurements of its collectives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import RidgelineError
from ridgeline.hardware import load_cluster
from ridgeline.network import from_cluster, nccl
from ridgeline.network.calibration import RingFit, Timing, fit_linear, fit_machine
from ridgeline.study.reproduce import reproduce

A100 = from_cluster(load_cluster("dgx-a100"), 8)
CACHE_BYTES = 20 * 2.0**20


def timing(n: int, size_bytes: float, op: str = "all-reduce") -> Timing:
    return Timing("ring-simple", 1.0, nccl.ring_parts(op, A100, range(n), size_bytes))


def test_a_line_is_found_in_spite_of_an_odd_point() -> None:
    model = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    measured = 0.5 + 1.2 * model
    measured[2] *= 2
    assert fit_linear(model, measured) == pytest.approx((0.5, 1.2), rel=1e-3)
    with pytest.raises(RidgelineError, match="two different sizes"):
        fit_linear(model[:1], measured[:1])
    with pytest.raises(RidgelineError, match="above 0"):
        fit_linear(model, measured - 1.7)


def test_parts_of_a_ring() -> None:
    # 14 rounds of two slices; 1/8 of the payload a chunk, of which the buffers hold two
    parts = nccl.ring_parts("all-reduce", A100, range(8), 2.0**26)
    assert parts.slices == 28
    assert parts.wire_s == pytest.approx(14 / 8 * 2**26 / 240e9)
    assert (parts.copied_bytes, parts.buffered_bytes) == (2.0**23, 2.0**24)
    assert parts.full_slices
    # half a MiB over 24 channels is less than one slice of 32 KiB each
    small = nccl.ring_parts("reduce-scatter", A100, range(8), 2.0**22)
    assert (small.slices, small.full_slices) == (7, False)
    # no more than 4 MiB a channel
    assert nccl.ring_parts("all-gather", A100, range(2), 2.0**30).buffered_bytes == 96 * 2.0**20
    with pytest.raises(RidgelineError, match="found 'broadcast' on 8"):
        nccl.ring_parts("broadcast", A100, range(8), 1e6)
    with pytest.raises(RidgelineError, match="two ranks or more"):
        nccl.ring_parts("all-reduce", A100, [0], 1e6)


@settings(max_examples=25, deadline=None)
@given(
    st.floats(5e-6, 60e-6), st.floats(0.2e-6, 8e-6), st.floats(0.7, 1.4), st.floats(0.8, 1.0),
    st.floats(1e-12, 5e-12),
)  # fmt: skip
def test_constants_of_a_machine_are_found_again(
    start_s: float, slice_s: float, scale: float, cached: float, copy_s: float
) -> None:
    made = RingFit(start_s, slice_s, scale, cached * scale, copy_s, CACHE_BYTES)
    fitted = [timing(n, 2.0**power) for n in (2, 4, 8) for power in range(23, 31, 2)]
    fit = fit_machine(fitted, np.array([made.time_s(one.parts) for one in fitted]), CACHE_BYTES)
    # sizes, an operation and group sizes that were not fitted
    for other in (timing(3, 5e7), timing(6, 3e8), timing(8, 2.0**24, "all-gather")):
        assert fit.time_s(other) == pytest.approx(made.time_s(other.parts), rel=1e-6)


def test_too_few_rows_leave_the_model() -> None:
    two = [timing(8, 2.0**power) for power in (24, 26)]
    left = fit_machine(two, np.array([2.0, 3.0]), CACHE_BYTES)
    assert left.ring is None
    assert left.time_s(two[0]) == 1.0
    # one group size does not tell what is paid a round from what is paid once
    one_size = [timing(8, 2.0**power) for power in range(24, 31)]
    assert fit_machine(one_size, np.arange(1.0, 8.0), CACHE_BYTES).ring is None
    # without a second row in cache there is one scale
    most = [timing(n, 2.0**power) for n in (2, 4, 8) for power in (27, 28, 29)]
    told = RingFit(3e-5, 3e-6, 1.1, 1.1, 2e-12, CACHE_BYTES)
    fit = fit_machine(most, np.array([told.time_s(one.parts) for one in most]), CACHE_BYTES)
    assert fit.ring is not None
    assert fit.ring.scale == fit.ring.scale_in_cache
    with pytest.raises(RidgelineError, match="found 1 for 2"):
        fit_machine(two, np.array([1.0]), CACHE_BYTES)
    with pytest.raises(RidgelineError, match="above 0"):
        fit_machine(most, np.zeros(len(most)), CACHE_BYTES)


def test_calibrated_all_reduces_are_within_three_percent() -> None:
    made = reproduce("nccl-all-reduce")
    errors_of: dict[str, list[float]] = {}
    for row in made.rows:
        errors_of.setdefault(row.group, []).append(abs(row.residual))
    assert len(errors_of) == 5
    means = {group: sum(errors) / len(errors) for group, errors in errors_of.items()}
    assert max(means.values()) < 0.03  # the constants of an A100 are shared by three sources
    # sizes between those of the fit
    left_out = [error for errors in errors_of.values() for error in errors[1::2]]
    assert sum(left_out) / len(left_out) < 0.02
