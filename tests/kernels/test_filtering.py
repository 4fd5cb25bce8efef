"""The products that kernels make of a convolution."""

from itertools import product
from math import ceil

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ridgeline.hardware.device import Achievable, OutputBlock
from ridgeline.hardware.load import load_device
from ridgeline.kernels.filtering import variants
from ridgeline.kernels.single import conv
from ridgeline.kernels.traffic import Operands, as_gemm
from ridgeline.workload.graph import Conv, Op, Pass

BLOCK = OutputBlock(rows=8, columns=16, source="a test")
PASSES = (Pass.FORWARD, Pass.INPUT_GRADIENT, Pass.WEIGHT_GRADIENT)


def row(share, block=None, filter_="3x3"):
    return Achievable(
        engine="e",
        format="fp32",
        op="conv2d",
        filter=filter_,
        block=block,
        fraction={"value": share, "source": "a test", "basis": "measured"},
    )


def ways(loops, pass_, own=None, direct=None):
    op = Op("conv", "conv2d", pass_, "conv", ("a", "b"), ("y",), loops)
    pixels = loops.batch * loops.h_out * loops.w_out
    gemm = as_gemm(loops, pass_)
    operands = Operands(gemm, 4 * pixels * loops.c_out, 4 * loops.c_in * loops.c_out, 0, 1, 0.0)
    return variants(op, operands, own, direct)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 4), st.integers(0, 2))
def test_no_pixel_is_reached_by_more_taps_than_are_gathered(size, kernel, stride, padding):
    assume(size + 2 * padding >= kernel)
    loops = Conv(1, 2, size, size, 3, kernel, kernel, (stride, stride), (padding, padding))
    reached = dict.fromkeys(range(size), 0)
    for output, tap in product(range(loops.h_out), range(kernel)):
        pixel = output * stride + tap - padding
        if pixel in reached:
            reached[pixel] += 1
    gathered = ways(loops, Pass.INPUT_GRADIENT)[0].gemm
    assert gathered.m == size * size
    assert gathered.k == 3 * ceil(kernel / stride) ** 2
    assert max(reached.values()) <= ceil(kernel / stride)


def test_a_strided_1x1_gathers_four_times_what_is_needed():
    loops = Conv(4, 64, 28, 28, 128, 1, 1, stride=(2, 2))
    (only,) = ways(loops, Pass.INPUT_GRADIENT)
    assert only.gemm.macs == 4 * loops.macs


def test_columns_are_what_is_needed_and_pass_memory_twice():
    loops = Conv(4, 3, 32, 32, 64, 7, 7, stride=(2, 2), padding=(3, 3))
    _, columns = ways(loops, Pass.INPUT_GRADIENT)
    assert columns.gemm.macs == loops.macs
    assert columns.more_bytes == 2 * 4 * (4 * 16 * 16) * (3 * 7 * 7)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 20), st.sampled_from(PASSES))
def test_blocks_cover_images_and_eights_of_channels(height, width, channels, pass_):
    loops = Conv(2, channels, height, width, channels, 3, 3, padding=(1, 1))
    filtered, *_ = ways(loops, pass_, row(1.6, BLOCK), row(0.9, None, "larger"))
    pixels = ceil(height / 8) * 8 * ceil(width / 16) * 16
    eights = ceil(channels / 8) * 8
    assert filtered.gemm.macs == 2 * pixels * channels * eights * 9
    assert (filtered.more_bytes > 0) == (pass_ is Pass.WEIGHT_GRADIENT)


def test_without_blocks_or_larger_filters_there_is_one_way():
    loops = Conv(2, 8, 7, 7, 8, 3, 3, padding=(1, 1))
    assert len(ways(loops, Pass.FORWARD, row(1.6))) == 1
    assert len(ways(loops, Pass.FORWARD, row(1.6, BLOCK))) == 1
    assert len(ways(loops, Pass.FORWARD, row(1.6, BLOCK), row(0.9, None, "larger"))) == 2


@pytest.mark.parametrize("pass_", [pass_.value for pass_ in PASSES])
def test_images_that_do_not_fill_blocks_cost_more_for_each_pixel(pass_):
    """DeepBench on a V100: 512 filters on 7 x 7 take 2 to 3 times as long a multiplication."""
    device = load_device("v100-sxm2-16gb")
    full, part = (
        conv(
            Conv(16, 512, *size, 512, 3, 3, padding=(1, 1)), device, pass_=pass_, format="fp32"
        ).time_s
        for size in ((8, 16), (7, 7))
    )
    assert part > 1.5 * full * 49 / 128


def test_a_convolution_has_the_fixed_time_of_its_pass():
    device = load_device("v100-sxm2-16gb")
    small = Conv(1, 8, 4, 4, 8, 1, 1)
    for pass_ in PASSES:
        rows = [r for r in device.achievable if (r.op, r.format) == ("conv2d", "fp32")]
        (fixed,) = {r.latency.value for r in rows if r.pass_ == pass_.value}
        assert conv(small, device, pass_=pass_.value, format="fp32").time_s >= fixed
