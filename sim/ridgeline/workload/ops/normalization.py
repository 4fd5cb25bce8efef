"""Normalisation layers.

Weights and statistics are fp32 in all precisions; the output has the input's format. Batch norm
streams its input twice, for the statistics and to normalise; a row that layer norm or RMS norm
normalises stays on the chip, so that they stream it once. The backward pass of all three streams
the input and the output's gradient twice: for the sums that become the weights' gradients, and for
the input's gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ridgeline.errors import RidgelineError
from ridgeline.workload.builder import Attrs, GradientBuilder, GraphBuilder
from ridgeline.workload.graph import Op, Passes
from ridgeline.workload.kinds import Cost, OpKind, op_kind
from ridgeline.workload.numerics import MASTER
from ridgeline.workload.sharding_axes import COLUMNS, ROWS, Inner, OpAxes, Tensors
from ridgeline.workload.sharding_rules import plain_labels


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


def _row_norm_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """Rows are independent of each other; the normalised axis stays whole but in a grid.

    It is the last, or that of the channels where a traced network has turned images. Devices that
    share its features add up the sums that are kept of each row (Xu et al., An efficient 2D method
    for training super-large deep learning models, 2021, arXiv:2104.05343, section 3.2).
    """
    shape = tensors[op.inputs[0]].shape
    count = len(shape)
    if heads := dict(op.attrs).get("heads"):  # each has its own statistics
        labels, units = (*plain_labels(count - 1), "h"), {"h": int(heads)}
        return OpAxes((labels, ("",)), (labels, labels), units, strict=frozenset({"h"}))
    axis = int(dict(op.attrs).get("axis", -1)) % count
    size = tensors[op.inputs[1]].elements if len(op.inputs) > 1 else shape[axis]
    if count > 3 and shape[axis] != size == shape[1]:
        axis = 1
    kept = sum(tensors[name].bytes for name in op.outputs[1:])
    feature = "f" if kept and size == shape[axis] else ""
    labels = tuple(feature if i == axis else f"d{i}" for i in range(count))
    rows = tuple(f"d{i}" for i in range(count) if i != axis)
    weights = ((feature,),) * (len(op.inputs) - 1)
    flat = any(len(tensors[name].shape) == 1 for name in op.outputs[1:]) and len(rows) > 1
    return OpAxes(
        (labels, *weights),
        (labels, *(("",) if flat else rows,) * (len(op.outputs) - 1)),
        local=frozenset(rows) if flat else frozenset(),  # statistics of each row, and no sums
        inner={"f": (Inner("all-reduce", kept),)} if feature else {},
        of_grid=frozenset({"f"}),
    )


def _row_norm_gradient_sharding(op: Op, tensors: Tensors, forward: Op, labels: OpAxes) -> OpAxes:
    """Add up the sums over dy and dy z of each row, as many as forward."""
    return replace(labels, inner=_row_norm_sharding(forward, tensors).inner)


SHARED_STATISTICS = "shared-statistics"
"""Attribute of a batch-norm whose devices add up the statistics of the images that they share."""


def _batch_norm_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """Channels are independent of each other; every part of a batch has statistics of its own."""
    shape = tensors[op.inputs[0]].shape
    axis = int(dict(op.attrs).get("axis", 1))
    labels = ["c" if i == axis else "b" if i == 0 else "" for i in range(len(shape))]
    if len(shape) > 3 and axis < len(shape) - 2:
        labels[-2:] = [ROWS, COLUMNS]
    extra = (("c",),) * (len(op.inputs) - 1)
    sums = Inner("all-reduce", 2 * 4 * shape[axis])  # of x and of its squares, in fp32
    shared = dict(op.attrs).get(SHARED_STATISTICS) and op.kind == "batch-norm"
    return OpAxes(
        (tuple(labels), *extra),
        (tuple(labels), *(("c",),) * (len(op.outputs) - 1)),
        local=frozenset({"b", ROWS, COLUMNS}),
        inner={ROWS: (sums,), COLUMNS: (sums,)} if shared else {},
    )


def _group_norm_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """Of each sample and group of channels the statistics of all pixels, which are summed up."""
    x = tensors[op.inputs[0]].shape
    labels = (*("" for _ in x[2:]), ROWS, COLUMNS) if len(x) > 3 else ("",) * len(x)
    kept = [tensors[name] for name in op.outputs[1:]]
    sums = Inner("all-reduce", sum(of.bytes for of in kept))
    return OpAxes(
        (labels, *(("",) * len(tensors[name].shape) for name in op.inputs[1:])),
        (labels, *(("",) * len(of.shape) for of in kept)),
        inner={ROWS: (sums,), COLUMNS: (sums,)},
    )


def _channel_norm_gradient_sharding(
    op: Op, tensors: Tensors, forward: Op, labels: OpAxes
) -> OpAxes:
    """Add up the sums over dy and dy x that the input's gradient needs, as many as forward."""
    rule_of = {"batch-norm": _batch_norm_sharding, "group-norm": _group_norm_sharding}[forward.kind]
    return replace(labels, inner=rule_of(forward, tensors).inner)


