"""Normalisation layers.

Weights and statistics are fp32 in all precisions; the output has the input's format. Batch norm
streams its input twice, for the statistics and to normalise; a row that layer norm or RMS norm
normalises stays on the chip, so that they stream it once. The backward pass of all three streams
the input and the output's gradient twice: for the sums that become the weights' gradients, and for
the input's gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.errors import RidgelineError
from ridgeline.workload.builder import Attrs, GradientBuilder, GraphBuilder
from ridgeline.workload.graph import Op, Passes
from ridgeline.workload.kinds import Cost, OpKind, register
from ridgeline.workload.numerics import MASTER


def batch_norm(b: GraphBuilder, layer: str, x: str, *, axis: int = 1, epsilon: float = 1e-5) -> str:
    """Batch normalisation of the channels on `axis`, in training mode.

    Ioffe and Szegedy, ICML 2015, arXiv:1502.03167, Algorithm 1.
    """
    channels = (b.shape(x)[axis],)
    weights = b.weight(f"{layer}.weight", channels), b.weight(f"{layer}.bias", channels)
    running = (
        b.buffer(f"{layer}.running-mean", channels),
        b.buffer(f"{layer}.running-variance", channels),
    )
    saved = (
        b.activation(f"{layer}.mean", channels, MASTER),
        b.activation(f"{layer}.inverse-deviation", channels, MASTER),
    )
    inputs, attrs = (x, *weights, *running), (("epsilon", epsilon), ("axis", axis))
    return _emit(b, BATCH_NORM, layer, inputs, (*saved, *running), attrs, (2, 1, 1, 1, 1))


def layer_norm(
    b: GraphBuilder,
    layer: str,
    x: str,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    bias: bool = True,
) -> str:
    """Normalise an axis to mean 0 and variance 1; then scale, and shift if there is a bias.

    Ba, Kiros and Hinton, Layer normalization, 2016, arXiv:1607.06450.
    """
    x = b.widened(x, layer)
    rows = list(b.shape(x))
    features = rows.pop(axis)
    names = ("weight", "bias") if bias else ("weight",)
    weights = tuple(b.weight(f"{layer}.{name}", (features,)) for name in names)
    saved = (
        b.activation(f"{layer}.mean", tuple(rows), MASTER),
        b.activation(f"{layer}.inverse-deviation", tuple(rows), MASTER),
    )
    attrs = (("epsilon", epsilon), *((("axis", axis),) if axis != -1 else ()))
    return _emit(b, LAYER_NORM, layer, (x, *weights), saved, attrs)


def rms_norm(b: GraphBuilder, layer: str, x: str, *, axis: int = -1, epsilon: float = 1e-6) -> str:
    """Divide by the root of the mean square over `axis`; then scale.

    Zhang and Sennrich, Root mean square layer normalization, NeurIPS 2019, arXiv:1910.07467.
    """
    rows = list(b.shape(x))
    weight = b.weight(f"{layer}.weight", (rows.pop(axis),))
    saved = (b.activation(f"{layer}.inverse-deviation", tuple(rows), MASTER),)
    attrs = (("epsilon", epsilon), ("axis", axis))
    return _emit(b, RMS_NORM, layer, (x, weight), saved, attrs)


def head_norm(b: GraphBuilder, layer: str, x: str, heads: int, *, epsilon: float = 1e-6) -> str:
    """RMS norm of the features of every head on the last axis, with weights that all heads share.

    Henry et al., Query-key normalization for transformers, 2020, arXiv:2010.04245, with the norm of
    Qwen3 (2025, arXiv:2505.09388, Section 2).
    """
    *rows, features = b.shape(x)
    if features % heads:
        raise RidgelineError(f"layer {layer!r}: {heads} heads do not divide {features} features")
    weight = b.weight(f"{layer}.weight", (features // heads,))
    saved = (b.activation(f"{layer}.inverse-deviation", (*rows, heads), MASTER),)
    attrs = (("epsilon", epsilon), ("axis", -1), ("heads", heads))
    return _emit(b, RMS_NORM, layer, (x, weight), saved, attrs)


def group_norm(b: GraphBuilder, layer: str, x: str, groups: int, *, epsilon: float = 1e-5) -> str:
    """Normalise groups of channels on axis 1 of each sample; as many as channels: instance norm.

    Wu and He, Group normalization, ECCV 2018, arXiv:1803.08494; Ulyanov, Vedaldi and Lempitsky,
    Instance normalization, 2016, arXiv:1607.08022. A group does not stay on the chip, so that the
    input is streamed twice, as by batch norm.
    """
    samples, channels, *_ = b.shape(x)
    if channels % groups:
        raise RidgelineError(f"layer {layer!r}: {groups} groups do not divide {channels} channels")
    if groups < channels:
        x = b.widened(x, layer)
    weights = b.weight(f"{layer}.weight", (channels,)), b.weight(f"{layer}.bias", (channels,))
    saved = (
        b.activation(f"{layer}.mean", (samples * groups,), MASTER),
        b.activation(f"{layer}.inverse-deviation", (samples * groups,), MASTER),
    )
    attrs = (("epsilon", epsilon), ("groups", groups))
    return _emit(b, GROUP_NORM, layer, (x, *weights), saved, attrs, (2, 1, 1))


def frozen_batch_norm(b: GraphBuilder, layer: str, x: str) -> str:
    """Scale and shift the channels on axis 1 by what earlier training has fixed, in place."""
    channels = (b.shape(x)[1],)
    fixed = b.buffer(f"{layer}.scale", channels), b.buffer(f"{layer}.shift", channels)
    y = b.activation(f"{layer}.y", b.shape(x), b.format(x))
    flops = FROZEN_BATCH_NORM.forward.of(b.elements(x))
    b.emit(FROZEN_BATCH_NORM, layer, (x, *fixed), (y,), flops=flops, in_place=True)
    return y


def local_response_norm(
    b: GraphBuilder,
    layer: str,
    x: str,
    size: int = 5,
    *,
    alpha: float = 1e-4,
    beta: float = 0.75,
    k: float = 2.0,
) -> str:
    """Divide by (k + alpha / size * sum of squares over `size` neighbouring channels) ** beta.

    Krizhevsky, Sutskever and Hinton, NIPS 2012, Section 3.3, with alpha as Caffe and cuDNN define
    it. The gradient reads input and output.
    """
    y = b.activation(f"{layer}.y", b.shape(x), b.format(x))
    b.emit(
        LOCAL_RESPONSE_NORM,
        layer,
        (x,),
        (y,),
        flops=LOCAL_RESPONSE_NORM.forward.of(b.elements(x) * (size + 5)),
        attrs=(("size", size), ("alpha", alpha), ("beta", beta), ("k", k)),
    )
    return y


def _emit(
    b: GraphBuilder,
    kind: OpKind,
    layer: str,
    inputs: Sequence[str],
    saved: Sequence[str],
    attrs: Attrs,
    passes: Passes = (),
) -> str:
    x = inputs[0]
    y = b.activation(f"{layer}.y", b.shape(x), b.format(x))
    flops = kind.forward.of(b.elements(x))
    b.emit(kind, layer, inputs, (y, *saved), flops=flops, passes=passes, attrs=attrs)
    return y


def _gradient(
    g: GradientBuilder, op: Op, kind: OpKind, weights: Sequence[str], saved: Sequence[str]
) -> None:
    """Emit one op for the gradients of the input, where it is needed, and of the weights."""
    x, *_ = op.inputs
    scale, *_ = weights
    weights = tuple(filter(g.wants, weights))  # all, but in a network that is partly frozen
    whole = g.wants(x)
    again = 2 if whole else 1
    cost = kind.gradient if whole else WEIGHTS_ONLY[kind.name]
    g.derive(
        kind,
        op,
        (x, *weights) if whole else weights,
        (g.gradient(op.outputs[0]), x, *saved, scale),
        flops=cost.of(g.elements(x)),
        passes=(again, again, *(1 for _ in saved), 1),
    )


def _batch_norm_gradient(g: GradientBuilder, op: Op) -> None:
    _gradient(g, op, BATCH_NORM, op.inputs[1:3], op.outputs[1:3])


def _layer_norm_gradient(g: GradientBuilder, op: Op) -> None:
    _gradient(g, op, LAYER_NORM, op.inputs[1:], op.outputs[1:])


def _rms_norm_gradient(g: GradientBuilder, op: Op) -> None:
    _gradient(g, op, RMS_NORM, op.inputs[1:], op.outputs[1:])


def _group_norm_gradient(g: GradientBuilder, op: Op) -> None:
    _gradient(g, op, GROUP_NORM, op.inputs[1:], op.outputs[1:])


def _frozen_batch_norm_gradient(g: GradientBuilder, op: Op) -> None:
    x, scale, _ = op.inputs
    if g.wants(x):
        flops = FROZEN_BATCH_NORM.gradient.of(g.elements(x))
        g.derive(FROZEN_BATCH_NORM, op, (x,), (g.gradient(op.outputs[0]), scale), flops=flops)


def _local_response_norm_gradient(g: GradientBuilder, op: Op) -> None:
    (x,), (y,) = op.inputs, op.outputs
    if g.wants(x):
        size = int(dict(op.attrs)["size"])
        flops = LOCAL_RESPONSE_NORM.gradient.of(g.elements(x) * (2 * size + 10))
        g.derive(LOCAL_RESPONSE_NORM, op, (x,), (g.gradient(y), x, y), flops=flops)


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
LAYER_NORM = register(
    OpKind(
        "layer-norm",
        _layer_norm_gradient,
        Cost(7, "element", "add to sum x and sum x x (3); z = (x - mean) / deviation (2); w z + b"),
        Cost(
            13,
            "element",
            "z again (2); add to sum dy and sum dy z (3); where x needs a gradient: e = w dy (1),"
            " add to sum e and sum e z (3), (e - mean e - z mean e z) / deviation (4)",
        ),
    )
)
RMS_NORM = register(
    OpKind(
        "rms-norm",
        _rms_norm_gradient,
        Cost(4, "element", "add to sum x x (2); z = x / root (1); w z (1)"),
        Cost(
            9,
            "element",
            "z again (1); add to sum dy z (2); where x needs a gradient: e = w dy (1), add to"
            " sum e z (2), (e - z mean e z) / root (3)",
        ),
    )
)
GROUP_NORM = register(
    OpKind("group-norm", _group_norm_gradient, LAYER_NORM.forward, LAYER_NORM.gradient)
)
WEIGHTS_ONLY = {
    "group-norm": Cost(5, "element", "z again; add to sum dy and sum dy z"),
    "batch-norm": Cost(4, "element", "add to sum dy and sum dy (x - mean)"),
    "layer-norm": Cost(5, "element", "z again; add to sum dy and sum dy z"),
    "rms-norm": Cost(3, "element", "z again; add to sum dy z"),
}
"""Gradient costs where the input needs no gradient."""

FROZEN_BATCH_NORM = register(
    OpKind(
        "frozen-batch-norm",
        _frozen_batch_norm_gradient,
        Cost(2, "element", "a x + b"),
        Cost(1, "element", "a dy"),
    )
)
LOCAL_RESPONSE_NORM = register(
    OpKind(
        "local-response-norm",
        _local_response_norm_gradient,
        Cost(
            1,
            "element times (size + 5)",
            "square (1), add over the neighbours (size), alpha / size s + k (2), power, divide",
        ),
        Cost(
            1,
            "element times (2 size + 10)",
            "s again (size + 3), dy y / s (2), add over the neighbours (size), times c x (2);"
            " power of s, times dy, subtract (3)",
        ),
    )
)
