"""Output sizes of windows, against counting them one by one."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import RidgelineError
from ridgeline.workload import Conv, ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.numerics import PRECISIONS
from ridgeline.workload.ops.pooling import adaptive_windows
from ridgeline.workload.ops.window import steps

SMALL = st.integers(1, 6)


def builder():
    return GraphBuilder("test", 2, PRECISIONS["fp32"])


@given(st.integers(1, 20), SMALL, SMALL, st.integers(0, 3))
def test_floor_mode_counts_windows_that_fit(size, kernel, stride, padding):
    if kernel > size + 2 * padding:
        return
    fitting = [
        start
        for start in range(-padding, size + padding, stride)
        if start + kernel <= size + padding
    ]
    assert steps(size, kernel, stride, padding) == len(fitting)


@given(st.integers(1, 20), SMALL, SMALL, st.integers(0, 3))
def test_ceil_mode_adds_a_last_window_that_starts_inside(size, kernel, stride, padding):
    if kernel > size + 2 * padding or 2 * padding > kernel:
        return
    count, start = 0, -padding
    while True:
        count += 1
        if start + kernel >= size + padding:  # everything is covered
            break
        start += stride
        if start >= size:  # would start in the right padding
            break
    assert steps(size, kernel, stride, padding, ceil_mode=True) == count


@given(st.integers(1, 30), st.integers(1, 30))
def test_adaptive_windows_cover_the_image_in_order(size, positions):
    windows = adaptive_windows(size, positions)
    assert windows[0][0] == 0
    assert windows[-1][1] == size
    for (start, end), (following, _) in itertools.pairwise(windows):
        assert 0 <= start < end
        assert start <= following <= end


@given(
    st.integers(1, 3),
    st.integers(1, 9),
    SMALL,
    st.integers(1, 3),
    st.integers(0, 2),
    st.integers(1, 2),
)
def test_convolutions_count_every_multiplication(groups, size, kernel, stride, padding, dilation):
    reach = dilation * (kernel - 1) + 1
    if reach > size + 2 * padding:
        return
    b = builder()
    x = b.input("x", (2, 2 * groups, size, size + 1))
    y = ops.conv2d(
        b,
        "conv",
        x,
        3 * groups,
        kernel,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        bias=False,
    )
    places = [range(-padding, s + padding - reach + 1, stride) for s in (size, size + 1)]
    assert b.shape(y) == (2, 3 * groups, len(places[0]), len(places[1]))
    loops = b.ops[-1].loops
    assert isinstance(loops, Conv)
    outputs = 2 * 3 * groups * len(places[0]) * len(places[1])
    assert loops.macs == outputs * 2 * kernel * kernel
    assert b.elements("conv.weight") == 3 * groups * 2 * kernel * kernel


def test_linear_takes_the_last_axis_or_whole_samples():
    b = builder()
    x = b.input("x", (2, 5, 3, 4))
    assert b.shape(ops.linear(b, "last", x, 7)) == (2, 5, 3, 7)
    assert b.shape(ops.linear(b, "whole", x, 7, flatten=True)) == (2, 7)
    assert b.shape("last.weight") == (7, 4)
    assert b.shape("whole.weight") == (7, 60)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda b, x: ops.conv2d(b, "l", x, 4, 9), "9 x 9 does not fit on images of 8 x 8"),
        (lambda b, x: ops.conv2d(b, "l", x, 4, 3, groups=2), "2 groups do not divide 3 channels"),
        (lambda b, x: ops.max_pool(b, "l", x, 3, padding=2), "padding 2 x 2 is over half"),
        (lambda b, x: ops.max_pool(b, "l", "flat", 2), "needs images"),
        (lambda b, x: ops.add(b, "l", x, "flat"), "adds shapes"),
        (lambda b, x: ops.cross_entropy(b, "l", "flat", x), "do not belong together"),
        (lambda b, x: b.input("x", (1,)), "two tensors are called 'x'"),
    ],
)
def test_impossible_layers_are_explained(make, message):
    b = builder()
    x = b.input("x", (2, 3, 8, 8))
    b.input("flat", (2, 4))
    with pytest.raises(RidgelineError, match=message):
        make(b, x)
