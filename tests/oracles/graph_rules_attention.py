"""Numpy rules of attention (see `graph_interpreter`)."""

from __future__ import annotations

import math
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from ridgeline.workload.graph import Op

Array = npt.NDArray[Any]
Shapes = list[tuple[int, ...]]


def _queries(op: Op, x: Array) -> Array:
    """[batch, positions, heads x size] as [batch, kv heads, group, positions, size]."""
    heads, kv = int(dict(op.attrs)["heads"]), int(dict(op.attrs)["kv-heads"])
    return x.reshape(*x.shape[:2], kv, heads // kv, -1).transpose(0, 2, 3, 1, 4)


def _keys(op: Op, x: Array) -> Array:
    """[batch, positions, kv heads x size] as [batch, kv heads, positions, size]."""
    return x.reshape(*x.shape[:2], int(dict(op.attrs)["kv-heads"]), -1).transpose(0, 2, 1, 3)


def _scores(op: Op, x: Array) -> Array:
    """[batch, heads, rows, columns] as [batch, kv heads, group, rows, columns]."""
    return x.reshape(x.shape[0], int(dict(op.attrs)["kv-heads"]), -1, *x.shape[2:])


def _back(x: Array, shape: tuple[int, ...]) -> Array:
    """Undo `_queries` or `_keys`."""
    order = (0, 3, 1, 2, 4) if x.ndim == 5 else (0, 2, 1, 3)
    return x.transpose(order).reshape(shape)


def _visible(op: Op, rows: int, columns: int) -> Array:
    if not int(dict(op.attrs)["causal"]):
        return _in_chunks(op, np.ones((rows, columns)))
    seen = np.tril(np.ones((rows, columns)), columns - rows)
    if window := int(dict(op.attrs).get("window", 0)):
        seen -= np.tril(np.ones((rows, columns)), columns - rows - window)
    return _in_chunks(op, seen)


def _in_chunks(op: Op, seen: Array) -> Array:
    """Hide what is in another chunk of positions; queries are the last ones of the keys'."""
    chunk = int(dict(op.attrs).get("chunk", 0))
    if not chunk:
        return seen
    rows, columns = seen.shape
    of_query = (np.arange(rows) + columns - rows) // chunk
    return seen * (of_query[:, None] == np.arange(columns) // chunk)


def scores_forward(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    q, k = _queries(op, inputs[0]), _keys(op, inputs[1])
    return [np.einsum("nkgsd,nktd->nkgst", q, k).reshape(shapes[0])]


def scores_gradient(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    dy, other = _scores(op, inputs[0]), inputs[1]
    if int(dict(op.attrs)["gradient-of"]) == 0:
        dq = np.einsum("nkgst,nktd->nkgsd", dy, _keys(op, other))
        return [_back(dq, shapes[0])]
    return [_back(np.einsum("nkgst,nkgsd->nktd", dy, _queries(op, other)), shapes[0])]


def context_forward(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    p, v = _scores(op, inputs[0]), _keys(op, inputs[1])
    return [_back(np.einsum("nkgst,nktd->nkgsd", p, v), shapes[0])]


def context_gradient(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    if int(dict(op.attrs)["gradient-of"]) == 0:
        dy, v = _queries(op, inputs[0]), _keys(op, inputs[1])
        return [np.einsum("nkgsd,nktd->nkgst", dy, v).reshape(shapes[0])]
    p, dy = _scores(op, inputs[0]), _queries(op, inputs[1])
    return [_back(np.einsum("nkgst,nkgsd->nktd", p, dy), shapes[0])]


def _soft(op: Op, scores: Array) -> tuple[Array, Array]:
    """Probabilities of scaled and masked scores, and the logarithms of the sums."""
    seen = _visible(op, *scores.shape[-2:])
    scaled = scores * float(dict(op.attrs)["scale"])
    top = np.where(seen, scaled.real, -np.inf).max(-1, keepdims=True)
    powers = np.exp(np.where(seen, scaled - top, 0)) * seen
    sums = powers.sum(-1, keepdims=True)
    return powers / sums, (np.log(sums) + top)[..., 0]


def softmax_forward(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    x = inputs[0] if inputs[0].ndim > 1 else inputs[0][None]
    return [_soft(op, x)[0].reshape(shapes[0])]


def softmax_gradient(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    dy, y = inputs
    return [y * (dy - (dy * y).sum(-1, keepdims=True)) * float(dict(op.attrs)["scale"])]


def _kept(op: Op, shape: tuple[int, ...]) -> Array:
    """Factors of the dropout inside fused attention: the same in both passes of a layer."""
    probability = float(dict(op.attrs)["probability"])
    draws = np.random.default_rng(zlib.crc32(op.layer.encode())).random(shape)
    return (draws >= probability) / (1 - probability)


def flash_forward(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    q, k, v = _queries(op, inputs[0]), _keys(op, inputs[1]), _keys(op, inputs[2])
    p, sums = _soft(op, np.einsum("nkgsd,nktd->nkgst", q, k))
    y = np.einsum("nkgst,nktd->nkgsd", p * _kept(op, p.shape), v)
    return [_back(y, shapes[0]), sums.reshape(shapes[1])]


def flash_gradient(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    q, k, v = _queries(op, inputs[0]), _keys(op, inputs[1]), _keys(op, inputs[2])
    y, dy = _queries(op, inputs[3]), _queries(op, inputs[5])
    scale = float(dict(op.attrs)["scale"])
    scores = np.einsum("nkgsd,nktd->nkgst", q, k) * scale
    sums = inputs[4].reshape(scores.shape[:-1])
    seen = _visible(op, *scores.shape[-2:])
    p = np.exp(np.where(seen, scores - sums[..., None], 0)) * seen
    kept = _kept(op, p.shape)
    dv = np.einsum("nkgst,nkgsd->nktd", p * kept, dy)
    dp = np.einsum("nkgsd,nktd->nkgst", dy, v) * kept
    of_sums = inputs[6].reshape(sums.shape) if len(inputs) > 6 else 0
    ds = p * (dp - (dy * y).sum(-1)[..., None] + np.asarray(of_sums)[..., None]) * scale
    dq = np.einsum("nkgst,nktd->nkgsd", ds, k)
    dk = np.einsum("nkgst,nkgsd->nktd", ds, q)
    return [_back(dx, shape) for dx, shape in zip((dq, dk, dv), shapes, strict=True)]


# --- positions


def _rotated(x: Array, angles: Array, sign: int) -> Array:
    n, positions, width = x.shape
    half = angles.shape[1] // 2
    cos, sin = angles[:, None, :half], sign * angles[:, None, half:]
    first, second = np.moveaxis(x.reshape(n, positions, width // (2 * half), 2, half), 3, 0)
    turned = [first * cos - second * sin, second * cos + first * sin]
    return np.stack(turned, 3).reshape(x.shape)


def bucket(op: Op, rows: int, columns: int, ranges: int) -> Array:
    """T5's ranges: half are single distances, half grow logarithmically up to `distance`."""
    causal, distance = (int(dict(op.attrs)[name]) for name in ("causal", "distance"))
    table = np.zeros((rows, columns), int)
    for i in range(rows):
        for j in range(columns):
            back, count, start = i - j, ranges, 0
            if not causal:
                count = ranges // 2
                start = count if j > i else 0
                back = abs(back)
            back, exact = max(back, 0), count // 2
            if back >= exact:
                grown = math.log(back / exact) / math.log(distance / exact) * (count - exact)
                back = min(exact + int(grown), count - 1)
            table[i, j] = start + back
    return table


def relative_bias_forward(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    scores, table = inputs
    return [scores + np.moveaxis(table[bucket(op, *scores.shape[2:], len(table))], 2, 0)]


def relative_bias_gradient(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    (dy,) = inputs
    d_table = np.zeros(shapes[0])
    np.add.at(d_table, bucket(op, *dy.shape[2:], shapes[0][0]), np.moveaxis(dy.sum(0), 0, 2))
    return [d_table]


# --- heads


def _heads(x: Array, heads: int) -> Array:
    return x.reshape(*x.shape[:2], heads, -1)


def join_heads_forward(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    x, heads = _heads(inputs[0], int(dict(op.attrs)["heads"])), int(dict(op.attrs)["heads"])
    size = shapes[0][2] // heads - x.shape[3]
    other = inputs[1].reshape(*x.shape[:2], -1, size)
    other = np.broadcast_to(other, (*x.shape[:3], size))
    return [np.concatenate([x, other], 3).reshape(shapes[0])]


def join_heads_gradient(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    heads = int(dict(op.attrs)["heads"])
    dy = _heads(inputs[0], heads)
    first = shapes[0][2] // heads
    own, rest = dy[..., :first], dy[..., first:]
    if shapes[1][2] == rest.shape[3]:
        rest = rest.sum(2)
    return [own.reshape(shapes[0]), rest.reshape(shapes[1])]


def additive_forward(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    q, k, v, length = inputs
    t = np.tanh(q[:, :, None] + k[:, None])
    return [(t @ v * length / np.sqrt((v * v).sum()))[:, None]]


def additive_gradient(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    dy, q, k, v, length = inputs
    t, dy = np.tanh(q[:, :, None] + k[:, None]), dy[:, 0, :, :, None]
    size = np.sqrt((v * v).sum())
    e = dy * (v * length / size) * (1 - t * t)
    du = (dy * t).sum((0, 1, 2))
    along = (du @ v) / size
    return [e.sum(2), e.sum(1), length / size * (du - along * v / size), np.array([along])]


FORWARD = {
    "attention-scores": scores_forward,
    "attention-context": context_forward,
    "softmax": softmax_forward,
    "flash-attention": flash_forward,
    "rotary": lambda op, inputs, shapes: [_rotated(*inputs, 1)],
    "relative-bias": relative_bias_forward,
    "join-heads": join_heads_forward,
    "additive-attention": additive_forward,
}
GRADIENT = {
    "attention-scores": scores_gradient,
    "attention-context": context_gradient,
    "softmax": softmax_gradient,
    "flash-attention": flash_gradient,
    "rotary": lambda op, inputs, shapes: [_rotated(*inputs, -1)],
    "relative-bias": relative_bias_gradient,
    "join-heads": join_heads_gradient,
    "additive-attention": additive_gradient,
}
