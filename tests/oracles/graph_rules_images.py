"""Numpy rules of ops on images and of copies (see `graph_interpreter`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ridgeline.workload.graph import Op, Pass

Array = npt.NDArray[Any]
Shapes = list[tuple[int, ...]]


def _taps(op: Op, x: tuple[int, ...], r: int, s: int) -> list[tuple[int, int, slice, slice]]:
    """Taps of a transposed convolution, and the padded output pixels that they reach."""
    u, v = int(dict(op.attrs)["stride_h"]), int(dict(op.attrs)["stride_w"])
    return [
        (i, j, slice(i, i + u * (x[2] - 1) + 1, u), slice(j, j + v * (x[3] - 1) + 1, v))
        for i in range(r)
        for j in range(s)
    ]


def _padding(op: Op) -> tuple[int, int]:
    return int(dict(op.attrs)["padding_h"]), int(dict(op.attrs)["padding_w"])


def conv_transpose_forward(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    x, w = inputs
    (n, f, h, v), (p, q) = shapes[0], _padding(op)
    y = np.zeros((n, f, h + 2 * p, v + 2 * q), x.dtype)
    for i, j, rows, columns in _taps(op, x.shape, *w.shape[2:]):
        y[:, :, rows, columns] += np.einsum("nchw,cf->nfhw", x, w[:, :, i, j])
    return [y[:, :, p : p + h, q : q + v]]


def conv_transpose_gradient(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    p, q = _padding(op)
    around = ((0, 0), (0, 0), (p, p), (q, q))
    if op.pass_ is Pass.INPUT_GRADIENT:
        dy, w = np.pad(inputs[0], around), inputs[1]
        dx = np.zeros(shapes[0])
        for i, j, rows, columns in _taps(op, shapes[0], *w.shape[2:]):
            dx += np.einsum("nfhw,cf->nchw", dy[:, :, rows, columns], w[:, :, i, j])
        return [dx]
    x, dy = inputs[0], np.pad(inputs[1], around)
    dw = np.zeros(shapes[0])
    for i, j, rows, columns in _taps(op, x.shape, *shapes[0][2:]):
        dw[:, :, i, j] = np.einsum("nchw,nfhw->cf", x, dy[:, :, rows, columns])
    return [dw]


# --- enlarging


def _nearest(size: int, wanted: int) -> Array:
    weights = np.zeros((wanted, size))
    weights[np.arange(wanted), np.arange(wanted) * size // wanted] = 1
    return weights


def _bilinear(size: int, wanted: int) -> Array:
    weights = np.zeros((wanted, size))
    for i in range(wanted):
        at = max((i + 0.5) * size / wanted - 0.5, 0.0)
        low = int(at)
        weights[i, low] += 1 - (at - low)
        weights[i, min(low + 1, size - 1)] += at - low
    return weights


def _enlarging(op: Op, small: tuple[int, ...], large: tuple[int, ...]) -> tuple[Array, Array]:
    weights = _nearest if op.kind == "nearest-upsample" else _bilinear
    return weights(small[2], large[2]), weights(small[3], large[3])


def upsample_forward(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    rows, columns = _enlarging(op, inputs[0].shape, shapes[0])
    return [np.einsum("ph,nchw,qw->ncpq", rows, inputs[0], columns)]


def upsample_gradient(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    rows, columns = _enlarging(op, shapes[0], inputs[0].shape)
    return [np.einsum("ph,ncpq,qw->nchw", rows, inputs[0], columns)]


# --- copies


def _as_rows(x: Array, features: int) -> Array:
    if features and x.ndim == 4:
        x = x.transpose(0, 2, 3, 1)
    return x.reshape(x.shape[0], -1, features) if features else x


def concat(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    features, axis = int(dict(op.attrs)["features"]), int(dict(op.attrs)["axis"])
    return [np.concatenate([_as_rows(x, features) for x in inputs], axis)]


def split(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    (dy,), attrs = inputs, dict(op.attrs)
    axis, features = int(attrs["axis"]), int(attrs["features"])
    parts = []
    for i, shape in enumerate(shapes):
        start = int(attrs[f"start{i}"])
        length = int(np.prod(shape[1:])) // features if features else shape[axis]
        part = np.take(dy, np.arange(start, start + length), axis)
        if features and len(shape) == 4:
            n, c, h, w = shape
            part = part.reshape(n, h, w, c).transpose(0, 3, 1, 2)
        parts.append(part.reshape(shape))
    return parts


def _part(op: Op, shape: tuple[int, ...]) -> tuple[slice, ...]:
    starts = [int(dict(op.attrs).get(f"start{axis}", 0)) for axis in range(len(shape))]
    return tuple(slice(start, start + n) for start, n in zip(starts, shape, strict=True))


def cut(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    return [inputs[0][_part(op, shapes[0])]]


def pad(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    y = np.zeros(shapes[0], inputs[0].dtype)
    y[_part(op, inputs[0].shape)] = inputs[0]
    return [y]


def columns_forward(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    return [inputs[0].transpose(0, 3, 1, 2).reshape(shapes[0])]


def columns_gradient(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    n, c, h, w = shapes[0]
    return [inputs[0].reshape(n, w, c, h).transpose(0, 2, 3, 1)]


# --- regions


def _points(boxes: Array, sizes: list[tuple[int, int]], cells: int) -> list[list[Any]]:
    """Per image and box: level, and per cell the pixels and weights of its sampled points."""
    found = []
    for image, of_image in enumerate(boxes.real):
        for x0, y0, x1, y1 in of_image:
            level = int(np.clip(abs(x1 - x0) * abs(y1 - y0) * len(sizes), 0, len(sizes) - 1))
            grid = (np.arange(2 * cells) + 0.5) / (2 * cells)
            rows, columns = (
                _bilinear_at(np.abs(np.sin(low + (high - low) * grid)) * (size - 1), size)
                for low, high, size in zip((y0, x0), (y1, x1), sizes[level], strict=True)
            )
            mean = np.kron(np.eye(cells), np.full((1, 2), 0.5))
            found.append([image, level, mean @ rows, mean @ columns])
    return found


def _bilinear_at(at: Array, size: int) -> Array:
    weights = np.zeros((len(at), size))
    for i, a in enumerate(at):
        low = min(int(a), size - 1)
        weights[i, low] += 1 - (a - low)
        weights[i, min(low + 1, size - 1)] += a - low
    return weights


def roi_align_forward(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    *levels, boxes = inputs
    points = _points(boxes, [x.shape[2:] for x in levels], shapes[0][2])
    return [np.array([np.einsum("ph,chw,qw->cpq", r, levels[k][n], c) for n, k, r, c in points])]


def roi_align_gradient(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    dy, boxes = inputs
    dx = [np.zeros(shape) for shape in shapes]
    points = _points(boxes, [shape[2:] for shape in shapes], dy.shape[2])
    for dy_, (n, k, r, c) in zip(dy, points, strict=True):
        dx[k][n] += np.einsum("ph,cpq,qw->chw", r, dy_, c)
    return dx


# --- normalisation


def _wide(values: Array) -> Array:
    return values[None, :, None, None]


def _neighbours(x: Array, size: int, offset: int) -> Array:
    """Sums over `size` channels, from `offset` before each channel on."""
    y = np.zeros_like(x)
    for c in range(x.shape[1]):
        y[:, c] = x[:, max(c - offset, 0) : max(c - offset + size, 0)].sum(1)
    return y


def response_forward(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    (x,), a = inputs, {name: float(value) for name, value in op.attrs}
    size = int(a["size"])
    s = a["k"] + a["alpha"] / size * _neighbours(x * x, size, size // 2)
    return [x * s ** -a["beta"]]


def response_gradient(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    (dy, x, y), a = inputs, {name: float(value) for name, value in op.attrs}
    size = int(a["size"])
    s = a["k"] + a["alpha"] / size * _neighbours(x * x, size, size // 2)
    meets = _neighbours(dy * y / s, size, size - 1 - size // 2)
    return [dy * s ** -a["beta"] - 2 * a["alpha"] * a["beta"] / size * x * meets]


FORWARD = {
    "conv-transpose2d": conv_transpose_forward,
    "nearest-upsample": upsample_forward,
    "bilinear-upsample": upsample_forward,
    "columns": columns_forward,
    "roi-align": roi_align_forward,
    "concat": concat,
    "split": split,
    "cut": cut,
    "pad": pad,
    "frozen-batch-norm": lambda op, x, shapes: [x[0] * _wide(x[1]) + _wide(x[2])],
    "local-response-norm": response_forward,
}
GRADIENT = {
    "conv-transpose2d": conv_transpose_gradient,
    "nearest-upsample": upsample_gradient,
    "bilinear-upsample": upsample_gradient,
    "columns": columns_gradient,
    "roi-align": roi_align_gradient,
    "frozen-batch-norm": lambda op, x, shapes: [x[0] * _wide(x[1])],
    "local-response-norm": response_gradient,
}
