"""Normalisation layers."""

from __future__ import annotations

from ridgeline.workload.builder import GradientBuilder, GraphBuilder
from ridgeline.workload.graph import Op, Pass
from ridgeline.workload.kinds import Cost, OpKind, register
from ridgeline.workload.numerics import MASTER


def batch_norm(b: GraphBuilder, layer: str, x: str, *, epsilon: float = 1e-5) -> str:
    """Batch normalisation over axis 1, in training mode.

    Ioffe and Szegedy, ICML 2015, arXiv:1502.03167, Algorithm 1. The forward pass streams its input
    twice, for the statistics and to normalise; the backward pass streams the input and the
    output's gradient twice, for the two reductions and for the input's gradient. Weights and
    statistics are fp32 in all precisions; the output has the input's format.
    """
    channels = (b.shape(x)[1],)
    scale, shift = b.weight(f"{layer}.weight", channels), b.weight(f"{layer}.bias", channels)
    running = (
        b.buffer(f"{layer}.running-mean", channels),
        b.buffer(f"{layer}.running-variance", channels),
    )
    y = b.activation(f"{layer}.y", b.shape(x), b.format(x))
    saved = (
        b.activation(f"{layer}.mean", channels, MASTER),
        b.activation(f"{layer}.inverse-deviation", channels, MASTER),
    )
    b.emit(
        BATCH_NORM,
        layer,
        (x, scale, shift, *running),
        (y, *saved, *running),
        flops=BATCH_NORM.forward.of(b.elements(x)),
        passes=(2, 1, 1, 1, 1),
        attrs=(("epsilon", epsilon),),
    )
    return y


def _batch_norm_gradient(g: GradientBuilder, op: Op) -> None:
    x, scale, shift, *_ = op.inputs
    y, mean, inverse_deviation, *_ = op.outputs
    wanted = (x, scale, shift) if g.wants(x) else (scale, shift)
    gradients = tuple(g.gradient_tensor(tensor) for tensor in wanted)
    pass_ = Pass.INPUT_GRADIENT if g.wants(x) else Pass.WEIGHT_GRADIENT
    again = 2 if g.wants(x) else 1
    g.emit(
        BATCH_NORM,
        op.layer,
        (g.gradient(y), x, mean, inverse_deviation, scale),
        gradients,
        name=f"{op.name}.{pass_}",
        pass_=pass_,
        flops=BATCH_NORM.gradient.of(g.elements(x)) // (1 if g.wants(x) else 2),
        passes=(again, again, 1, 1, 1),
        attrs=op.attrs,
    )
    for tensor, gradient in zip(wanted, gradients, strict=True):
        g.give(tensor, gradient, op.layer)


BATCH_NORM = register(
    OpKind(
        "batch-norm",
        _batch_norm_gradient,
        Cost(5, "element", "add to sum x and sum x x (3); a x + b, a and b per channel (2)"),
        Cost(
            8,
            "element",
            "add to sum dy and sum dy (x - mean) (4); a dy + b x + c, per-channel a, b, c (4, and"
            " none where x needs no gradient)",
        ),
    )
)
