"""Convolutions over one to three axes: volumes as well as images and sequences."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ridgeline.errors import RidgelineError
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.graph import Conv, Gemm
from ridgeline.workload.ops.contraction import (
    CONV2D,
    CONV_TRANSPOSE2D,
    add_bias,
    contract,
    conv2d,
    conv_transpose2d,
)
from ridgeline.workload.ops.window import folded, steps


def conv(
    b: GraphBuilder,
    layer: str,
    x: str,
    filters: int,
    kernel: int,
    *,
    stride: int = 1,
    bias: bool = True,
) -> str:
    """Convolution with weights [filters, channels, kernel, ...]; sizes stay but for the stride.

    `x` is [batch, channels, ...] with one to three further axes. The loops of a volume's are those
    of an image's with as many products: its outputs along the first axis count as images, its
    filter's taps there as channels.
    """
    n, c, *sizes = _sizes(layer, b.shape(x))
    axes, padding = len(sizes), (kernel - 1) // 2
    if axes == 2:
        return conv2d(b, layer, x, filters, kernel, stride=stride, padding=padding, bias=bias)
    if min(sizes) + 2 * padding < kernel:
        raise RidgelineError(f"layer {layer!r}: a window of {kernel} does not fit on {sizes}")
    out = [steps(size, kernel, stride, padding) for size in sizes]
    of_weight = (filters, c, *[kernel] * axes)
    loops = folded(
        b.shape(x),
        of_weight,
        (n, filters, *out),
        [stride] * axes,
        [(padding, padding)] * axes,
        [1] * axes,
    )
    weight = b.weight(f"{layer}.weight", of_weight)
    shapes = [(n, filters, *out)]
    (y,) = contract(b, CONV2D, layer, x, weight, shapes, Conv(**loops._asdict()))
    return add_bias(b, layer, y, axis=1) if bias else y


def conv_transpose(
    b: GraphBuilder, layer: str, x: str, filters: int, kernel: int, *, bias: bool = True
) -> str:
    """Transposed convolution that makes every pixel `kernel` along each axis, without overlap.

    Its loops are those of `conv_transpose2d`.
    """
    n, c, *sizes = _sizes(layer, b.shape(x))
    if len(sizes) == 2:
        return conv_transpose2d(b, layer, x, filters, kernel, stride=kernel, bias=bias)
    weight = b.weight(f"{layer}.weight", (c, filters, *[kernel] * len(sizes)))
    loops = Gemm(n * math.prod(sizes), filters * kernel ** len(sizes), c)
    shapes = [(n, filters, *[kernel * size for size in sizes])]
    (y,) = contract(b, CONV_TRANSPOSE2D, layer, x, weight, shapes, loops)
    return add_bias(b, layer, y, axis=1) if bias else y


def _sizes(layer: str, shape: Sequence[int]) -> Sequence[int]:
    if not 3 <= len(shape) <= 5:
        raise RidgelineError(
            f"layer {layer!r} needs [batch, channels, one to three sizes], found {list(shape)}"
        )
    return shape
