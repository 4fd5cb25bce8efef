"""Convolutions and matrix products, and their biases."""

from __future__ import annotations

import math

from ridgeline.errors import RidgelineError
from ridgeline.workload.builder import GradientBuilder, GraphBuilder
from ridgeline.workload.graph import Conv, Gemm, Op
from ridgeline.workload.kinds import Cost, OpKind, register
from ridgeline.workload.ops.window import Pair, check, image, pair


def conv2d(
    b: GraphBuilder,
    layer: str,
    x: str,
    filters: int,
    kernel: Pair,
    *,
    stride: Pair = 1,
    padding: Pair = 0,
    dilation: Pair = 1,
    groups: int = 1,
    bias: bool = True,
) -> str:
    """2-D convolution (cross-correlation) with weights [filters, channels / groups, r, s]."""
    n, c, h, w = image(layer, b.shape(x))
    (r, s), dilated = pair(kernel), pair(dilation)
    if c % groups or filters % groups:
        raise RidgelineError(
            f"layer {layer!r}: {groups} groups do not divide {c} channels and {filters} filters"
        )
    reach = (dilated[0] * (r - 1) + 1, dilated[1] * (s - 1) + 1)
    check(layer, (h, w), reach, pair(padding))
    loops = Conv(n, c, h, w, filters, r, s, pair(stride), pair(padding), dilated, groups)
    weight = b.weight(f"{layer}.weight", (filters, c // groups, r, s))
    shape = (n, filters, loops.h_out, loops.w_out)
    y = _contract(b, CONV2D, layer, x, weight, shape, loops)
    return _add_bias(b, layer, y, axis=1) if bias else y


def linear(
    b: GraphBuilder, layer: str, x: str, features: int, *, bias: bool = True, flatten: bool = False
) -> str:
    """Product of the last axis of `x` with weights [features, k].

    Parameters
    ----------
    flatten
        Take all axes but the first as one: images as vectors.
    """
    shape = b.shape(x)
    lead = shape[:1] if flatten else shape[:-1]
    m, k = math.prod(lead), math.prod(shape[len(lead) :])
    weight = b.weight(f"{layer}.weight", (features, k))
    y = _contract(b, GEMM, layer, x, weight, (*lead, features), Gemm(m, features, k))
    return _add_bias(b, layer, y, axis=len(lead)) if bias else y


def _contract(
    b: GraphBuilder,
    kind: OpKind,
    layer: str,
    x: str,
    weight: str,
    shape: tuple[int, ...],
    loops: Gemm | Conv,
) -> str:
    compute = b.numerics.compute
    x, weight = b.cast(x, compute, layer), b.cast(weight, compute, layer)
    y = b.activation(f"{layer}.y", shape, compute)
    b.emit(kind, layer, (x, weight), (y,), loops=loops)
    return y


def _add_bias(b: GraphBuilder, layer: str, x: str, axis: int) -> str:
    weight = b.cast(b.weight(f"{layer}.bias", (b.shape(x)[axis],)), b.format(x), layer)
    name = f"{layer}.add-bias"
    y = b.activation(f"{name}.y", b.shape(x), b.format(x))
    b.emit(
        BIAS,
        layer,
        (x, weight),
        (y,),
        name=name,
        flops=BIAS.forward.of(b.elements(y)),
        in_place=True,
        attrs=(("axis", axis),),
    )
    return y


def _conv2d_gradient(g: GradientBuilder, op: Op) -> None:
    (x, weight), dy = op.inputs, g.gradient(op.outputs[0])
    if g.wants(x):
        g.derive(CONV2D, op, x, (dy, weight), loops=op.loops)
    if g.wants(weight):
        g.derive(CONV2D, op, weight, (dy, x), loops=op.loops)


def _gemm_gradient(g: GradientBuilder, op: Op) -> None:
    (x, weight), dy = op.inputs, g.gradient(op.outputs[0])
    assert isinstance(op.loops, Gemm)
    m, n, k = op.loops.m, op.loops.n, op.loops.k
    if g.wants(x):
        g.derive(GEMM, op, x, (dy, weight), loops=Gemm(m, k, n))  # dx [m, k] = dy [m, n] w [n, k]
    if g.wants(weight):
        g.derive(GEMM, op, weight, (dy, x), loops=Gemm(n, k, m))  # dw [n, k] = dy' [n, m] x [m, k]


def _bias_gradient(g: GradientBuilder, op: Op) -> None:
    (x, weight), dy = op.inputs, g.gradient(op.outputs[0])
    if g.wants(x):
        g.give(x, dy, op.layer)
    if g.wants(weight):
        g.derive(BIAS, op, weight, (dy,), flops=BIAS.gradient.of(g.elements(dy)))


CONV2D = register(OpKind("conv2d", _conv2d_gradient))
GEMM = register(OpKind("gemm", _gemm_gradient))
BIAS = register(
    OpKind(
        "bias",
        _bias_gradient,
        Cost(1, "output element", "an addition"),
        Cost(1, "output element", "an addition into the sum over the batch"),
    )
)
