"""Ops that are measured, as ridgeline's own graphs have them: what they move, and what they do.

A backend runs an op of the same name and shape; the graph here says what the model prices for it,
so that parameters are fitted to the very terms that they are used with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from ridgeline.kernels.traffic import streamed_bytes
from ridgeline.workload import numerics, ops, optimizers
from ridgeline.workload.autodiff import training_graph
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.graph import Conv, Gemm, Graph, Op, Pass, Role, Tensor

LAYER = "probe"
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Probe:
    """One kind of op outside contractions.

    Attributes
    ----------
    shape
        Of its input, for about so many elements.
    build
        Writes it into a forward graph, after a tensor of that shape.
    """

    shape: Callable[[int], Shape]
    build: Callable[[GraphBuilder, str], str]


def _rows(width: int) -> Callable[[int], Shape]:
    return lambda elements: (max(1, elements // width), width)


def _images(elements: int) -> Shape:
    """Return images of 16 channels, as square as they can be."""
    side = max(2, 2 * round((elements / 64) ** 0.5 / 2))
    return (max(1, elements // (16 * side * side)), 16, side, side)


def _loss(b: GraphBuilder, x: str) -> str:
    return ops.cross_entropy(b, LAYER, x, b.input("classes", b.shape(x)[:1], "int64"))


def _squares(b: GraphBuilder, x: str) -> str:
    return ops.mean_squared_error(b, LAYER, x, b.input("wanted", b.shape(x)))


def _embedding(b: GraphBuilder, x: str) -> str:
    rows, width = b.shape(x)
    indices = b.input("indices", (rows,), "int64")
    table = b.weight("table", (rows, width))
    return ops.add(b, "after", ops.embedding(b, LAYER, indices, table), x)


def _twice(b: GraphBuilder, x: str) -> str:
    return ops.multiply(b, "other", x, x)


PROBES: Mapping[str, Probe] = MappingProxyType(
    {
        "relu": Probe(_rows(64), lambda b, x: ops.relu(b, LAYER, x)),
        "sigmoid": Probe(_rows(64), lambda b, x: ops.activation(b, LAYER, x, "sigmoid")),
        "tanh": Probe(_rows(64), lambda b, x: ops.activation(b, LAYER, x, "tanh")),
        "gelu": Probe(_rows(64), lambda b, x: ops.activation(b, LAYER, x, "gelu")),
        "silu": Probe(_rows(64), lambda b, x: ops.activation(b, LAYER, x, "silu")),
        "add": Probe(_rows(64), lambda b, x: ops.add(b, LAYER, x, _twice(b, x))),
        "multiply": Probe(_rows(64), lambda b, x: ops.multiply(b, LAYER, x, _twice(b, x))),
        "dropout": Probe(_rows(64), lambda b, x: ops.dropout(b, LAYER, x, 0.1)),
        "softmax": Probe(_rows(64), lambda b, x: ops.softmax(b, LAYER, x)),
        "layer-norm": Probe(_rows(64), lambda b, x: ops.layer_norm(b, LAYER, x)),
        "batch-norm": Probe(_images, lambda b, x: ops.batch_norm(b, LAYER, x)),
        "max-pool": Probe(_images, lambda b, x: ops.max_pool(b, LAYER, x, 2, stride=2)),
        "avg-pool": Probe(_images, lambda b, x: ops.avg_pool(b, LAYER, x, 2, stride=2)),
        "adaptive-avg-pool": Probe(_images, lambda b, x: ops.adaptive_avg_pool(b, LAYER, x, 1)),
        "bias": Probe(_rows(64), lambda b, x: ops.add_bias(b, LAYER, _twice(b, x), axis=-1)),
        "concat": Probe(_rows(64), lambda b, x: ops.concat(b, LAYER, [x, _twice(b, x)], axis=-1)),
        "embedding": Probe(_rows(64), _embedding),
        "loss": Probe(_rows(16), _loss),
        "mse-loss": Probe(_rows(64), _squares),
    }
)
"""By the name that backends know them by."""


@dataclass(frozen=True)
class ProbeWork:
    """What the model prices: equal ops, and the graph that they are part of."""

    op: Op
    graph: Graph
    more: tuple[Op, ...] = ()

    @property
    def count(self) -> int:
        """Number of the ops."""
        return 1 + len(self.more)

    @property
    def bytes(self) -> int:
        """Bytes that they stream."""
        return sum(streamed_bytes(op, self.graph) for op in (self.op, *self.more))


def _training(name: str, shape: Shape, build: Callable[[GraphBuilder, str], str]) -> Graph:
    b = GraphBuilder(name, shape[0], numerics.find("fp32"))
    axis = 1 if len(shape) > 2 else -1
    x = ops.add_bias(b, "before", ops.add(b, "sum", b.input("x", shape), b.input("x2", shape)),
                     axis=axis)  # fmt: skip
    y = build(b, x)
    loss = y if not b.shape(y) else _after(b, y)
    return training_graph(b.graph(loss), optimizers.find("sgd"))


def _after(b: GraphBuilder, y: str) -> str:
    return ops.mean_squared_error(b, "end", y, b.input("targets", b.shape(y)))


@cache
def stream_work(name: str, elements: int) -> Mapping[str, ProbeWork]:
    """Return the ops of a probe by pass, where the pass is of one kind of op."""
    probe = PROBES[name]
    graph = _training(name, probe.shape(elements), probe.build)
    return _by_pass(graph)


def _by_pass(graph: Graph) -> dict[str, ProbeWork]:
    found: dict[str, list[Op]] = {}
    for op in graph.ops:
        if op.layer == LAYER and op.pass_ is not Pass.UPDATE and op.kind != "fill":
            found.setdefault(op.pass_.value, []).append(op)
    return {
        pass_: ProbeWork(made[0], graph, tuple(made[1:]))
        for pass_, made in found.items()
        if len({op.kind for op in made}) == 1
    }


def update_work(rule: str, elements: int) -> ProbeWork:
    """Return the update of a weight tensor."""
    b = GraphBuilder("update", 1, numerics.find("fp32"))
    x = ops.add_bias(b, LAYER, b.input("x", (1, elements)), axis=-1)
    graph = training_graph(b.graph(_after(b, x)), optimizers.find(rule))
    return ProbeWork(graph.ops[-1], graph)


def recurrent_work(cell: str, batch: int, hidden: int, steps: int) -> Graph:
    """Return the training graph of one recurrent layer, whose inputs need a gradient."""
    b = GraphBuilder("recurrent", batch, numerics.find("fp32"))
    shape = (batch, steps, hidden)
    x = ops.add_bias(b, "before", b.input("x", shape), axis=-1)
    y = ops.recurrent(b, LAYER, x, hidden, "gru" if cell == "gru" else "lstm")
    return training_graph(b.graph(_after(b, y)), optimizers.find("sgd"))


def product_work(gemm: Gemm, pass_: str, format_: str) -> ProbeWork:
    """Return a product, or a batch of them."""
    lead = (gemm.batch,) if gemm.batch > 1 else ()
    shapes = {
        "a": (*lead, gemm.m, gemm.k),
        "b": (*lead, gemm.k, gemm.n),
        "c": (*lead, gemm.m, gemm.n),
    }
    return _contraction("gemm", gemm, shapes, pass_, format_)


def conv_work(conv: Conv, pass_: str, format_: str) -> ProbeWork:
    """Return one pass over a convolution."""
    x = (conv.batch, conv.c_in, conv.h_in, conv.w_in)
    w = (conv.c_out, conv.c_in // conv.groups, conv.r, conv.s)
    y = (conv.batch, conv.c_out, conv.h_out, conv.w_out)
    operands = {"forward": (x, w, y), "input-gradient": (y, w, x), "weight-gradient": (y, x, w)}
    return _contraction(
        "conv2d", conv, dict(zip("abc", operands[pass_], strict=True)), pass_, format_
    )


def _contraction(
    kind: str, loops: Gemm | Conv, shapes: Mapping[str, Shape], pass_: str, format_: str
) -> ProbeWork:
    op = Op(kind, kind, Pass(pass_), "", ("a", "b"), ("c",), loops=loops)
    tensors = {
        name: Tensor(name, shape, format_, Role.ACTIVATION) for name, shape in shapes.items()
    }
    return ProbeWork(op, Graph(kind, 1, format_, tensors, (op,), "c"))
