"""Numpy rules of recurrent layers, timestep by timestep (see `graph_interpreter`)."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt

from ridgeline.workload.graph import Op, Pass

Array = npt.NDArray[Any]
Shapes = list[tuple[int, ...]]


def _order(op: Op, time: int) -> list[int]:
    """Timesteps in the order in which the recurrence meets them."""
    return list(range(time))[:: -1 if int(dict(op.attrs)["reverse"]) else 1]


def _before(op: Op, states: Array) -> Array:
    """The state that each timestep starts from."""
    previous, order = np.zeros_like(states), _order(op, states.shape[1])
    for earlier, t in itertools.pairwise(order):
        previous[:, t] = states[:, earlier]
    return previous


def _sigmoid(x: Array) -> Array:
    return (1 + np.tanh(x / 2)) / 2  # without overflow


def _parts(x: Array, count: int) -> list[Array]:
    return np.split(x, count, axis=-1)


def _unpack(inputs: list[Array]) -> tuple[Array, Array, Array]:
    gates, w, *bias = inputs
    return gates, w, bias[0] if bias else np.zeros(len(w))


def lstm_forward(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    gates, w, bias = _unpack(inputs)
    y, cells, used = (np.zeros(shape, gates.dtype) for shape in shapes)
    h = c = np.zeros((gates.shape[0], w.shape[1]), gates.dtype)
    for t in _order(op, gates.shape[1]):
        i, f, g, o = _parts(gates[:, t] + h @ w.T + bias, 4)
        i, f, g, o = _sigmoid(i), _sigmoid(f), np.tanh(g), _sigmoid(o)
        c = f * c + i * g
        h = o * np.tanh(c)
        y[:, t], cells[:, t], used[:, t] = h, c, np.concatenate([i, f, g, o], -1)
    return [y, cells, used]


def lstm_backward(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    dy, w, _, cells, used = inputs
    d_gates, previous = np.zeros(shapes[0]), _before(op, cells)
    dh, dc = np.zeros((2, dy.shape[0], dy.shape[2]))
    for t in _order(op, dy.shape[1])[::-1]:
        i, f, g, o = _parts(used[:, t], 4)
        dh = dh + dy[:, t]
        tanh = np.tanh(cells[:, t])
        dc = dc + dh * o * (1 - tanh**2)
        into = [
            dc * g * i * (1 - i),
            dc * previous[:, t] * f * (1 - f),
            dc * i * (1 - g * g),
            dh * tanh * o * (1 - o),
        ]
        d_gates[:, t] = np.concatenate(into, -1)
        dh, dc = d_gates[:, t] @ w, dc * f
    return [d_gates]


def gru_forward(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    gates, w, bias = _unpack(inputs)
    y, candidates, used = (np.zeros(shape, gates.dtype) for shape in shapes)
    h = np.zeros((gates.shape[0], w.shape[1]), gates.dtype)
    for t in _order(op, gates.shape[1]):
        (xr, xz, xn), (hr, hz, hn) = _parts(gates[:, t], 3), _parts(h @ w.T + bias, 3)
        r, z = _sigmoid(xr + hr), _sigmoid(xz + hz)
        n = np.tanh(xn + r * hn)
        h = n + z * (h - n)
        y[:, t], candidates[:, t], used[:, t] = h, hn, np.concatenate([r, z, n], -1)
    return [y, candidates, used]


def gru_backward(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    dy, w, y, candidates, used = inputs
    d_gates, previous = np.zeros(shapes[0]), _before(op, y)
    dh = np.zeros((dy.shape[0], dy.shape[2]))
    for t in _order(op, dy.shape[1])[::-1]:
        r, z, n = _parts(used[:, t], 3)
        dh = dh + dy[:, t]
        dn = dh * (1 - z) * (1 - n * n)
        dr = dn * candidates[:, t] * r * (1 - r)
        dz = dh * (previous[:, t] - n) * z * (1 - z)
        d_gates[:, t] = np.concatenate([dr, dz, dn], -1)
        dh = dh * z + np.concatenate([dr, dz, r * dn], -1) @ w
    return [d_gates]


def plain_forward(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    gates, w, bias = _unpack(inputs)
    y, h = np.zeros(shapes[0], gates.dtype), np.zeros(gates.shape[::2], gates.dtype)
    for t in _order(op, gates.shape[1]):
        x = gates[:, t] + h @ w.T + bias
        h = np.tanh(x) if op.kind == "rnn-tanh" else np.where(x.real > 0, x, 0)
        y[:, t] = h
    return [y]


def plain_backward(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    dy, w, y = inputs
    d_gates, dh = np.zeros(shapes[0]), np.zeros((dy.shape[0], dy.shape[2]))
    for t in _order(op, dy.shape[1])[::-1]:
        slope = 1 - y[:, t] ** 2 if op.kind == "rnn-tanh" else y[:, t] > 0
        d_gates[:, t] = (dh + dy[:, t]) * slope
        dh = d_gates[:, t] @ w
    return [d_gates]


def of_weights(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    d_gates, y, *used = inputs
    if op.kind == "gru":  # the candidate's recurrent part stands behind the reset gate
        dr, dz, dn = _parts(d_gates, 3)
        d_gates = np.concatenate([dr, dz, dn * _parts(used[0], 3)[0]], -1)
    dw = np.einsum("ntg,nth->gh", d_gates, _before(op, y))
    return [dw, d_gates.sum((0, 1))][: len(shapes)]


_BACKWARD = {
    "lstm": lstm_backward,
    "gru": gru_backward,
    "rnn-tanh": plain_backward,
    "rnn-relu": plain_backward,
}


def gradient(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    rule = of_weights if op.pass_ is Pass.WEIGHT_GRADIENT else _BACKWARD[op.kind]
    return rule(op, inputs, shapes)


FORWARD = {
    "lstm": lstm_forward,
    "gru": gru_forward,
    "rnn-tanh": plain_forward,
    "rnn-relu": plain_forward,
}
GRADIENT = dict.fromkeys(FORWARD, gradient)
