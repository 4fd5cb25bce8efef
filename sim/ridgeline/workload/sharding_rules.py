"""Sharding rules that several op kinds share (see `sharding_axes`)."""

from __future__ import annotations

import math

from ridgeline.workload.graph import Gemm, Op
from ridgeline.workload.sharding_axes import (
    COLUMNS,
    ROWS,
    Labels,
    OpAxes,
    Tensors,
    Window,
    whole,
)

_AXES = {ROWS: "h", COLUMNS: "w"}


def plain_labels(count: int) -> Labels:
    """Labels that say nothing but which dimension it is."""
    return tuple(f"d{i}" for i in range(count))


def shapes_of(op: Op, tensors: Tensors) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Return the shapes of an op's inputs and of its outputs."""
    return [tensors[n].shape for n in op.inputs], [tensors[n].shape for n in op.outputs]


def flat_lead(count: int) -> Labels:
    """Labels of rows: where some tensors have them as one dimension, only samples can be told."""
    return ("d0", *("" for _ in range(count - 1)))


def elementwise_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """All tensors have one shape, or the same rows, written as one dimension or several."""
    inputs, outputs = shapes_of(op, tensors)
    if len({*inputs, *outputs}) > 1:
        return _alike_rows(op, tensors)
    labels = plain_labels(len(inputs[0]))
    return OpAxes((labels,) * len(inputs), (labels,) * len(outputs))


def _alike_rows(op: Op, tensors: Tensors) -> OpAxes:
    """Labels of tensors with the same rows of features, as [b s, f] and [b, s, f] have."""
    inputs, outputs = shapes_of(op, tensors)
    shapes = [*inputs, *outputs]
    if len({(math.prod(shape), shape[-1:]) for shape in shapes}) > 1 or min(map(len, shapes)) < 2:
        return whole(op, tensors)
    few = math.gcd(*(shape[0] for shape in shapes))
    return OpAxes(
        tuple((*flat_lead(len(shape) - 1), "f") for shape in inputs),
        tuple((*flat_lead(len(shape) - 1), "f") for shape in outputs),
        {"d0": few},
    )


def broadcast_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """Dimensions are matched from the last on; one that is broadcast stays whole."""
    inputs, (output,) = shapes_of(op, tensors)
    labels = plain_labels(len(output))

    def of(shape: tuple[int, ...]) -> Labels:
        if is_channels_last(shape, output):
            return (labels[0], *labels[2:], labels[1])
        if is_channels_last(output, shape):
            return (labels[0], labels[-1], *labels[1:-1])
        last = labels[len(output) - len(shape) :]
        alike = zip(shape, output[len(output) - len(shape) :], last, strict=True)
        return tuple(label if mine == whole_ else "" for mine, whole_, label in alike)

    return OpAxes(tuple(map(of, inputs)), (labels,))


def is_channels_last(last: tuple[int, ...], first: tuple[int, ...]) -> bool:
    """Whether one shape is that of images with channels last, the other of these with them first.

    Traced networks have no op for turning them: what comes next reads them in its own order.
    """
    return len(last) > 3 and last != first and last == (*first[:1], *first[2:], *first[1:2])


def last_axis_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """Rows are independent of each other; the last axis stays whole."""
    count = len(tensors[op.inputs[0]].shape)
    labels = (*plain_labels(count - 1), "")
    return OpAxes((labels,), (labels,) * len(op.outputs))


def sample_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """Every output needs all of its sample."""
    inputs, outputs = (
        tuple(tuple("" if i else "b" for i in range(len(shape))) for shape in shapes)
        for shapes in shapes_of(op, tensors)
    )
    products = {"b": ("batch",)} if isinstance(op.loops, Gemm) else {}
    return OpAxes(inputs, outputs, loops=products)


def image_labels(shape: tuple[int, ...], channels: str) -> Labels:
    """Labels of images or volumes: the first axis of a volume stays whole."""
    if len(shape) < 4:
        return ("b", channels, *("" for _ in shape[2:]))
    return ("b", channels, *("" for _ in shape[4:]), ROWS, COLUMNS)


def filter_labels(shape: tuple[int, ...], first: str, second: str) -> Labels:
    """Return the labels of filters: of two dimensions of channels, and none of the window."""
    return (first, second, *("" for _ in shape[2:]))


def channel_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """Images, channel by channel; of one pixel for each, every device adds its part."""
    x, y = tensors[op.inputs[0]].shape, tensors[op.outputs[0]].shape
    labels, made = image_labels(x, "c"), image_labels(y, "c")
    windows: dict[str, Window] = {}
    for axis, label in ((-2, ROWS), (-1, COLUMNS)):
        window = _pool_window(op, label, x[axis], y[axis]) if len(x) > 3 else None
        if len(x) > 3 and y[axis] == 1 < x[axis]:
            made = tuple("" if name == label else name for name in made)
        elif window is None:
            labels = tuple("" if name == label else name for name in labels)
            made = tuple("" if name == label else name for name in made)
        else:
            windows[label] = window
    return OpAxes((labels,), (made,) * len(op.outputs), windows=windows)


def _pool_window(op: Op, label: str, n_in: int, n_out: int) -> Window | None:
    """Window of a pool or of an enlarged image; None if nothing says it."""
    kinds = {"nearest-upsample": "nearest", "bilinear-upsample": "bilinear"}
    if op.kind in kinds:
        return Window("nearest" if op.kind == "nearest-upsample" else "bilinear")
    if op.kind == "adaptive-avg-pool":
        return Window("adaptive")
    attrs, axis = dict(op.attrs), _AXES[label]
    if f"kernel_{axis}" in attrs:
        sizes = (attrs.get(f"{name}_{axis}") for name in ("kernel", "stride", "padding"))
        kernel, stride, padding = (int(size or 0) for size in sizes)
        return Window("slide", kernel, stride, padding, int(attrs.get(f"dilation_{axis}", 1)))
    if "kernel" in attrs:  # windows side by side
        return Window("slide", int(attrs["kernel"]), int(attrs["kernel"]))
    return None
