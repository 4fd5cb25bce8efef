"""Convolutions that unfold image after image: their shapes, and the sum over all of them."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import ridgeline as rl
from ridgeline.errors import RidgelineError
from ridgeline.hardware import load_device
from ridgeline.kernels import im2col
from ridgeline.kernels.op_signature import described
from ridgeline.kernels.pricing import price, price_all
from ridgeline.kernels.traffic import cache_bytes
from ridgeline.workload.graph import Conv, Gemm, Graph, Op, Pass, Role, Tensor
from stacked import changed, stacked

TITAN = load_device("titan-x-maxwell")
LIBRARIES = ("caffe", "torch7")
FORWARD, DATA, FILTERS = Pass.FORWARD, Pass.INPUT_GRADIENT, Pass.WEIGHT_GRADIENT


@st.composite
def convolutions(draw: st.DrawFn, most: int = 48) -> Conv:
    taps, groups = draw(st.sampled_from([1, 2, 3, 5])), draw(st.sampled_from([1, 2]))
    return Conv(
        batch=draw(st.integers(1, 4)),
        c_in=groups * draw(st.integers(1, most)),
        h_in=draw(st.integers(taps, 24)),
        w_in=draw(st.integers(taps, 24)),
        c_out=groups * draw(st.integers(1, most)),
        r=taps,
        s=taps,
        stride=draw(st.sampled_from([(1, 1), (2, 2), (1, 2)])),
        padding=draw(st.sampled_from([(0, 0), (taps // 2, taps // 2)])),
        groups=groups,
    )


def op_of(loops: Conv, pass_: Pass, library: str | None) -> tuple[Op, Graph]:
    x = (loops.batch, loops.c_in, loops.h_in, loops.w_in)
    w = (loops.c_out, loops.c_in // loops.groups, loops.r, loops.s)
    y = (loops.batch, loops.c_out, loops.h_out, loops.w_out)
    shapes = {FORWARD: (x, w, y), DATA: (y, w, x), FILTERS: (y, x, w)}[pass_]
    tensors = {
        name: Tensor(name, shape, "fp32", Role.ACTIVATION)
        for name, shape in zip("abc", shapes, strict=True)
    }
    attrs = () if library is None else (("library", library),)
    op = Op("conv", "conv2d", pass_, "conv", ("a", "b"), ("c",), loops, attrs=attrs)
    return op, Graph("conv", 1, "fp32", tensors, (op,), "c")


def patches(image: NDArray[np.float64], loops: Conv) -> NDArray[np.float64]:
    """Unfold the channels [c, h, w] of an image, pixel by pixel of the output: [pixels, c r s]."""
    (up, left), (down, right) = loops.padding, loops.stride
    image = np.pad(image, ((0, 0), (up, up), (left, left)))
    return np.array(
        [
            image[:, i * down : i * down + loops.r, j * right : j * right + loops.s].ravel()
            for i in range(loops.h_out)
            for j in range(loops.w_out)
        ]
    )


def direct(x: NDArray[np.float64], w: NDArray[np.float64], loops: Conv) -> NDArray[np.float64]:
    """Convolve by its definition, output by output."""
    y = np.zeros((loops.batch, loops.c_out, loops.h_out, loops.w_out))
    (up, left), share = loops.padding, loops.c_in // loops.groups
    x = np.pad(x, ((0, 0), (0, 0), (up, up), (left, left)))
    for n, k, i, j in np.ndindex(*y.shape):
        first = k // (loops.c_out // loops.groups) * share
        a, b = i * loops.stride[0], j * loops.stride[1]
        window = x[n, first : first + share, a : a + loops.r, b : b + loops.s]
        y[n, k, i, j] = (window * w[k]).sum()
    return y


@settings(max_examples=25, deadline=None)
@given(convolutions(most=3))
def test_products_of_columns_are_the_convolution(loops: Conv) -> None:
    """What has the shapes of the priced product, done for every image and group, is the result."""
    work = im2col.unfolded(*op_of(loops, FORWARD, "torch7"))
    gemm = work.product.loops
    assert isinstance(gemm, Gemm)
    rng = np.random.default_rng(loops.batch + 7 * loops.c_in + 31 * loops.h_in)
    x = rng.normal(size=(loops.batch, loops.c_in, loops.h_in, loops.w_in))
    w = rng.normal(size=(loops.c_out, loops.c_in // loops.groups, loops.r, loops.s))
    found, done = np.zeros((loops.batch, loops.c_out, loops.h_out, loops.w_out)), 0
    in_, out = loops.c_in // loops.groups, loops.c_out // loops.groups
    for n in range(loops.batch):
        for g in range(loops.groups):
            columns = patches(x[n, g * in_ : (g + 1) * in_], loops)
            filters = w[g * out : (g + 1) * out].reshape(out, -1)
            assert columns.shape == (gemm.m, gemm.k)
            assert filters.shape == (gemm.n, gemm.k)
            assert columns.size * 4 == work.columns_bytes
            found[n, g * out : (g + 1) * out] = (columns @ filters.T).T.reshape(
                out, loops.h_out, loops.w_out
            )
            done += 1
    assert done == work.products
    np.testing.assert_allclose(found, direct(x, w, loops), atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(convolutions(), st.sampled_from([FORWARD, DATA, FILTERS]), st.sampled_from(LIBRARIES))
def test_the_price_is_that_of_every_image_one_after_the_other(
    loops: Conv, pass_: Pass, library: str
) -> None:
    op, graph = op_of(loops, pass_, library)
    work, cost = im2col.unfolded(op, graph), price(op, graph, TITAN)
    assert work.products * work.product.matrix_flops == op.matrix_flops
    assert cost.flops == {"cuda-cores.fp32": op.matrix_flops}
    (one,) = price_all((described(work.product, work.graph),), TITAN)
    far, bytes_ = TITAN.far_memory, sum(t.bytes for t in work.graph.tensors.values())
    kept = bytes_ + work.image_bytes <= cache_bytes(TITAN)
    copied = work.image_bytes + (0 if kept else work.columns_bytes)
    bandwidth, share = TITAN.memory[far].bandwidth, 0.30 if pass_ is DATA else 0.41
    assert bandwidth is not None
    slowest = (work.image_bytes + work.columns_bytes) / (share * bandwidth.value)
    expected = 0.0
    for _ in range(work.products):
        expected += one.time_s(TITAN)
    for _ in range(work.copies):
        expected += TITAN.launch_latency.value + slowest
    assert cost.time_s(TITAN) <= expected * (1 + 1e-9)
    if not kept:
        assert cost.time_s(TITAN) == pytest.approx(expected, rel=1e-9)
        assert cost.traffic_bytes[far] == pytest.approx(
            work.products * one.traffic_bytes[far] + work.copies * copied
        )
    for name, by in cost.moved.items():
        assert by.total == pytest.approx(cost.traffic_bytes[name])
    assert cost.traffic_bytes[far] >= work.products * work.graph.tensors["output"].bytes


def test_columns_are_written_as_fast_as_in_a_profile_of_caffe() -> None:
    """BVLC/caffe's issue 579: CaffeNet on a GTX 680, 48.8 and 67.1 us an image and layer."""
    sizes = [(3, 227, 96, 11, 4, 0), (96, 27, 256, 5, 1, 2), (256, 13, 384, 3, 1, 1)]
    sizes += [(384, 13, 384, 3, 1, 1), (384, 13, 256, 3, 1, 1)]
    moved = 0.0
    for c_in, side, c_out, taps, stride, padding in sizes:
        loops = Conv(1, c_in, side, side, c_out, taps, taps, (stride, stride), (padding, padding))
        work = im2col.unfolded(*op_of(loops, FORWARD, "caffe"))
        moved += (work.image_bytes + work.columns_bytes) / len(sizes)
    assert moved / (0.41 * 192.2e9) == pytest.approx(48.8e-6, rel=0.02)
    assert moved / (0.30 * 192.2e9) == pytest.approx(67.1e-6, rel=0.02)


@settings(max_examples=40, deadline=None)
@given(convolutions(), st.sampled_from([FORWARD, DATA, FILTERS]))
def test_caffe_copies_no_image_that_is_its_own_columns(loops: Conv, pass_: Pass) -> None:
    caffe, torch = (price(*op_of(loops, pass_, name), TITAN).time_s(TITAN) for name in LIBRARIES)
    own = (loops.r, loops.s, loops.stride, loops.padding) == (1, 1, (1, 1), (0, 0))
    assert (caffe < torch) if own else (caffe == torch)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_plan_names_the_library(library: Literal["caffe", "torch7"]) -> None:
    plan = stacked(global_batch=16, precision="fp32")
    early = changed(plan, kernels__conv_library=library)
    cluster, model = rl.load_cluster("titan-x-pascal"), rl.load_model("resnet18")
    slow, fast = (rl.simulate(model, cluster, one) for one in (early, plan))
    assert slow.step_time_s > 1.5 * fast.step_time_s
    assert slow.flops_per_step == fast.flops_per_step
    with pytest.raises(RidgelineError, match="library"):
        stacked(global_batch=16, kernels__conv_library="cafe")
