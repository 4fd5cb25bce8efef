"""Ops that only copy: put tensors side by side or apart, cut and pad, repeat pixels.

There are no views (see `ridgeline.workload.builder`), so that each of these is a copy, as the
gradient of a concatenation is in Caffe and in cuDNN-based frameworks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal

from ridgeline.errors import RidgelineError
from ridgeline.workload import sharding_axes
from ridgeline.workload.builder import GradientBuilder, GraphBuilder
from ridgeline.workload.graph import Op, Pass, Role
from ridgeline.workload.kinds import Cost, op_kind
from ridgeline.workload.numerics import widest
from ridgeline.workload.ops.window import Pair, image, pair
from ridgeline.workload.sharding_axes import OpAxes, Tensors, Window, whole
from ridgeline.workload.sharding_rules import channel_sharding, plain_labels, shapes_of


def concat(
    b: GraphBuilder, layer: str, xs: Sequence[str], *, axis: int = 1, features: int = 0
) -> str:
    """Put tensors side by side along an axis.

    Parameters
    ----------
    features
        If not 0, take each sample of every tensor as rows of so many features, an image's pixels
        as its rows, and put these below each other: [batch, rows, features].
    """
    format_ = widest(tuple(map(b.format, xs)))
    xs = [b.cast(x, format_, layer) for x in xs]
    shapes = [b.shape(x) for x in xs]
    if features:
        shapes = [(s[0], math.prod(s[1:]) // features, features) for s in shapes]
        axis = 1
    axis %= len(shapes[0])
    whole = [math.prod(s) for s in shapes] == list(map(b.elements, xs))
    if not whole or len({(*s[:axis], *s[axis + 1 :]) for s in shapes}) > 1:
        found = ", ".join(str(list(b.shape(x))) for x in xs)
        raise RidgelineError(f"layer {layer!r} cannot put the shapes {found} side by side")
    shape = (*shapes[0][:axis], sum(s[axis] for s in shapes), *shapes[0][axis + 1 :])
    y = b.activation(f"{layer}.y", shape, format_)
    b.emit(CONCAT, layer, xs, (y,), attrs=(("axis", axis), ("features", features)))
    return y


def cut(b: GraphBuilder, layer: str, x: str, *, axis: int, start: int = 0, length: int = 1) -> str:
    """Take `length` elements along an axis."""
    shape = list(b.shape(x))
    if not 0 <= start < start + length <= shape[axis]:
        raise RidgelineError(
            f"layer {layer!r} takes elements {start} to {start + length} of {shape[axis]}"
        )
    shape[axis] = length
    return _cut(b, layer, x, tuple(shape), {axis: start})


def crop(b: GraphBuilder, layer: str, x: str, size: Pair) -> str:
    """Take the middle of images, as U-Net does."""
    n, c, h, w = image(layer, b.shape(x))
    p, q = pair(size)
    if p > h or q > w:
        raise RidgelineError(f"layer {layer!r} crops images of {h} x {w} to {p} x {q}")
    return _cut(b, layer, x, (n, c, p, q), {2: (h - p) // 2, 3: (w - q) // 2})


def joint(b: GraphBuilder, layer: str, x: str, shape: tuple[int, ...]) -> str:
    """Stand for what is not known between two layers: a launch that moves and computes nothing."""
    y = b.activation(f"{layer}.y", shape, b.format(x))
    b.emit(JOINT, layer, (x,), (y,), passes=(0,), output_passes=(0,))
    return y


def columns(b: GraphBuilder, layer: str, x: str) -> str:
    """Make of each column of images one vector: [batch, width, channels x height]."""
    n, c, h, w = image(layer, b.shape(x))
    y = b.activation(f"{layer}.y", (n, w, c * h), b.format(x))
    b.emit(COLUMNS, layer, (x,), (y,))
    return y


def pad_channels(b: GraphBuilder, layer: str, x: str, channels: int) -> str:
    """Add channels of zeros before and after: the parameter-free shortcut of CIFAR ResNets.

    He et al., arXiv:1512.03385, Section 3.3, option A.
    """
    n, c, h, w = image(layer, b.shape(x))
    if channels < c:
        raise RidgelineError(f"layer {layer!r} pads {c} channels to {channels}")
    y = b.activation(f"{layer}.y", (n, channels, h, w), b.format(x))
    b.emit(PAD, layer, (x,), (y,), attrs=(("start1", (channels - c) // 2),))
    return y


def upsample(
    b: GraphBuilder, layer: str, x: str, size: Pair, mode: Literal["nearest", "bilinear"]
) -> str:
    """Enlarge images to height and width, as torch.nn.Upsample with align_corners=False."""
    n, c, h, w = image(layer, b.shape(x))
    p, q = pair(size)
    if p < h or q < w:
        raise RidgelineError(f"layer {layer!r} enlarges images of {h} x {w} to {p} x {q}")
    y = b.activation(f"{layer}.y", (n, c, p, q), b.format(x))
    kind = NEAREST if mode == "nearest" else BILINEAR
    b.emit(kind, layer, (x,), (y,), flops=kind.forward.of(b.elements(y)))
    return y


def gather_gradients(g: GradientBuilder, op: Op) -> str:
    """Name of the gradient of an op's outputs as one tensor: those of several, side by side."""
    if len(op.outputs) == 1:
        return g.gradient(op.outputs[0])
    parts = [_needed_gradient(g, op, y) for y in op.outputs]
    axis = len(g.shape(parts[0])) - 1
    shape = (*g.shape(parts[0])[:-1], sum(g.shape(part)[axis] for part in parts))
    name, format_ = f"{op.name}.outputs.grad", g.format(parts[0])
    whole = g.tensor(name, shape, format_, Role.ACTIVATION_GRADIENT)
    g.emit(
        CONCAT,
        op.layer,
        parts,
        (whole,),
        name=f"{name}.concat",
        pass_=Pass.INPUT_GRADIENT,
        attrs=(("axis", axis), ("features", 0)),
    )
    return whole