def _local_response_norm_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """Every output needs all channels of its pixel."""
    labels = ("b", "", "d2", "d3")
    return OpAxes((labels,) * len(op.inputs), (labels,) * len(op.outputs))


BATCH_NORM = op_kind(
    "batch-norm",
    forward=Cost(5, "element", "add to sum x and sum x x (3); a x + b, a and b per channel (2)"),
    gradient=Cost(
        8,
        "element",
        "add to sum dy and sum dy (x - mean) (4); a dy + b x + c, per-channel a, b, c (4, and"
        " none where x needs no gradient)",
    ),
    sharding=_batch_norm_sharding,
    gradient_sharding=_channel_norm_gradient_sharding,
)(_batch_norm_gradient)
LAYER_NORM = op_kind(
    "layer-norm",
    forward=Cost(
        7, "element", "add to sum x and sum x x (3); z = (x - mean) / deviation (2); w z + b"
    ),
    gradient=Cost(
        13,
        "element",
        "z again (2); add to sum dy and sum dy z (3); where x needs a gradient: e = w dy (1),"
        " add to sum e and sum e z (3), (e - mean e - z mean e z) / deviation (4)",
    ),
    sharding=_row_norm_sharding,
    gradient_sharding=_row_norm_gradient_sharding,
)(_layer_norm_gradient)
RMS_NORM = op_kind(
    "rms-norm",
    forward=Cost(4, "element", "add to sum x x (2); z = x / root (1); w z (1)"),
    gradient=Cost(
        9,
        "element",
        "z again (1); add to sum dy z (2); where x needs a gradient: e = w dy (1), add to"
        " sum e z (2), (e - z mean e z) / root (3)",
    ),
    sharding=_row_norm_sharding,
    gradient_sharding=_row_norm_gradient_sharding,
)(_rms_norm_gradient)
GROUP_NORM = op_kind(
    "group-norm",
    forward=LAYER_NORM.forward,
    gradient=LAYER_NORM.gradient,
    sharding=_group_norm_sharding,
    gradient_sharding=_channel_norm_gradient_sharding,
)(_group_norm_gradient)
WEIGHTS_ONLY = {
    "group-norm": Cost(5, "element", "z again; add to sum dy and sum dy z"),
    "batch-norm": Cost(4, "element", "add to sum dy and sum dy (x - mean)"),
    "layer-norm": Cost(5, "element", "z again; add to sum dy and sum dy z"),
    "rms-norm": Cost(3, "element", "z again; add to sum dy z"),
}
"""Gradient costs where the input needs no gradient."""

FROZEN_BATCH_NORM = op_kind(
    "frozen-batch-norm",
    forward=Cost(2, "element", "a x + b"),
    gradient=Cost(1, "element", "a dy"),
    sharding=_batch_norm_sharding,
)(_frozen_batch_norm_gradient)
LOCAL_RESPONSE_NORM = op_kind(
    "local-response-norm",
    forward=Cost(
        1,
        "element times (size + 5)",
        "square (1), add over the neighbours (size), alpha / size s + k (2), power, divide",
    ),
    gradient=Cost(
        1,
        "element times (2 size + 10)",
        "s again (size + 3), dy y / s (2), add over the neighbours (size), times c x (2);"
        " power of s, times dy, subtract (3)",
    ),
    sharding=_local_response_norm_sharding,
)(_local_response_norm_gradient)
