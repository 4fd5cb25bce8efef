"""Convolutions over volumes, and the networks of these and of sequences."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.kernels import winograd
from ridgeline.kernels.efficiency_table import filter_class
from ridgeline.workload import layer_table, load_model, ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.efficientnet import rounded
from ridgeline.workload.numerics import PRECISIONS


def builder(batch=2):
    return GraphBuilder("test", batch, PRECISIONS["fp32"])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(4, 9), min_size=1, max_size=3),
    st.integers(1, 5),
    st.integers(1, 5),
    st.sampled_from([1, 3]),
    st.integers(1, 2),
)
def test_products_of_a_convolution_over_any_axes(sizes, channels, filters, kernel, stride):
    b = builder()
    x = b.input("x", (2, channels, *sizes))
    y = ops.conv(b, "conv", x, filters, kernel, stride=stride, bias=False)
    out = [(size + 2 * (kernel // 2) - kernel) // stride + 1 for size in sizes]
    assert b.shape(y) == (2, filters, *out)
    (op,) = b.ops
    assert op.loops.macs == 2 * filters * channels * math.prod(out) * kernel ** len(sizes)
    assert b.elements("conv.weight") == filters * channels * kernel ** len(sizes)


def test_filters_of_volumes_have_no_kernels_of_winograds():
    b = builder()
    ops.conv(b, "volume", b.input("x", (2, 8, 6, 6, 6)), 8, 3)
    ops.conv(b, "image", b.input("y", (2, 8, 6, 6)), 8, 3)
    volume, image = (next(op for op in b.ops if op.name == name) for name in ("volume", "image"))
    assert not winograd.applies(volume)
    assert winograd.applies(image)
    assert filter_class(volume.loops) == "direct"
    assert filter_class(image.loops) == "3x3"
    assert volume.loops.taps == 3


def test_a_volume_doubles_and_halves():
    b = builder()
    x = b.input("x", (2, 3, 4, 6, 8))
    up = ops.conv_transpose(b, "up", x, 5, 2, bias=False)
    assert b.shape(up) == (2, 5, 8, 12, 16)
    assert b.ops[-1].matrix_flops == 2 * 2 * 4 * 6 * 8 * 3 * 5 * 8
    assert b.shape(ops.pool_volume(b, "down", up, 2)) == (2, 5, 4, 6, 8)


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4, 4, 4, 4)])
def test_other_shapes_are_refused(shape):
    b = builder()
    with pytest.raises(RidgelineError, match="one to three sizes"):
        ops.conv(b, "conv", b.input("x", shape), 2, 3)
    with pytest.raises(RidgelineError, match="one to three sizes"):
        ops.conv_transpose(b, "up", "x", 2, 2)


def test_groups_of_channels_must_be_even():
    b = builder()
    with pytest.raises(RidgelineError, match="4 groups do not divide 6 channels"):
        ops.group_norm(b, "norm", b.input("x", (2, 6, 4, 4)), 4)


def test_levels_must_fit_the_size():
    with pytest.raises(ConfigError, match="multiples of 32"):
        load_model("nnunet-2d", {"size": [190, 160]})


def test_squeeze_and_excitation_adds_two_small_layers_a_block():
    """Two products of C and C / 16 features, with biases."""
    plain, excited = (
        load_model(name).forward(1).parameters
        for name in ("resnext101-32x4d", "se-resnext101-32x4d")
    )
    blocks = zip((256, 512, 1024, 2048), (3, 4, 23, 3), strict=True)
    assert excited - plain == sum(n * (2 * c * c // 16 + c + c // 16) for c, n in blocks)


@pytest.mark.parametrize(("channels", "to"), [(32 * 1.4, 48), (16 * 1.4, 24), (40 * 1.4, 56)])
def test_channels_of_efficientnet_b4(channels, to):
    assert rounded(channels) == to


def test_jasper_reads_all_blocks_before():
    """Block i of ten has i residuals (Li et al., 2019, Figure 2): 55 in all."""
    rows = [r.name for r in layer_table(load_model("jasper").forward(1))]
    assert sum("residual" in name and "bn" not in name for name in rows) == 55
    rows = [r.name for r in layer_table(load_model("quartznet").forward(1))]
    assert sum("residual" in name and "bn" not in name for name in rows) == 15


def test_clusters_leave_something_to_the_frequent_tokens():
    with pytest.raises(ConfigError, match="leave something"):
        load_model("transformer-xl-base", {"clusters": [{"tokens": 5, "share": 0.6}] * 2})


def test_a_generator_is_a_third_of_its_discriminator():
    """ELECTRA's blocks: 12 h^2 weights, h the features, and four times wider inside."""
    graph = load_model("electra-base").forward(1)
    products = {
        name: sum(
            t.elements
            for key, t in graph.tensors.items()
            if key.startswith(f"{name}.")
            and key.split(".")[1].isdigit()
            and len(t.shape) == 2
            and t.role.value == "weight"
        )
        for name in ("generator", "discriminator")
    }
    assert products["generator"] == 12 * 12 * 256**2
    assert products["discriminator"] == 12 * 12 * 768**2