def _needed_gradient(g: GradientBuilder, op: Op, y: str) -> str:
    if not g.has_gradient(y):
        raise RidgelineError(f"{op.name}: its output {y!r} does not reach the loss")
    return g.gradient(y)


def _cut(
    b: GraphBuilder, layer: str, x: str, shape: tuple[int, ...], starts: dict[int, int]
) -> str:
    y = b.activation(f"{layer}.y", shape, b.format(x))
    passes = (Fraction(b.elements(y), b.elements(x)),)
    attrs = tuple((f"start{axis}", start) for axis, start in starts.items())
    b.emit(CUT, layer, (x,), (y,), passes=passes, attrs=attrs)
    return y


def _concat_gradient(g: GradientBuilder, op: Op) -> None:
    """Copy the parts that are wanted out of the output's gradient; `start0`, ... say where."""
    dy, axis = g.gradient(op.outputs[0]), int(dict(op.attrs)["axis"])
    total, start = g.shape(op.outputs[0])[axis], 0
    wanted: list[str] = []
    starts: list[tuple[str, int]] = []
    for x in op.inputs:
        if g.wants(x):
            wanted.append(x)
            starts.append((f"start{len(starts)}", start))
        start += g.elements(x) * total // g.elements(dy)
    passes = (Fraction(sum(map(g.elements, wanted)), g.elements(dy)),)
    g.derive(SPLIT, op, wanted, (dy,), passes=passes, attrs=(*op.attrs, *starts))


def _split_gradient(g: GradientBuilder, op: Op) -> None:
    """Put the parts' gradients side by side; parts that do not reach the loss are zero."""
    (x,) = op.inputs
    if g.wants(x):
        parts = tuple(g.gradient(y) for y in op.outputs if g.has_gradient(y))
        g.derive(CONCAT, op, (x,), parts)


def _cut_gradient(g: GradientBuilder, op: Op) -> None:
    (x,), (y,) = op.inputs, op.outputs
    if g.wants(x):
        g.derive(PAD, op, (x,), (g.gradient(y),))


