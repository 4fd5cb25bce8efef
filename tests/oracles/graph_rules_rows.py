"""Numpy rules of lookups, routing and dot products (see `graph_interpreter`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ridgeline.workload.graph import Op

Array = npt.NDArray[Any]
Shapes = list[tuple[int, ...]]


def _whole(x: Array) -> Array:
    return x.real.astype(int)


# --- tables


def embedding_forward(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    rows = inputs[1][_whole(inputs[0])]
    return [rows.sum(-2) if rows.ndim > len(shapes[0]) else rows]


def embedding_gradient(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    dy, indices = inputs
    pooled = indices.ndim == dy.ndim  # rows were added up: each gets the gradient of their sum
    rows = (np.repeat(dy, indices.shape[-1], -2) if pooled else dy).reshape(-1, dy.shape[-1])
    if int(dict(op.attrs)["sparse"]):
        return [rows]
    gradient = np.zeros(shapes[0])
    np.add.at(gradient, _whole(indices).reshape(-1), rows)
    return [gradient]


def position_gradient(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    gradient = np.zeros(shapes[0])
    gradient[: inputs[0].shape[1]] = inputs[0].sum(0)
    return [gradient]


def gather_forward(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    x, indices = inputs
    return [np.take_along_axis(x, _whole(indices)[..., None], 1)]


def gather_gradient(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    dy, indices = inputs
    dx = np.zeros(shapes[0])
    np.add.at(dx, (np.arange(len(dx))[:, None], _whole(indices)), dy)
    return [dx]


def class_token_forward(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    x, token = inputs
    pixels = x.reshape(*x.shape[:2], -1).transpose(0, 2, 1)
    return [np.concatenate([np.broadcast_to(token, (len(x), 1, len(token))), pixels], 1)]


def class_token_gradient(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    (dy,) = inputs
    return [dy[:, 1:].transpose(0, 2, 1).reshape(shapes[0]), dy[:, 0].sum(0)][-len(shapes) :]


# --- routing


def top_k_forward(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    (scores,) = inputs
    indices = np.argsort(-scores.real, -1, kind="stable")[..., : shapes[0][-1]]
    return [np.take_along_axis(scores, indices, -1), indices]


def top_k_gradient(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    dy, indices = inputs
    dx = np.zeros(shapes[0])
    np.put_along_axis(dx, _whole(indices), dy, -1)
    return [dx]


def share_gradient(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    dy, x, y = inputs
    return [(dy - (dy * y).sum(-1, keepdims=True)) / x.sum(-1, keepdims=True)]


def dispatch_forward(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    x, indices = inputs
    experts, capacity, features = shapes[0]
    y, rows = np.zeros((experts * capacity, features), x.dtype), np.full(shapes[1], -1)
    load = [0] * experts
    for token, chosen in enumerate(_whole(indices).reshape(shapes[1])):
        for choice, expert in enumerate(chosen):
            if load[expert] < capacity:
                rows[token, choice] = expert * capacity + load[expert]
                y[rows[token, choice]] = x.reshape(-1, features)[token]
            load[expert] += 1
    return [y.reshape(shapes[0]), rows]


def _of_tokens(y: Array, rows: Array) -> Array:
    """Row of each token and choice [tokens, choices, features]; zeros for the dropped."""
    found = y.reshape(-1, y.shape[-1])[_whole(rows)]
    return np.where(_whole(rows)[..., None] >= 0, found, 0)


def dispatch_gradient(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    dy, rows = inputs
    return [_of_tokens(dy, rows).sum(1).reshape(shapes[0])]


def combine_forward(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    y, weights, rows = inputs
    of_tokens = _of_tokens(y, rows)
    return [(of_tokens * weights.reshape(*rows.shape, 1)).sum(1).reshape(shapes[0])]


def combine_gradient(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    dy, y, weights, rows = inputs
    features = y.shape[-1]
    d_y, d_tokens = np.zeros((y.size // features, features)), dy.reshape(len(rows), 1, features)
    weighted, kept = d_tokens * weights.reshape(*rows.shape, 1), rows >= 0
    d_y[rows[kept]] = weighted[kept]
    d_weights = (d_tokens * _of_tokens(y, rows)).sum(-1)
    return [d_y.reshape(shapes[0]), d_weights.reshape(shapes[1])]


# --- dot products of pairs


def interaction_forward(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    count = op.loops.m  # type: ignore[union-attr]
    x = inputs[0].reshape(len(inputs[0]), count, -1)
    i, j = np.tril_indices(count, -1)
    return [np.einsum("nif,njf->nij", x, x)[:, i, j]]


def interaction_gradient(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    count = op.loops.m  # type: ignore[union-attr]
    dy, x = inputs[0], inputs[1].reshape(len(inputs[1]), count, -1)
    dz = np.zeros((len(dy), count, count))
    i, j = np.tril_indices(count, -1)
    dz[:, i, j] = dy
    to = "nij,njf->nif" if int(dict(op.attrs)["gradient-of"]) == 0 else "nij,nif->njf"
    return [np.einsum(to, dz, x).reshape(shapes[0])]


FORWARD = {
    "embedding": embedding_forward,
    "position-embedding": lambda op, x, shapes: [x[0] + x[1][: x[0].shape[1]]],
    "class-token": class_token_forward,
    "gather": gather_forward,
    "top-k": top_k_forward,
    "share": lambda op, inputs, shapes: [inputs[0] / inputs[0].sum(-1, keepdims=True)],
    "dispatch": dispatch_forward,
    "combine": combine_forward,
    "dot-interaction": interaction_forward,
}
GRADIENT = {
    "embedding": embedding_gradient,
    "position-embedding": position_gradient,
    "class-token": class_token_gradient,
    "gather": gather_gradient,
    "top-k": top_k_gradient,
    "share": share_gradient,
    "dispatch": dispatch_gradient,
    "combine": combine_gradient,
    "dot-interaction": interaction_gradient,
}
