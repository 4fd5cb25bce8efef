"""The products that kernels make of a convolution."""

from itertools import product
from math import ceil

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import ridgeline as rl
from ridgeline.hardware.device import Achievable, OutputBlock
from ridgeline.hardware.load import load_device
from ridgeline.kernels.conv_algorithms import variants
from ridgeline.kernels.cudnn_fp32_conv import held_bytes
from ridgeline.kernels.efficiency_table import achievable_share, filter_class
from ridgeline.kernels.single_op import conv
from ridgeline.kernels.traffic import Operands, as_gemm
from ridgeline.workload.graph import Conv, Op, Pass
from stacked import stacked

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


def ways(loops, pass_, own=None, direct=None, most=None, products=None):
    attrs = () if most is None else (("workspace", most),)
    op = Op("conv", "conv2d", pass_, "conv", ("a", "b"), ("y",), loops, attrs=attrs)
    pixels = loops.batch * loops.h_out * loops.w_out
    gemm = as_gemm(loops, pass_)
    operands = Operands(gemm, 4 * pixels * loops.c_out, 4 * loops.c_in * loops.c_out, 0, 1, 0.0)
    return variants(op, operands, own, direct, products)


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
    filtered, *_ = ways(loops, pass_, row(1.6, BLOCK), row(0.9, None, "direct"))
    pixels = ceil(height / 8) * 8 * ceil(width / 16) * 16
    eights = ceil(channels / 8) * 8
    assert filtered.gemm.macs == 2 * pixels * channels * eights * 9
    assert (filtered.more_bytes > 0) == (pass_ is Pass.WEIGHT_GRADIENT)


def test_without_blocks_or_direct_kernels_there_is_one_way():
    loops = Conv(2, 8, 7, 7, 8, 3, 3, padding=(1, 1))
    assert len(ways(loops, Pass.FORWARD, row(1.6))) == 1
    assert len(ways(loops, Pass.FORWARD, row(1.6, BLOCK))) == 1
    assert len(ways(loops, Pass.FORWARD, row(1.6, BLOCK), row(0.9, None, "direct"))) == 2


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


@pytest.mark.parametrize(
    ("loops", "class_"),
    [
        (Conv(1, 8, 9, 9, 8, 1, 1, (2, 2)), "1x1"),
        (Conv(1, 8, 9, 9, 8, 3, 3), "3x3"),
        (Conv(1, 8, 9, 9, 8, 5, 5), "larger"),
        (Conv(1, 8, 9, 9, 8, 3, 3, (2, 2)), "direct"),
        (Conv(1, 8, 9, 9, 8, 5, 5, (2, 2)), "direct"),
        (Conv(1, 8, 9, 9, 8, 3, 3, dilation=(2, 2)), "direct"),
        (Conv(1, 8, 9, 9, 8, 1, 7), "direct"),
        (Conv(1, 8, 9, 9, 8, 3, 3, taps=3), "direct"),
    ],
)
def test_which_filters_can_have_fewer_multiplications(loops, class_):
    assert filter_class(loops) == class_


@pytest.mark.parametrize("pass_", PASSES)
def test_larger_filters_have_direct_kernels_beside_their_own(pass_):
    loops = Conv(16, 64, 27, 27, 192, 5, 5, padding=(2, 2))
    own, direct = row(1.4, None, "larger"), row(0.6, None, "direct")
    assert {way.share for way in ways(loops, pass_, own, direct)} == {1.4, 0.6}
    assert {way.share for way in ways(loops, pass_, own)} == {1.4}


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 64),
    st.integers(1, 64),
    st.integers(6, 40),
    st.sampled_from((3, 5)),
    st.sampled_from(PASSES),
    st.integers(0, 2**26),
)
def test_only_what_fits_is_taken(batch, channels, size, kernel, pass_, most):
    loops = Conv(batch, channels, size, size, channels, kernel, kernel, padding=(1, 1))
    own = row(1.6, BLOCK) if kernel == 3 else row(1.4, None, "larger")
    direct = row(0.6, None, "direct")
    held = held_bytes(loops, pass_)
    names = ("winograd", "winograd-nonfused") if kernel == 3 else ("fft", "fft-tiling")
    fits = any(held[name] <= most for name in names if name in held)
    shares = {way.share for way in ways(loops, pass_, own, direct, most)}
    assert shares == ({own.fraction.value, 0.6} if fits else {0.6})
    unlimited = ways(loops, pass_, own, direct)
    assert {*ways(loops, pass_, own, direct, most)} <= {*unlimited}