def _pad_gradient(g: GradientBuilder, op: Op) -> None:
    (x,), (y,) = op.inputs, op.outputs
    if g.wants(x):
        passes = (Fraction(g.elements(x), g.elements(y)),)
        g.derive(CUT, op, (x,), (g.gradient(y),), passes=passes)


def _columns_gradient(g: GradientBuilder, op: Op) -> None:
    (x,), (y,) = op.inputs, op.outputs
    if g.wants(x):
        g.derive(COLUMNS, op, (x,), (g.gradient(y),))


def _joint_gradient(g: GradientBuilder, op: Op) -> None:
    (x,), (y,) = op.inputs, op.outputs
    if g.wants(x):
        g.derive(JOINT, op, (x,), (g.gradient(y),), passes=(0,), output_passes=(0,))


def _upsample_gradient(g: GradientBuilder, op: Op) -> None:
    (x,), (y,) = op.inputs, op.outputs
    if g.wants(x):
        kind = NEAREST if op.kind == "nearest-upsample" else BILINEAR
        g.derive(kind, op, (x,), (g.gradient(y),), flops=kind.gradient.of(g.elements(y)))


def _concat_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """Side by side; divided along that axis, every device has its part of every tensor."""
    inputs, outputs = shapes_of(op, tensors)
    attrs = dict(op.attrs)
    if int(attrs.get("features", 0)):
        return whole(op, tensors)
    labels = plain_labels(len(inputs[0]))
    of_axis = [shape[int(attrs["axis"])] for shape in (*inputs, *outputs)]
    units = {labels[int(attrs["axis"])]: math.gcd(*of_axis)}
    return OpAxes((labels,) * len(inputs), (labels,) * len(outputs), units)


def cut_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """Dimensions that stay as they are, and rows of which some are left out or added."""
    x, y = tensors[op.inputs[0]].shape, tensors[op.outputs[0]].shape
    if len(x) != len(y) or len(op.inputs) > 1 or len(op.outputs) > 1:
        return whole(op, tensors)
    attrs = dict(op.attrs)
    labels: list[str] = []
    windows: dict[str, Window] = {}
    for i, (a, b) in enumerate(zip(x, y, strict=True)):
        start = int(attrs.get(f"start{i}", 0))
        labels.append(f"d{i}" if a == b else "")
        if a != b and i >= max(2, len(x) - 2) and f"start{i}" in attrs:
            labels[-1] = sharding_axes.ROWS if i == len(x) - 2 else sharding_axes.COLUMNS
            windows[labels[-1]] = Window("slide", padding=start if b > a else -start)
    return OpAxes((tuple(labels),), (tuple(labels),), windows=windows)


def _columns_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """X [b, c, h, w] -> y [b, w, c x h]."""
    x = tensors[op.inputs[0]].shape
    return OpAxes((("b", "c", "", ""),), (("b", "", "c"),), {"c": x[1]})


LAYOUT = op_kind("layout")(None)  # channels last, or first again; after autodiff
HOST_INPUT = op_kind("host-input")(None)  # a mini-batch comes from the host
CONCAT = op_kind("concat", sharding=_concat_sharding)(_concat_gradient)
SPLIT = op_kind("split", sharding=_concat_sharding)(
    _split_gradient
)  # also the gradient of "concat"
CUT = op_kind("cut", sharding=cut_sharding)(_cut_gradient)
PAD = op_kind("pad", sharding=cut_sharding)(_pad_gradient)
JOINT = op_kind("joint")(_joint_gradient)
COLUMNS = op_kind("columns", sharding=_columns_sharding)(_columns_gradient)
NEAREST = op_kind(
    "nearest-upsample", gradient=Cost(1, "output element", "an addition"), sharding=channel_sharding
)(_upsample_gradient)
BILINEAR = op_kind(
    "bilinear-upsample",
    forward=Cost(7, "output element", "four products and their sum; the weights are not counted"),
    gradient=Cost(8, "output element", "four products, each added to a pixel"),
    sharding=channel_sharding,
)(_upsample_gradient)
