"""Numpy rules of functions that are broadcast and of group norms (see `graph_interpreter`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ridgeline.workload.graph import Op

Array = npt.NDArray[Any]
Shapes = list[tuple[int, ...]]
SLOPE = 0.01


def _summed(values: Array, shape: tuple[int, ...]) -> Array:
    """Sum the gradient of what was broadcast over the axes that it does not have."""
    axes = tuple(i for i, size in enumerate(shape) if size == 1 and values.shape[i] > 1)
    return values.sum(axes, keepdims=True).reshape(shape)


def _per_channel(slope: Array, x: Array) -> Array:
    return slope.reshape([-1 if i == 1 else 1 for i in range(x.ndim)])


def broadcast_multiply_gradient(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    dy, *others = inputs  # of each input that wants a gradient the other one
    return [_summed(dy * y, shape) for y, shape in zip(reversed(others), shapes, strict=True)]


def broadcast_add_gradient(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    return [_summed(inputs[0], shape) for shape in shapes]


def leaky_relu_gradient(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    dy, x = inputs
    return [np.where(x.real > 0, dy, SLOPE * dy)]


def prelu_forward(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    x, slope = inputs
    return [np.where(x.real > 0, x, _per_channel(slope, x) * x)]


def prelu_gradient(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    dy, x, slope = inputs
    negative = np.where(x.real > 0, 0, dy)
    others = tuple(i for i in range(x.ndim) if i != 1)
    dx = np.where(x.real > 0, dy, _per_channel(slope, x) * dy)
    return [dx, (negative * x).sum(others)]


def length_forward(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    return [np.sqrt((inputs[0] * inputs[0]).sum(-1, keepdims=True))]


def length_gradient(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    dy, x, y = inputs
    return [dy * x / y]


def divide_gradient(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    dy, x, by = inputs
    return [_summed(dy / by, shapes[0]), _summed(-dy * x / (by * by), shapes[1])]


def _log_softmax(x: Array) -> Array:
    high = x.real.max(-1, keepdims=True)
    return x - high - np.log(np.exp(x - high).sum(-1, keepdims=True))


def log_softmax_gradient(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    dy, y = inputs
    return [dy - np.exp(y) * dy.sum(-1, keepdims=True)]


def _rows(op: Op, x: Array) -> Array:
    return x.reshape(x.shape[0] * int(dict(op.attrs)["groups"]), -1)


def group_norm_forward(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    x, scale, shift = inputs
    rows = _rows(op, x)
    mean = rows.mean(-1)
    inverse = 1 / np.sqrt((rows * rows).mean(-1) - mean * mean + float(dict(op.attrs)["epsilon"]))
    normal = ((rows - mean[:, None]) * inverse[:, None]).reshape(x.shape)
    return [normal * _per_channel(scale, x) + _per_channel(shift, x), mean, inverse]


def group_norm_gradient(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    dy, x, mean, inverse, scale = inputs
    rows = (_rows(op, x) - mean[:, None]) * inverse[:, None]
    normal = rows.reshape(x.shape)
    others = tuple(i for i in range(x.ndim) if i != 1)
    d_scale, d_shift = (dy * normal).sum(others), dy.sum(others)
    e = _rows(op, dy * _per_channel(scale, x))
    rest = e - e.mean(-1, keepdims=True) - rows * (e * rows).mean(-1, keepdims=True)
    dx = (rest * inverse[:, None]).reshape(x.shape)
    return [dx, d_scale, d_shift] if len(shapes) == 3 else [d_scale, d_shift]


def _hard_sigmoid(x: Array) -> Array:
    return np.where(x.real > 3, 1, np.where(x.real < -3, 0, x / 6 + 0.5))


def _hard_slope(x: Array) -> Array:
    return np.where(abs(x.real) < 3, 1 / 6, 0)


def _reduced(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    """Sum all axes but the first ones of the output; an axis of one that is left stays."""
    rest = tuple(range(len([size for size in shapes[0][1:] if size > 1]) + 1, inputs[0].ndim))
    return [inputs[0].sum(rest).reshape(shapes[0])]


def _spread(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    dy = inputs[0].reshape(inputs[0].shape[0], -1)
    whole = dy.reshape(*dy.shape, *[1] * (len(shapes[0]) - 2)) + np.zeros(shapes[0])
    return [whole.reshape(shapes[0])]


def _count(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape[2:]))


def _normal(x: Array) -> tuple[Array, Array]:
    """Return images whose channels have mean 0 and variance 1, and over what they were divided."""
    axes = tuple(range(2, x.ndim))
    centred = x - x.mean(axes, keepdims=True)
    inverse = 1 / np.sqrt((centred**2).mean(axes, keepdims=True) + 1e-5)
    return centred * inverse, inverse


def normalize_gradient(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    dy, x = inputs
    normal, inverse = _normal(x)
    axes = tuple(range(2, x.ndim))
    rest = dy - dy.mean(axes, keepdims=True)
    return [(rest - normal * (dy * normal).mean(axes, keepdims=True)) * inverse]


def _shown(x: Array) -> Array:
    """Hide the last of the last axis, as the end of a sequence is hidden."""
    return x * (np.arange(x.shape[-1]) < x.shape[-1] - 1)


def weighted_sum_forward(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    x, v, length = inputs
    return [(x @ v * length / np.sqrt((v * v).sum())).reshape(shapes[0])]


def weighted_sum_gradient(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    dy, x, v, length = inputs
    dy, size = dy.reshape(x.shape[:-1])[..., None], np.sqrt((v * v).sum())
    du = (dy * x).reshape(-1, len(v)).sum(0)
    along = (du @ v) / size
    return [dy * v * length / size, length / size * (du - along * v / size), np.array([along])]


FORWARD = {
    "hard-sigmoid": lambda op, inputs, shapes: [_hard_sigmoid(inputs[0])],
    "hard-swish": lambda op, inputs, shapes: [inputs[0] * _hard_sigmoid(inputs[0])],
    "compare": lambda op, inputs, shapes: [np.resize(inputs[0].real > 0, shapes[0]) * 1.0],
    "sum": _reduced,
    "mean": lambda op, inputs, shapes: [_reduced(op, inputs, shapes)[0] / _count(inputs[0].shape)],
    "rearrange": lambda op, inputs, shapes: [inputs[0].reshape(shapes[0])],  # here: a copy
    "normalize": lambda op, inputs, shapes: [_normal(inputs[0])[0]],
    "select": lambda op, inputs, shapes: [_shown(inputs[0])],
    "pairwise-add": lambda op, inputs, shapes: [inputs[0][:, :, None] + inputs[1][:, None]],
    "weighted-sum": weighted_sum_forward,
    "broadcast-multiply": lambda op, inputs, shapes: [inputs[0] * inputs[1]],
    "broadcast-add": lambda op, inputs, shapes: [inputs[0] + inputs[1]],
    "leaky-relu": lambda op, inputs, shapes: [
        np.where(inputs[0].real > 0, inputs[0], SLOPE * inputs[0])
    ],
    "exp": lambda op, inputs, shapes: [np.exp(inputs[0])],
    "prelu": prelu_forward,
    "length": length_forward,
    "divide": lambda op, inputs, shapes: [inputs[0] / inputs[1]],
    "log-softmax": lambda op, inputs, shapes: [_log_softmax(inputs[0])],
    "group-norm": group_norm_forward,
}
GRADIENT = {
    "hard-sigmoid": lambda op, inputs, shapes: [inputs[0] * _hard_slope(inputs[1])],
    "hard-swish": lambda op, inputs, shapes: [
        inputs[0] * (_hard_sigmoid(inputs[1]) + inputs[1] * _hard_slope(inputs[1]))
    ],
    "sum": _spread,
    "mean": lambda op, inputs, shapes: [_spread(op, inputs, shapes)[0] / _count(shapes[0])],
    "rearrange": lambda op, inputs, shapes: [inputs[0].reshape(shapes[0])],
    "normalize": normalize_gradient,
    "select": lambda op, inputs, shapes: [_shown(inputs[0])],
    "pairwise-add": lambda op, inputs, shapes: [inputs[0].sum(2), inputs[0].sum(1)],
    "weighted-sum": weighted_sum_gradient,
    "broadcast-multiply": broadcast_multiply_gradient,
    "broadcast-add": broadcast_add_gradient,
    "leaky-relu": leaky_relu_gradient,
    "exp": lambda op, inputs, shapes: [inputs[0] * inputs[1]],
    "prelu": prelu_gradient,
    "length": length_gradient,
    "divide": divide_gradient,
    "log-softmax": log_softmax_gradient,
    "group-norm": group_norm_gradient,
}
