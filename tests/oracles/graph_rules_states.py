"""Numpy rules of state-space layers, position by position (see `graph_interpreter`).

`in_chunks` is the same by products of chunks, and counts their multiplications.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ridgeline.workload.graph import Op

Array = npt.NDArray[Any]
Shapes = list[tuple[int, ...]]


def _sigmoid(x: Array) -> Array:
    return (1 + np.tanh(x / 2)) / 2  # without overflow


class Parts(NamedTuple):
    """What states run with: [batch, positions, heads, ...]; `before` is what silu is taken of."""

    x: Array
    b: Array
    c: Array
    step: Array
    keeps: Array
    before: Array


def _shifted(x: Array, by: int) -> Array:
    moved = np.zeros_like(x)
    moved[:, by:] = x[:, : x.shape[1] - by]
    return moved


def parts_of(op: Op, inputs: list[Array]) -> Parts:
    mixed, steps, filters, bias, step_bias, decay, _ = inputs
    attrs = dict(op.attrs)
    heads, groups, state = (int(attrs[name]) for name in ("heads", "groups", "state"))
    taps = filters.shape[1]
    before = sum(_shifted(mixed, taps - 1 - k) * filters[:, k] for k in range(taps)) + bias
    after = before * _sigmoid(before)
    inner = mixed.shape[2] - 2 * groups * state
    x, b, c = np.split(after, [inner, inner + groups * state], -1)
    x = x.reshape(*x.shape[:2], heads, -1)
    b, c = (y.reshape(*y.shape[:2], groups, state).repeat(heads // groups, 2) for y in (b, c))
    step = np.log1p(np.exp(steps + step_bias))
    return Parts(x, b, c, step, np.exp(-step * np.exp(decay)), before)


def forward(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    x, b, c, step, keeps, _ = parts_of(op, inputs)
    y, state = np.zeros_like(x), np.zeros((*x[:, 0].shape, b.shape[-1]), x.dtype)
    for t in range(x.shape[1]):
        added = step[:, t, :, None, None] * x[:, t, ..., None] * b[:, t, :, None]
        state = keeps[:, t, :, None, None] * state + added
        y[:, t] = (state * c[:, t, :, None]).sum(-1) + inputs[-1][:, None] * x[:, t]
    return [y.reshape(shapes[0])]


def in_chunks(op: Op, inputs: list[Array], chunk: int) -> tuple[Array, int]:
    """Return the output, and how many multiplications products of chunks take."""
    x, b, c, step, keeps, _ = parts_of(op, inputs)
    heads, groups = x.shape[2], int(dict(op.attrs)["groups"])
    y, macs = np.zeros_like(x), 0
    state = np.zeros((*x[:, 0].shape, b.shape[-1]))
    for first in range(0, x.shape[1], chunk):
        at = slice(first, first + chunk)
        xs, bs, cs, d = x[:, at], b[:, at], c[:, at], step[:, at]
        logs = np.cumsum(np.log(keeps[:, at]), 1)
        scores = np.einsum("bihn,bjhn->bhij", cs, bs)
        macs += scores.size * b.shape[-1] * groups // heads  # a group's are the same
        later = np.tril(np.ones((d.shape[1], d.shape[1])))
        apart = (logs[:, :, None] - logs[:, None]).transpose(0, 3, 1, 2)
        weights = scores * np.where(later, np.exp(np.where(later, apart, 0)), 0)
        inside = np.einsum("bhij,bjh,bjhp->bihp", weights, d, xs)
        macs += weights.size * x.shape[3]
        since = np.einsum("bihn,bhpn->bihp", cs, state) * np.exp(logs)[..., None]
        y[:, at] = inside + since + inputs[-1][:, None] * xs
        left = np.exp(logs[:, -1:] - logs) * d
        added = np.einsum("bjh,bjhp,bjhn->bhpn", left, xs, bs)
        macs += 2 * xs.size * b.shape[-1]  # read from the state, and added to it
        state = np.exp(logs[:, -1])[..., None, None] * state + added
    return y, macs


def gradient(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    dy, *values = inputs
    mixed, steps, filters, _, step_bias, decay, skip = values
    x, b, c, step, keeps, before = parts_of(op, values)
    groups, taps = int(dict(op.attrs)["groups"]), filters.shape[1]
    dy = dy.reshape(x.shape)
    states = np.zeros((*x.shape, b.shape[-1]))
    state = states[:, 0] * 0
    for t in range(x.shape[1]):
        added = step[:, t, :, None, None] * x[:, t, ..., None] * b[:, t, :, None]
        states[:, t] = state = keeps[:, t, :, None, None] * state + added
    dx, db, dc = skip[:, None] * dy, np.zeros_like(b), np.zeros_like(c)
    d_step, d_keeps, d_state = np.zeros_like(step), np.zeros_like(keeps), state * 0
    for t in reversed(range(x.shape[1])):
        d_state = d_state + dy[:, t, ..., None] * c[:, t, :, None]
        dc[:, t] = (dy[:, t, ..., None] * states[:, t]).sum(2)
        dx[:, t] += step[:, t, :, None] * (d_state * b[:, t, :, None]).sum(-1)
        db[:, t] = step[:, t, :, None] * (d_state * x[:, t, ..., None]).sum(2)
        d_step[:, t] = (d_state * x[:, t, ..., None] * b[:, t, :, None]).sum((2, 3))
        if t:
            d_keeps[:, t] = (d_state * states[:, t - 1]).sum((2, 3))
        d_state = d_state * keeps[:, t, :, None, None]
    rate = np.exp(decay)
    d_decay = (d_keeps * keeps * -step * rate).sum((0, 1))
    d_steps = (d_step - d_keeps * keeps * rate) * _sigmoid(steps + step_bias)
    shape = (*b.shape[:2], groups, -1, b.shape[-1])
    db, dc = (z.reshape(shape).sum(3).reshape(*b.shape[:2], -1) for z in (db, dc))
    after = np.concatenate([dx.reshape(*b.shape[:2], -1), db, dc], -1)
    s = _sigmoid(before)
    into = after * s * (1 + before * (1 - s))
    d_mixed, d_filters = np.zeros_like(mixed), np.zeros_like(filters)
    for k in range(taps):
        by = taps - 1 - k
        d_mixed[:, : mixed.shape[1] - by] += into[:, by:] * filters[:, k]
        d_filters[:, k] = (into * _shifted(mixed, by)).sum((0, 1))
    d_skip = (dy * x).sum((0, 1, 3))
    weights = [d_filters, into.sum((0, 1)), d_steps.sum((0, 1)), d_decay, d_skip]
    return [d_mixed, d_steps, *weights]


def _in_groups(op: Op, x: Array) -> Array:
    return x.reshape(*x.shape[:-1], int(dict(op.attrs)["heads"]), -1)


def norm_forward(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    x, gate, weight = inputs
    z = _in_groups(op, x * gate * _sigmoid(gate))
    inverse = ((z * z).mean(-1) + float(dict(op.attrs)["epsilon"])) ** -0.5
    return [(z * inverse[..., None]).reshape(x.shape) * weight, inverse]


def norm_gradient(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    dy, x, gate, weight, inverse = inputs
    s = _sigmoid(gate)
    z = _in_groups(op, x * gate * s) * inverse[..., None]
    e = _in_groups(op, dy * weight)
    d = (e - z * (e * z).mean(-1, keepdims=True)) * inverse[..., None]
    d = d.reshape(x.shape)
    rows = tuple(range(x.ndim - 1))
    return [
        d * gate * s,
        d * x * s * (1 + gate * (1 - s)),
        (dy * z.reshape(x.shape)).sum(rows),
    ]


FORWARD = {"state-space": forward, "gated-norm": norm_forward}
GRADIENT = {"state-space": gradient, "gated-norm": norm_gradient}