@pytest.mark.parametrize("kernel", [1, 2])
def test_products_need_no_work_space(kernel):
    loops, own = Conv(4, 64, 28, 28, 64, kernel, kernel), row(0.9, None, "1x1")
    limited = ways(loops, Pass.FORWARD, own, row(0.5, None, "direct"), 0)
    assert limited == ways(loops, Pass.FORWARD, own, row(0.5, None, "direct"))


@pytest.mark.parametrize("pass_", PASSES)
def test_old_libraries_have_no_transforms(pass_):
    direct = row(0.6, None, "direct")
    for kernel, own in ((3, row(1.6, BLOCK)), (5, row(1.4, None, "larger"))):
        loops = Conv(4, 64, 28, 28, 64, kernel, kernel, padding=(1, 1))
        op = Op(
            "c", "conv2d", pass_, "c", ("a", "b"), ("y",), loops, attrs=(("library", "cudnn2"),)
        )
        operands = Operands(as_gemm(loops, pass_), 1, 1, 0, 1, 0.0)
        assert {way.share for way in variants(op, operands, own, direct)} == {0.6}


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 8),
    st.integers(1, 300),
    st.integers(1, 300),
    st.integers(1, 60),
    st.sampled_from(PASSES),
)
def test_transforms_save_three_quarters_of_what_fills_their_tiles(batch, c_in, c_out, size, pass_):
    loops = Conv(batch, c_in, size, size, c_out, 3, 3, padding=(1, 1))
    direct, products = row(0.6, None, "direct"), row(0.8, None, "transformed")
    found = ways(loops, pass_, row(1.6, BLOCK), direct, products=products)
    assert {way.share for way in found} == {1.6, 0.8, 0.6} - (
        {1.6} if pass_ is Pass.WEIGHT_GRADIENT else set()
    )
    (between,) = (way for way in found if way.share == 0.8)
    filled = (ceil(size / 4) * 4) ** 2
    assert 4 * between.gemm.macs == batch * filled * c_in * c_out * 9
    # 36 numbers of a tile of 16 outputs, of both images and of the filters, each written and read.
    tiles = batch * filled // 16
    images = 36 * tiles * (c_in + c_out)
    of = c_in if pass_ is Pass.FORWARD else c_out
    size = 4 * batch * loops.h_out * loops.w_out * c_out / (batch * of * size * size)
    assert between.more_bytes == pytest.approx(2 * size * (images + 36 * c_in * c_out))
    assert between.before_bytes > between.more_bytes / 2 > 0


def test_gradients_of_few_filters_take_longer_a_multiplication():
    """DeepBench on a V100: 0.53 of the peak for 64 filters, 2.4 for 256 and more."""
    device, gradient = load_device("v100-sxm2-16gb"), Pass.WEIGHT_GRADIENT.value
    few, many = (
        conv(Conv(16, n, 56, 56, n, 3, 3, padding=(1, 1)), device, pass_=gradient, format="fp32")
        for n in (64, 256)
    )
    assert 3 < 16 * few.time_s / many.time_s < 6


def test_a_limit_of_work_space_makes_no_step_faster():
    plans = (
        stacked(global_batch=256, precision="fp32", kernels__conv_workspace=most)
        for most in (0, "8 MiB", "64 MiB", "1024 MiB", None)
    )
    times = [rl.simulate("alexnet", "v100-sxm2-16gb", plan).step_time_s for plan in plans]
    assert times == sorted(times, reverse=True)
    assert times[0] > 1.2 * times[-1]


def test_a_device_without_direct_rows_takes_those_of_larger_filters():
    device = load_device("v100-sxm2-16gb")
    rows = [r for r in device.achievable if r.filter != "direct"]
    device = device.model_copy(update={"achievable": tuple(rows)})
    loops = Conv(1, 8, 9, 9, 8, 5, 5, (2, 2))
    op = Op("conv", "conv2d", Pass.FORWARD, "conv", ("a", "b"), ("y",), loops)
    found = achievable_share(op, device, "cuda-cores", "fp32")
    assert found is not None
    assert found.filter == "larger"
