"""Random small networks, valid by construction: chains with branches that meet again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.graph import Graph
from ridgeline.workload.numerics import PRECISIONS

MOVES = ["conv", "bn", "relu", "tanh", "sigmoid", "max", "avg", "adaptive", "dropout", "add"]


Draw = Callable[[st.SearchStrategy[Any]], Any]


@st.composite
def forward_graphs(draw: st.DrawFn) -> Graph:
    """A convolutional network in any precision, for two or three images."""
    return _network(draw, draw(st.integers(2, 3)), draw(st.sampled_from(sorted(PRECISIONS))))


@st.composite
def forward_pairs(draw: st.DrawFn) -> tuple[Graph, Graph]:
    """One network in fp32, for a mini-batch and for one three times as large."""
    tape: list[Any] = []

    def record(strategy: st.SearchStrategy[Any]) -> Any:
        tape.append(draw(strategy))
        return tape[-1]

    small = _network(record, 2, "fp32")
    replay = iter(tape)
    return small, _network(lambda _: next(replay), 6, "fp32")


def _network(draw: Draw, batch: int, precision: str) -> Graph:
    b = GraphBuilder("random", batch, PRECISIONS[precision])
    side = st.integers(4, 7)
    x = b.input("images", (batch, draw(st.integers(1, 3)), draw(side), draw(side)))
    labels = b.input("labels", (batch,), "int64")
    seen: list[str] = []
    for i in range(draw(st.integers(1, 8))):
        x = _move(draw, b, f"{draw(st.sampled_from(MOVES))}{i}", x, seen)
        seen.append(x)
    logits = ops.linear(b, "fc", x, draw(st.integers(2, 3)), bias=draw(st.booleans()), flatten=True)
    return b.graph(ops.cross_entropy(b, "loss", logits, labels))


def _move(draw: Draw, b: GraphBuilder, name: str, x: str, seen: list[str]) -> str:
    kind = name.rstrip("0123456789")
    _, channels, h, w = b.shape(x)
    if kind == "conv":
        groups = draw(st.sampled_from([g for g in (1, 2) if channels % g == 0]))
        y = ops.conv2d(
            b,
            name,
            x,
            groups * draw(st.integers(1, 2)),
            (draw(st.integers(1, min(3, h))), draw(st.integers(1, min(3, w)))),
            stride=draw(st.integers(1, 2)),
            padding=draw(st.integers(0, 1)),
            groups=groups,
            bias=draw(st.booleans()),
        )
    elif kind == "bn":
        y = ops.batch_norm(b, name, x)
    elif kind == "dropout":
        y = ops.dropout(b, name, x, draw(st.sampled_from([0.0, 0.25, 0.5])))
    elif kind == "adaptive":
        size = (draw(st.integers(1, h)), draw(st.integers(1, w)))
        y = ops.adaptive_avg_pool(b, name, x, size)
    elif kind in {"max", "avg"}:
        kernel = draw(st.integers(1, min(3, h, w)))
        y = (ops.max_pool if kind == "max" else ops.avg_pool)(
            b,
            name,
            x,
            kernel,
            stride=draw(st.sampled_from([None, 1, 2])),
            padding=draw(st.integers(0, kernel // 2)),
            ceil_mode=draw(st.booleans()),
        )
    elif kind == "add":
        fitting = [z for z in seen if b.shape(z) == b.shape(x)]
        y = ops.add(b, name, x, draw(st.sampled_from(fitting))) if fitting else x
    else:
        y = ops.activation(b, name, x, kind)
    return y
