"""Steps and hops of ring attention, played with arrays, give what one device computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ridgeline.parallel.sharding.divide import ShardingSpec, divide
from ridgeline.parallel.sharding.ring_attention import HOP
from ridgeline.workload.files import load_model
from ridgeline.workload.graph import Graph, Op, Pass
from ridgeline.workload.ops.attention import OFF_DIAGONAL

Array = npt.NDArray[np.float64]
Held = dict[str, Any]
TEXT = """
kind: model
name: small
family: decoder
title: Tiny
citation: made for tests
vocabulary: 16
sequence: {tokens}
layers: 1
hidden: 4
attention: {{heads: 1, bias: false, output_bias: false, kernel: flash}}
feed_forward: {{width: 8, activation: gelu, bias: false}}
norm: layer-norm
positions: learned
tied: false
"""


def softmax_of(q: Array, k: Array, mask: Array) -> tuple[Array, Array]:
    scores = np.where(mask, q @ k.T / np.sqrt(q.shape[1]), -np.inf)
    sums = np.logaddexp.reduce(scores, axis=1)
    with np.errstate(invalid="ignore"):
        return np.nan_to_num(np.exp(scores - sums[:, None])), sums


def gradients(q: Array, k: Array, v: Array, y: Array, p: Array, dy: Array) -> list[Array]:
    ds = p * (dy @ v.T - (dy * y).sum(axis=1, keepdims=True)) / np.sqrt(q.shape[1])
    return [ds @ k, ds.T @ q, p.T @ dy]


def zig_zag(tokens: int, degree: int) -> list[npt.NDArray[np.int64]]:
    parts = np.arange(tokens).reshape(2 * degree, -1)
    return [np.concatenate((parts[i], parts[2 * degree - 1 - i])) for i in range(degree)]


class Devices:
    """What each device has of every tensor; keys and values know whose they are."""

    def __init__(self, degree: int, at: list[npt.NDArray[np.int64]]) -> None:
        self.held: list[Held] = [{} for _ in range(degree)]
        self.at, self.degree = at, degree
        self.owner: list[dict[str, int]] = [{} for _ in range(degree)]

    def give(self, name: str, whole: Array) -> None:
        for d in range(self.degree):
            self.held[d][name] = whole[self.at[d]]
            self.owner[d][name] = d

    def play(self, op: Op) -> None:
        if op.kind == HOP:
            (x,), (y,) = op.inputs, op.outputs
            for d in range(self.degree):
                self.held[(d + 1) % self.degree][y] = self.held[d][x]
                self.owner[(d + 1) % self.degree][y] = self.owner[d][x]
            return
        for d in range(self.degree):
            self._play(op, d)

    def _play(self, op: Op, d: int) -> None:
        inputs = [self.held[d][name] for name in op.inputs]
        block = self.owner[d].get(op.inputs[1], d)
        if op.kind == "add":
            assert self.owner[d].get(op.inputs[0], d) == block  # of the same block
            found = [inputs[0] + inputs[1]]
        elif op.kind == "merge-attention":
            y, sums, more, other = inputs
            both = np.logaddexp(sums, other)
            found = [
                y * np.exp(sums - both)[:, None] + more * np.exp(other - both)[:, None],
                both,
            ]
            block = d
        else:
            q, k, v = inputs[:3]
            mask = self.at[d][:, None] >= self.at[block][None, :]
            share = mask.mean()
            assert (share == 0.5) == (
                (OFF_DIAGONAL, 1) in op.attrs
            )  # on every device, in each step
            if op.pass_ is Pass.FORWARD:
                p, sums = softmax_of(q, k, mask)
                found, block = [p @ v, sums], d
            else:
                y, sums, dy = inputs[3:]
                p = np.where(mask, np.exp(q @ k.T / np.sqrt(q.shape[1]) - sums[:, None]), 0.0)
                found = gradients(q, k, v, y, p, dy)
        for name, value in zip(op.outputs, found, strict=True):
            self.held[d][name] = value
            of_query = op.kind == "flash-attention" and name == op.outputs[0]
            self.owner[d][name] = d if of_query else block


def attention_of(degree: int, tokens: int, write: Callable[[str], str]) -> Graph:
    graph = load_model(write(TEXT.format(tokens=tokens))).training(1, "fp32")
    return divide(graph, ShardingSpec(context=degree, ring=degree > 1)).graph


@pytest.mark.parametrize("degree", [2, 3, 4, 8])
def test_a_ring_computes_attention_and_its_gradients(degree: int, tmp_path: Any) -> None:
    tokens = 4 * degree

    def write(text: str) -> str:
        (tmp_path / "tiny.yaml").write_text(text)
        return str(tmp_path / "tiny.yaml")

    graph = attention_of(degree, tokens, write)
    whole = attention_of(1, tokens, write)
    forward, backward = (op for op in whole.ops if op.kind == "flash-attention")
    rng = np.random.default_rng(degree)
    q, k, v, dy = rng.normal(size=(4, tokens, 4))
    devices = Devices(degree, zig_zag(tokens, degree))
    for name, value in zip((*forward.inputs, backward.inputs[-1]), (q, k, v, dy), strict=True):
        devices.give(name, value)
    ring = [op for op in graph.ops if op.layer == forward.layer]
    assert {op.kind for op in ring} == {HOP, "add", "merge-attention", "flash-attention"}
    for op in ring:
        devices.play(op)
    p, sums = softmax_of(q, k, np.tri(tokens, dtype=bool))
    y = p @ v
    query, *keys = backward.outputs
    homes = [f"{name}.reduce-scatter" for name in keys]
    names = (*forward.outputs, query, *homes)
    expected = (y, sums, *gradients(q, k, v, y, p, dy))
    for name, value in zip(names, expected, strict=True):
        for d in range(degree):
            np.testing.assert_allclose(devices.held[d][name], value[devices.at[d]], atol=1e-12)
