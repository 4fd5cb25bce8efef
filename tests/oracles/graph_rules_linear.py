"""Numpy rules of linear attention, filters, scans and sinks, position by position.

Gradients are those of the forward rules by the complex step, input by input (see
`graph_interpreter`): slow, and right if those are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ridgeline.workload.graph import Op

Array = npt.NDArray[Any]
Shapes = list[tuple[int, ...]]
Rule = Callable[[Op, list[Array], Shapes], list[Array]]


def _heads(x: Array, heads: int, groups: int = 1) -> Array:
    return x.reshape(*x.shape[:2], heads, -1).repeat(groups, 2)


def linear_attention(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    attrs = dict(op.attrs)
    heads, keys = int(attrs["heads"]), int(attrs["kv-heads"])
    q, k, v = inputs[:3]
    q, k = (_heads(x, keys, heads // keys) for x in (q, k))
    v = _heads(v, heads)
    y = np.zeros(v.shape, np.result_type(*inputs))
    state = np.zeros((len(q), heads, q.shape[3], v.shape[3]), y.dtype)
    if attrs["rule"] == "delta":
        rates, steps, bias, decay = inputs[3:]
        soft = _heads(np.log1p(np.exp(steps + bias)), heads)
        keeps = np.exp(-np.exp(decay)[:, None] * soft)  # one, or of each feature of a key
    else:
        rates = np.ones((*q.shape[:2], heads))
        keeps = np.full((*q.shape[:3], 1), 0.5)
    for t in range(q.shape[1]):
        state = state * keeps[:, t, :, :, None]
        held = 0
        if attrs["rule"] == "delta":
            held = np.einsum("nhkv,nhk->nhv", state, k[:, t])
        new = rates[:, t, :, None] * (v[:, t] - held)
        state = state + k[:, t, :, :, None] * new[:, :, None]
        y[:, t] = np.einsum("nhkv,nhk->nhv", state, q[:, t])
    return [y.reshape(shapes[0])]


def causal_filter(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    x, taps, *bias = inputs
    y = np.zeros(x.shape, np.result_type(*inputs))
    for k in range(taps.shape[1]):
        by = taps.shape[1] - 1 - k
        if by < x.shape[1]:
            y[:, by:] = y[:, by:] + x[:, : x.shape[1] - by] * taps[:, k]
    y = y + sum(bias)
    return [y / (1 + np.exp(-y)) if int(dict(op.attrs)["silu"]) else y]


def selective_scan(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    x, steps, b, c, decay, skip = inputs
    step = np.log1p(np.exp(steps))
    y = np.zeros(x.shape, np.result_type(*inputs))
    state = np.zeros((len(x), *decay.shape), y.dtype)
    for t in range(x.shape[1]):
        state = state * np.exp(-step[:, t, :, None] * np.exp(decay))
        state = state + (step[:, t] * x[:, t])[:, :, None] * b[:, t, None]
        y[:, t] = (state * c[:, t, None]).sum(-1) + skip * x[:, t]
    return [y]


def sink_scale(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    y, sums, sinks = inputs
    factor = 1 / (1 + np.exp(sinks[:, None] - sums))
    return [(_heads(y, len(sinks)) * factor.transpose(0, 2, 1)[..., None]).reshape(y.shape)]


def index_scores(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    q, k, weights = inputs
    scores = np.einsum("nshd,ntd->nsht", _heads(q, weights.shape[2]), k)
    scores = np.where(scores.real > 0, scores, 0)
    seen = np.tril(np.ones(shapes[0][1:]))
    return [np.where(seen, np.einsum("nsht,nsh->nst", scores, weights), -1e9)]


def _by_complex_step(forward: Rule) -> Rule:
    def gradient(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
        dy, *values = inputs
        found = []
        for i, value in enumerate(values):
            slopes = np.zeros(value.shape)
            for place in np.ndindex(*value.shape):
                moved = [np.array(one, complex) for one in values]
                moved[i][place] += 1e-30j
                (y,) = forward(op, moved, [dy.shape])
                slopes[place] = (y.imag * dy).sum() / 1e-30
            found.append(slopes)
        return found

    return gradient


def sink_softmax(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    x, sinks = inputs
    attrs = dict(op.attrs)
    rows, columns = x.shape[2:]
    seen = np.ones((rows, columns))
    if int(attrs["causal"]):
        seen = np.tril(seen, columns - rows)
    e = np.exp(np.where(seen, x * float(attrs["scale"]), -np.inf))
    return [e / (e.sum(-1, keepdims=True) + np.exp(sinks)[:, None, None])]


def sink_softmax_gradient(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    dy, y = inputs
    along = (dy * y).sum(-1, keepdims=True)
    d_sinks = -(along * (1 - y.sum(-1, keepdims=True))).sum((0, 2, 3))
    return [y * (dy - along) * float(dict(op.attrs)["scale"]), d_sinks]


FORWARD: dict[str, Rule] = {
    "linear-attention": linear_attention,
    "causal-filter": causal_filter,
    "selective-scan": selective_scan,
    "sink-scale": sink_scale,
    "index-scores": index_scores,
}
GRADIENT = {kind: _by_complex_step(rule) for kind, rule in FORWARD.items()}
FORWARD["softmax-with-sinks"] = sink_softmax
GRADIENT["softmax-with-sinks"] = sink_softmax_gradient
