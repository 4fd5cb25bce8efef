"""Runs a Graph with numpy: what its ops mean, from kind, pass, loops and attributes alone.

Works on real numbers, and on complex ones for derivatives by the complex step. Ops that claim to
work in place really overwrite their first input, so that a graph which overwrites too early
computes wrong numbers. Casts keep full precision. The update ops are left out.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from oracles import (
    graph_rules_attention,
    graph_rules_functions,
    graph_rules_images,
    graph_rules_linear,
    graph_rules_losses,
    graph_rules_recurrent,
    graph_rules_rows,
    graph_rules_states,
)
from ridgeline.workload.graph import Conv, Gemm, Graph, Op, Pass

Array = npt.NDArray[Any]
Rule = Callable[[Op, list[Array], list[tuple[int, ...]]], list[Array]]


def run(graph: Graph, values: Mapping[str, Array]) -> dict[str, Array]:
    """Return all tensors of a graph, given its inputs, weights and buffers."""
    env = {name: np.array(value) for name, value in values.items()}
    for op in graph.ops:
        if op.kind == "optimizer":
            continue
        shapes = [graph.tensors[name].shape for name in op.outputs]
        forward = op.pass_ in {Pass.FORWARD, Pass.RECOMPUTE} or op.kind in SAME
        rule = FORWARD if forward else GRADIENT
        results = rule[op.kind](op, [env[name] for name in op.inputs], shapes)
        for i, (name, result) in enumerate(zip(op.outputs, results, strict=True)):
            assert np.shape(result) == graph.tensors[name].shape, (op.name, name)
            if op.in_place and i == 0:
                env[op.inputs[0]][...] = result
                env[name] = env[op.inputs[0]]
            else:
                env[name] = np.array(result)
    return env


def _channels(values: Array, ndim: int, axis: int = 1) -> Array:
    return values.reshape([-1 if i == axis else 1 for i in range(ndim)])


def _others(x: Array, axis: int = 1) -> tuple[int, ...]:
    return tuple(i for i in range(x.ndim) if i != axis)


# --- contractions


def _taps(loops: Conv) -> list[tuple[int, int, slice, slice]]:
    """Filter taps and the rows and columns of the padded image that they meet."""
    (u, v), (d, e) = loops.stride, loops.dilation
    rows = [slice(i * d, i * d + u * (loops.h_out - 1) + 1, u) for i in range(loops.r)]
    columns = [slice(j * e, j * e + v * (loops.w_out - 1) + 1, v) for j in range(loops.s)]
    return [(i, j, rows[i], columns[j]) for i in range(loops.r) for j in range(loops.s)]


def _padded(x: Array, loops: Conv) -> Array:
    (p, q) = loops.padding
    return np.pad(x, ((0, 0), (0, 0), (p, p), (q, q)))


def _grouped(x: Array, groups: int) -> Array:
    return x.reshape(x.shape[0], groups, -1, *x.shape[2:])


def _filters(w: Array, groups: int) -> Array:
    return w.reshape(groups, -1, *w.shape[1:])


def conv_forward(op: Op, inputs: list[Array], shapes: list[tuple[int, ...]]) -> list[Array]:
    x, w = inputs
    assert isinstance(op.loops, Conv)
    padded, filters = _padded(x, op.loops), _filters(w, op.loops.groups)
    y = 0
    for i, j, rows, columns in _taps(op.loops):
        patch = _grouped(padded[:, :, rows, columns], op.loops.groups)
        y = y + np.einsum("ngchw,gkc->ngkhw", patch, filters[..., i, j])
    return [y.reshape(shapes[0])]


def conv_gradient(op: Op, inputs: list[Array], shapes: list[tuple[int, ...]]) -> list[Array]:
    dy, other = inputs
    loops = op.loops
    assert isinstance(loops, Conv)
    dy = _grouped(dy.reshape(loops.batch, loops.c_out, loops.h_out, loops.w_out), loops.groups)
    if op.pass_ is Pass.INPUT_GRADIENT:
        dx = _padded(np.zeros(shapes[0]), loops)
        filters = _filters(other, loops.groups)
        for i, j, rows, columns in _taps(loops):
            part = np.einsum("ngkhw,gkc->ngchw", dy, filters[..., i, j])
            dx[:, :, rows, columns] += part.reshape(dx[:, :, rows, columns].shape)
        (p, q), (h, w) = loops.padding, shapes[0][2:]
        return [dx[:, :, p : p + h, q : q + w]]
    dw, padded = np.zeros(shapes[0]), _padded(other, loops)
    for i, j, rows, columns in _taps(loops):
        patch = _grouped(padded[:, :, rows, columns], loops.groups)
        dw[:, :, i, j] = np.einsum("ngkhw,ngchw->gkc", dy, patch).reshape(shapes[0][:2])
    return [dw]


def gemm_forward(op: Op, inputs: list[Array], shapes: list[tuple[int, ...]]) -> list[Array]:
    x, w = inputs
    assert isinstance(op.loops, Gemm)
    m, n, k, batch = op.loops.m, op.loops.n, op.loops.k, op.loops.batch
    w = w.reshape(batch, -1, k)
    if columns := dict(op.attrs).get("columns"):  # of a product of several results, some
        spans = (map(int, span.split(":")) for span in str(columns).split(","))
        w = np.concatenate([w[:, start:end] for start, end in spans], axis=1)
    y = x.reshape(batch, m, k) @ w.reshape(batch, n, k).swapaxes(1, 2)
    ends = np.cumsum([shape[-1] for shape in shapes])[:-1]
    return [y.reshape(s) for y, s in zip(np.split(y, ends, axis=-1), shapes, strict=True)]


def gemm_gradient(op: Op, inputs: list[Array], shapes: list[tuple[int, ...]]) -> list[Array]:
    dy, other = inputs
    assert isinstance(op.loops, Gemm)
    m, n, k, batch = op.loops.m, op.loops.n, op.loops.k, op.loops.batch
    if op.pass_ is Pass.INPUT_GRADIENT:
        return [(dy.reshape(batch, m, k) @ other.reshape(batch, k, n)).reshape(shapes[0])]
    dy = dy.reshape(batch, k, m).swapaxes(1, 2)
    return [(dy @ other.reshape(batch, k, n)).reshape(shapes[0])]


def bias_forward(op: Op, inputs: list[Array], shapes: list[tuple[int, ...]]) -> list[Array]:
    x, bias = inputs
    return [x + _channels(bias, x.ndim, int(dict(op.attrs)["axis"]))]


def bias_gradient(op: Op, inputs: list[Array], shapes: list[tuple[int, ...]]) -> list[Array]:
    return [inputs[0].sum(_others(inputs[0], int(dict(op.attrs)["axis"])))]


# --- elementwise


def _gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _gelu_slope(x: Array) -> Array:
    t = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    return (1 + t) / 2 + x / 2 * (1 - t * t) * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)


def _sigmoid(x: Array) -> Array:
    return (1 + np.tanh(x / 2)) / 2  # without overflow


def _silu(x: Array) -> Array:
    return x * _sigmoid(x)


def _silu_slope(x: Array) -> Array:
    s = _sigmoid(x)
    return s * (1 + x * (1 - s))


def _gated_gradient(
    function: Callable[[Array], Array], slope: Callable[[Array], Array], inputs: list[Array]
) -> list[Array]:
    dy, gate, up = inputs
    return [dy * up * slope(gate), dy * function(gate)]


def dropout_forward(op: Op, inputs: list[Array], shapes: list[tuple[int, ...]]) -> list[Array]:
    probability = float(dict(op.attrs)["probability"])
    draws = np.random.default_rng(zlib.crc32(op.layer.encode())).random(shapes[0])
    mask = draws >= probability
    return [inputs[0] * mask / (1 - probability), mask]


def dropout_gradient(op: Op, inputs: list[Array], shapes: list[tuple[int, ...]]) -> list[Array]:
    dy, mask = inputs
    return [dy * mask / (1 - float(dict(op.attrs)["probability"]))]


# --- normalisation


def batch_norm_forward(op: Op, inputs: list[Array], shapes: list[tuple[int, ...]]) -> list[Array]:
    x, scale, shift, *running = inputs
    axis = int(dict(op.attrs)["axis"]) % x.ndim
    rest = _others(x, axis)
    mean = x.mean(rest)
    centred = x - _channels(mean, x.ndim, axis)
    inverse = 1 / np.sqrt((centred * centred).mean(rest) + float(dict(op.attrs)["epsilon"]))
    y = centred * _channels(inverse * scale, x.ndim, axis) + _channels(shift, x.ndim, axis)
    return [y, mean, inverse, *running]


def batch_norm_gradient(op: Op, inputs: list[Array], shapes: list[tuple[int, ...]]) -> list[Array]:
    dy, x, mean, inverse, scale = inputs
    axis = int(dict(op.attrs)["axis"]) % x.ndim

    def wide(values: Array) -> Array:
        return _channels(values, x.ndim, axis)

    normal = (x - wide(mean)) * wide(inverse)
    d_scale, d_shift = (dy * normal).sum(_others(x, axis)), dy.sum(_others(x, axis))
    count = x.size / x.shape[axis]
    dx = (dy - wide(d_shift / count) - normal * wide(d_scale / count)) * wide(inverse * scale)
    return [dx, d_scale, d_shift] if len(shapes) == 3 else [d_scale, d_shift]


def layer_norm_forward(op: Op, inputs: list[Array], shapes: list[tuple[int, ...]]) -> list[Array]:
    x, scale, shift = inputs
    axis = int(dict(op.attrs).get("axis", -1)) % x.ndim
    mean = x.mean(axis, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis, keepdims=True)
    inverse = 1 / np.sqrt(variance + float(dict(op.attrs)["epsilon"]))
    y = (x - mean) * inverse * _channels(scale, x.ndim, axis) + _channels(shift, x.ndim, axis)
    return [y, mean.squeeze(axis), inverse.squeeze(axis)]


def layer_norm_gradient(op: Op, inputs: list[Array], shapes: list[tuple[int, ...]]) -> list[Array]:
    dy, x, mean, inverse, scale = inputs
    axis = int(dict(op.attrs).get("axis", -1)) % x.ndim
    mean, inverse = np.expand_dims(mean, axis), np.expand_dims(inverse, axis)
    normal = (x - mean) * inverse
    d_scale, d_shift = (dy * normal).sum(_others(x, axis)), dy.sum(_others(x, axis))
    e = dy * _channels(scale, x.ndim, axis)
    rest = e - e.mean(axis, keepdims=True) - normal * (e * normal).mean(axis, keepdims=True)
    dx = rest * inverse
    if len(shapes) == 1:  # the weights are frozen
        return [dx]
    return [dx, d_scale, d_shift] if len(shapes) == 3 else [d_scale, d_shift]


def _by_head(op: Op, x: Array) -> Array:
    """Features of every head on an axis of their own, where a norm is of heads."""
    heads = dict(op.attrs).get("heads")
    return x if heads is None else x.reshape(*x.shape[:-1], int(heads), -1)


def rms_norm_forward(op: Op, inputs: list[Array], shapes: list[tuple[int, ...]]) -> list[Array]:
    x, scale = _by_head(op, inputs[0]), inputs[1]
    axis = int(dict(op.attrs)["axis"]) % x.ndim
    inverse = 1 / np.sqrt((x * x).mean(axis) + float(dict(op.attrs)["epsilon"]))
    y = x * np.expand_dims(inverse, axis) * _channels(scale, x.ndim, axis)
    return [y.reshape(inputs[0].shape), inverse]


def rms_norm_gradient(op: Op, inputs: list[Array], shapes: list[tuple[int, ...]]) -> list[Array]:
    dy, x, inverse, scale = inputs
    shape, dy, x = x.shape, _by_head(op, dy), _by_head(op, x)
    axis = int(dict(op.attrs)["axis"]) % x.ndim
    normal = x * np.expand_dims(inverse, axis)
    d_scale = (dy * normal).sum(_others(x, axis))
    e = dy * _channels(scale, x.ndim, axis)
    dx = (e - normal * (e * normal).mean(axis, keepdims=True)) * np.expand_dims(inverse, axis)
    if shapes == [shape]:  # the weights are frozen
        return [dx.reshape(shape)]
    return [dx.reshape(shape), d_scale] if len(shapes) == 2 else [d_scale]


# --- pooling


def _windows(op: Op, image: tuple[int, ...], y: tuple[int, ...]) -> list[tuple[int, int, Any, int]]:
    """Per output (row, column): the part of the image in its window, and its divisor."""
    if op.kind == "adaptive-avg-pool":
        sizes = list(zip(image, y, strict=True))
        starts = [[math.floor(i * s / o) for i in range(o)] for s, o in sizes]
        clipped = ends = [[math.ceil((i + 1) * s / o) for i in range(o)] for s, o in sizes]
    else:
        a = {name: int(value) for name, value in op.attrs}
        starts, ends, clipped = [], [], []
        for axis, s, o in zip("hw", image, y, strict=True):
            k, u, p = a[f"kernel_{axis}"], a[f"stride_{axis}"], a[f"padding_{axis}"]
            starts.append([i * u - p for i in range(o)])
            ends.append([i * u - p + k for i in range(o)])
            clipped.append([min(i * u - p + k, s + p) for i in range(o)])
    found = []
    for i in range(y[0]):
        for j in range(y[1]):
            top, left = starts[0][i], starts[1][j]
            rows = slice(max(top, 0), min(ends[0][i], image[0]))
            columns = slice(max(left, 0), min(ends[1][j], image[1]))
            divisor = (clipped[0][i] - top) * (clipped[1][j] - left)
            found.append((i, j, (slice(None), slice(None), rows, columns), divisor))
    return found


def max_pool_forward(op: Op, inputs: list[Array], shapes: list[tuple[int, ...]]) -> list[Array]:
    (x,) = inputs
    y, indices = np.zeros(shapes[0], x.dtype), np.zeros(shapes[1], int)
    positions = np.broadcast_to(np.arange(x[0, 0].size).reshape(x.shape[2:]), x.shape)
    for i, j, window, _ in _windows(op, x.shape[2:], shapes[0][2:]):
        values, places = (t[window].reshape(*x.shape[:2], -1) for t in (x, positions))
        best = values.real.argmax(-1, keepdims=True)
        y[:, :, i, j] = np.take_along_axis(values, best, -1)[..., 0]
        indices[:, :, i, j] = np.take_along_axis(places, best, -1)[..., 0]
    return [y, indices]


def max_pool_gradient(op: Op, inputs: list[Array], shapes: list[tuple[int, ...]]) -> list[Array]:
    dy, indices = inputs
    n, c, h, w = shapes[0]
    dx = np.zeros((n * c, h * w))
    rows = np.arange(n * c)[:, None]
    np.add.at(dx, (rows, indices.real.astype(int).reshape(n * c, -1)), dy.reshape(n * c, -1))
    return [dx.reshape(shapes[0])]


def avg_pool_forward(op: Op, inputs: list[Array], shapes: list[tuple[int, ...]]) -> list[Array]:
    (x,) = inputs
    y = np.zeros(shapes[0], x.dtype)
    for i, j, window, divisor in _windows(op, x.shape[2:], shapes[0][2:]):
        y[:, :, i, j] = x[window].sum((2, 3)) / divisor
    return [y]


def avg_pool_gradient(op: Op, inputs: list[Array], shapes: list[tuple[int, ...]]) -> list[Array]:
    (dy,) = inputs
    dx = np.zeros(shapes[0])
    for i, j, window, divisor in _windows(op, shapes[0][2:], dy.shape[2:]):
        dx[window] += dy[:, :, i, j][:, :, None, None] / divisor
    return [dx]


RULES = (
    graph_rules_attention,
    graph_rules_functions,
    graph_rules_images,
    graph_rules_linear,
    graph_rules_losses,
    graph_rules_recurrent,
    graph_rules_rows,
    graph_rules_states,
)

SAME = {"cast", "add", "fill", "scale", "unscale", "concat", "split", "cut", "pad"}
"""Kinds that compute the same thing in every pass."""

FORWARD: dict[str, Rule] = {
    "conv2d": conv_forward,
    "gemm": gemm_forward,
    "bias": bias_forward,
    "relu": lambda op, inputs, shapes: [np.where(inputs[0].real > 0, inputs[0], 0)],
    "sigmoid": lambda op, inputs, shapes: [_sigmoid(inputs[0])],
    "tanh": lambda op, inputs, shapes: [np.tanh(inputs[0])],
    "dropout": dropout_forward,
    "gelu": lambda op, inputs, shapes: [_gelu(inputs[0])],
    "silu": lambda op, inputs, shapes: [_silu(inputs[0])],
    "relu-squared": lambda op, inputs, shapes: [np.where(inputs[0].real > 0, inputs[0] ** 2, 0)],
    "multiply": lambda op, inputs, shapes: [inputs[0] * inputs[1]],
    "swiglu": lambda op, inputs, shapes: [_silu(inputs[0]) * inputs[1]],
    "geglu": lambda op, inputs, shapes: [_gelu(inputs[0]) * inputs[1]],
    "batch-norm": batch_norm_forward,
    "layer-norm": layer_norm_forward,
    "rms-norm": rms_norm_forward,
    "max-pool": max_pool_forward,
    "avg-pool": avg_pool_forward,
    "adaptive-avg-pool": avg_pool_forward,
    "cast": lambda op, inputs, shapes: [inputs[0]],
    "offload": lambda op, inputs, shapes: [inputs[0]],
    "prefetch": lambda op, inputs, shapes: [inputs[0]],
    "add": lambda op, inputs, shapes: [inputs[0] + inputs[1]],
    "fill": lambda op, inputs, shapes: [np.ones(shapes[0])],
    "scale": lambda op, inputs, shapes: [inputs[0] * float(dict(op.attrs)["factor"])],
    "unscale": lambda op, inputs, shapes: [inputs[0] / float(dict(op.attrs)["factor"])],
}

GRADIENT: dict[str, Rule] = {
    "conv2d": conv_gradient,
    "gemm": gemm_gradient,
    "bias": bias_gradient,
    "relu": lambda op, inputs, shapes: [np.where(inputs[1] > 0, inputs[0], 0)],
    "sigmoid": lambda op, inputs, shapes: [inputs[0] * inputs[1] * (1 - inputs[1])],
    "tanh": lambda op, inputs, shapes: [inputs[0] * (1 - inputs[1] ** 2)],
    "dropout": dropout_gradient,
    "gelu": lambda op, inputs, shapes: [inputs[0] * _gelu_slope(inputs[1])],
    "silu": lambda op, inputs, shapes: [inputs[0] * _silu_slope(inputs[1])],
    "relu-squared": lambda op, inputs, shapes: [
        np.where(inputs[1].real > 0, 2 * inputs[0] * inputs[1], 0)
    ],
    "multiply": lambda op, inputs, shapes: [inputs[0] * inputs[1]],
    "swiglu": lambda op, inputs, shapes: _gated_gradient(_silu, _silu_slope, inputs),
    "geglu": lambda op, inputs, shapes: _gated_gradient(_gelu, _gelu_slope, inputs),
    "batch-norm": batch_norm_gradient,
    "layer-norm": layer_norm_gradient,
    "rms-norm": rms_norm_gradient,
    "max-pool": max_pool_gradient,
    "avg-pool": avg_pool_gradient,
    "adaptive-avg-pool": avg_pool_gradient,
}

for rules in RULES:
    FORWARD |= rules.FORWARD
    GRADIENT |= rules.GRADIENT
