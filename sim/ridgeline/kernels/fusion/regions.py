"""Fused regions: which rows of its inputs each op of a graph needs for some rows of its output.

A tensor is cut along one axis: the rows of an image, the tokens of a sequence. Convolutions and
pools need a window of rows, what works element by element or on one row needs that row, attention
needs all rows of keys and values. Weights are needed whole.

In training, the input gradient of a convolution of stride 1 needs the window turned round. A weight
gradient is a sum over all rows: it makes no rows, it takes those of the output's gradient as they
are made, and the rows of the input behind them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline.workload.graph import Conv, Gemm, Graph, Op, Pass, Role, Tensor
from ridgeline.workload.liveness import STATIC_ROLES

Rows = NDArray[np.int64]
"""Rows of a tensor, by step."""


class RowWindow(NamedTuple):
    """Rows of an input behind one row of the output; a stride of 0: the same for every row."""

    size: int = 1
    stride: int = 1
    padding: int = 0

    def first(self, row: Rows, rows: int) -> Rows:
        """Return the first row, of so many, that output rows read."""
        found: Rows = np.minimum(np.maximum(row * self.stride - self.padding, 0), rows)
        return found

    def end(self, row: Rows, rows: int) -> Rows:
        """Return the end of the rows that output rows before these read."""
        end = (row - 1) * self.stride - self.padding + self.size
        found: Rows = np.minimum(np.maximum(end, 0), rows) * (row > 0)
        return found


class RowTensor(NamedTuple):
    """A tensor that is cut into rows.

    Attributes
    ----------
    rows
        Of one sample.
    row_bytes
        Of one row of one sample.
    producer
        Place of the op of the region that writes it; -1: it comes from outside.
    leaves
        Whether something outside the region reads it.
    beside_bytes
        Of a row of what its op writes besides, for ops outside: masks, statistics of rows.
    """

    name: str
    rows: int
    row_bytes: float
    producer: int
    leaves: bool
    beside_bytes: float = 0.0


class RowRead(NamedTuple):
    """That an op reads a tensor of the region: its place among them, and the window."""

    tensor: int
    window: RowWindow


class RowOp(NamedTuple):
    """An op of a region: the tensors that it reads and the one that it writes, and its weights.

    Attributes
    ----------
    sum_bytes
        Of sums over all rows that it adds to: gradients of weights.
    follows
        The tensor whose rows it takes as they are made, of an op that makes nothing but sums; what
        it writes are rows without bytes. -1: it makes the rows that others need.
    """

    reads: tuple[RowRead, ...]
    writes: int
    weight_bytes: float = 0.0
    sum_bytes: float = 0.0
    follows: int = -1


@dataclass(frozen=True)
class FusedRegion:
    """Ops in an order in which they can run; the last one that makes rows waits for all others."""

    ops: tuple[RowOp, ...]
    tensors: tuple[RowTensor, ...]

    @property
    def last(self) -> int:
        """The tensor that the last op makes rows of."""
        return next(op.writes for op in reversed(self.ops) if op.follows < 0)

    @property
    def rows(self) -> int:
        """Rows of the last op's output."""
        return self.tensors[self.last].rows

    @property
    def sum_bytes(self) -> float:
        """Bytes of sums over all rows."""
        return math.fsum(op.sum_bytes for op in self.ops)

    @property
    def consumers(self) -> list[list[tuple[int, RowWindow]]]:
        """By tensor: the ops that read it, and through which window."""
        found: list[list[tuple[int, RowWindow]]] = [[] for _ in self.tensors]
        for place, op in enumerate(self.ops):
            for read in op.reads:
                found[read.tensor].append((place, read.window))
        return found


BY_ELEMENT = frozenset(
    {
        "add", "bias", "cast", "dropout", "frozen-batch-norm", "gelu", "hard-sigmoid", "hard-swish",
        "leaky-relu", "multiply", "relu", "relu6", "rotary", "sigmoid", "silu", "swiglu", "tanh",
    }
)  # fmt: skip
"""Kinds of ops that need for an element of their output the same element of their inputs."""
_BY_TOKEN = frozenset({"layer-norm", "rms-norm", "softmax"})
"""Kinds that need the same row of a sequence."""
_POOLS = frozenset({"max-pool", "avg-pool"})
_PRODUCTS = frozenset({"gemm", "attention-scores", "attention-context", "flash-attention"})
_IMAGE, _SEQUENCE = 4, 3


def rows_of(shape: Sequence[int]) -> int:
    """Return the rows of one sample: of an image, of a sequence, else 1."""
    if len(shape) == _IMAGE:
        return shape[2]
    return shape[1] if len(shape) == _SEQUENCE else 1


def makes_sums(op: Op) -> bool:
    """Tell whether an op makes nothing but sums over all rows."""
    return op.pass_ is Pass.WEIGHT_GRADIENT


def by_rows_of(op: Op, graph: Graph) -> Tensor:
    """Return the tensor whose rows an op makes; of one that makes sums, whose rows it takes."""
    return graph.tensors[op.inputs[0] if makes_sums(op) else op.outputs[0]]


def windows(op: Op, graph: Graph) -> tuple[RowWindow | None, ...] | None:
    """Return the window of each input of an op; None: the input is needed whole for every sample.

    None altogether: the op cannot be cut into rows.
    """
    if op.pass_ not in _CUT or (makes_sums(op) and not op.inputs):
        return None
    out = by_rows_of(op, graph)
    written = [out, *(graph.tensors[name] for name in rows_written(op, graph))]
    if any(not _has_rows(tensor, graph) for tensor in written):
        return None
    if op.kind not in _BY_TOKEN and any(n != 1 for n in (*op.input_passes, *op.output_passes)):
        return None  # statistics over all rows, or a part of a table
    found: list[RowWindow | None] = []
    for place, name in enumerate(op.inputs):
        tensor = graph.tensors[name]
        if tensor.role in WHOLE:
            found.append(None)
            continue
        window = None
        if _has_rows(tensor, graph):
            window = _window(op, place, tensor.shape, out.shape, graph)
        if window is None:
            return None
        found.append(window)
    return tuple(found)


def _has_rows(tensor: Tensor, graph: Graph) -> bool:
    return tensor.shape[:1] == (graph.batch,) and tensor.role not in WHOLE | {Role.HOST}


def rows_written(op: Op, graph: Graph) -> list[str]:
    """Name the outputs of an op that have rows; the others are sums over all rows."""
    return [name for name in op.outputs if graph.tensors[name].role not in WHOLE]


def sum_bytes(op: Op, graph: Graph) -> float:
    """Return the bytes of an op's outputs that are sums over all rows."""
    rows = rows_written(op, graph)
    return float(sum(graph.tensors[name].bytes for name in op.outputs if name not in rows))


_CUT = frozenset({Pass.FORWARD, Pass.INPUT_GRADIENT, Pass.WEIGHT_GRADIENT})
WHOLE = STATIC_ROLES | {Role.WEIGHT_GRADIENT}
"""Roles of tensors that have no rows."""


def _window(
    op: Op, place: int, shape: tuple[int, ...], out: tuple[int, ...], graph: Graph
) -> RowWindow | None:
    if op.loops is not None and place > 1 and op.kind != "flash-attention":  # of an epilogue
        return RowWindow() if shape == out else None
    if isinstance(op.loops, Conv):
        return _of_convolution(op, op.loops, place)
    if isinstance(op.loops, Gemm):
        return _of_product(op, op.loops, place, (shape, out), graph)
    if op.pass_ is Pass.FORWARD:
        return _of_vector_op(op, shape, out)
    return _of_vector_gradient(op, shape, out)


def _of_convolution(op: Op, loops: Conv, place: int) -> RowWindow | None:
    if op.kind != "conv2d" or loops.taps != 1:
        return None
    extent = loops.dilation[0] * (loops.r - 1) + 1
    found = RowWindow(extent, loops.stride[0], loops.padding[0])
    if op.pass_ is Pass.WEIGHT_GRADIENT:
        return (RowWindow(), found)[place]
    if op.pass_ is Pass.INPUT_GRADIENT:
        padding = extent - 1 - loops.padding[0]
        return RowWindow(extent, 1, padding) if loops.stride[0] == 1 and padding >= 0 else None
    return found if place == 0 else None


def _of_product(
    op: Op, loops: Gemm, place: int, shapes: tuple[tuple[int, ...], tuple[int, ...]], graph: Graph
) -> RowWindow | None:
    rows, of_out = map(rows_of, shapes)
    if op.kind not in _PRODUCTS or op.sequential or op.launched or "columns" in dict(op.attrs):
        return None
    if op.pass_ is not Pass.FORWARD and op.kind != "gemm":
        return None
    if makes_sums(op):
        summed = (loops.batch, loops.k) == (1, graph.batch * of_out)
        return RowWindow() if summed and rows == of_out else None
    return _of_rows(op, loops, place, (rows, of_out), graph)


def _of_rows(
    op: Op, loops: Gemm, place: int, rows: tuple[int, int], graph: Graph
) -> RowWindow | None:
    """Return the window of an operand with some rows, of a product with some rows of results."""
    own_rows, of_out = rows
    own, total = loops.m, loops.m * loops.batch
    if (total if op.kind == "gemm" else own * graph.batch) != graph.batch * of_out:
        return None
    if op.kind == "gemm" and loops.batch not in (1, graph.batch):
        return None
    every = RowWindow(own_rows, 0, 0)
    if place == 1 or (place == 2 and op.kind == "flash-attention"):
        return every if op.kind != "gemm" else None
    return RowWindow() if own_rows == of_out else every


def _of_vector_gradient(op: Op, shape: tuple[int, ...], out: tuple[int, ...]) -> RowWindow | None:
    """Return the window of an op of the backward pass that is no contraction.

    Statistics of rows are small: they are there for all of a sample.
    """
    if op.kind not in BY_ELEMENT | _BY_TOKEN or (op.kind in _BY_TOKEN and len(out) < _SEQUENCE):
        return None
    if shape == out:
        return RowWindow()
    statistics = op.kind in _BY_TOKEN and shape == out[:-1]
    return RowWindow(rows_of(shape), 0, 0) if statistics else None


def _of_vector_op(op: Op, shape: tuple[int, ...], out: tuple[int, ...]) -> RowWindow | None:
    attrs = dict(op.attrs)
    found: RowWindow | None = None
    if op.kind == "adaptive-avg-pool" and (shape == out or rows_of(out) == 1):
        found = RowWindow() if shape == out else RowWindow(rows_of(shape), 0, 0)
    elif op.kind == "concat" and len(out) == _IMAGE and attrs.get("axis") == 1:
        found = RowWindow()
    elif op.kind in _POOLS and "kernel_h" in attrs:
        found = RowWindow(*(int(attrs[f"{x}_h"]) for x in ("kernel", "stride", "padding")))
    elif op.kind in BY_ELEMENT or (op.kind in _BY_TOKEN and len(out) >= _SEQUENCE):
        same = shape == out and (op.kind in BY_ELEMENT | {"softmax"} or len(out) == _SEQUENCE)
        found = RowWindow() if same else None
    return found


def region_of(ops: Sequence[Op], graph: Graph, leaving: frozenset[str]) -> FusedRegion | None:
    """Return ops that follow each other in a graph as a region; None if they cannot be fused.

    Parameters
    ----------
    leaving
        Names of the tensors that something outside reads.
    """
    tensors: list[RowTensor] = []
    place_of: dict[str, int] = {}
    row_ops = []

    def add(name: str, producer: int, beside: float = 0.0) -> int:
        tensor = graph.tensors[name]
        rows = rows_of(tensor.shape)
        row_bytes = tensor.bytes / (graph.batch * rows)
        beside_bytes = beside / (graph.batch * rows)
        tensors.append(RowTensor(name, rows, row_bytes, producer, name in leaving, beside_bytes))
        place_of[name] = len(tensors) - 1
        return place_of[name]

    def written(op: Op, place: int, weights: float) -> tuple[int, float, float, int]:
        names = rows_written(op, graph)
        sums = sum_bytes(op, graph)
        if names:
            beside = math.fsum(graph.tensors[name].bytes for name in names[1:])
            return add(names[0], place, beside), weights, sums, -1
        rows = rows_of(by_rows_of(op, graph).shape)
        tensors.append(RowTensor(op.outputs[0], rows, 0.0, place, leaves=False))
        return len(tensors) - 1, weights, sums, place_of[op.inputs[0]]

    beside: set[str] = set()  # what leaves the group before anything in it could read it
    for place, op in enumerate(ops):
        found = windows(op, graph)
        if found is None or not beside.isdisjoint(op.inputs):
            return None
        beside |= {*op.outputs} - {*rows_written(op, graph)[:1]}
        reads, weights = [], 0.0
        for name, window in zip(op.inputs, found, strict=True):
            if window is None:
                weights += graph.tensors[name].bytes
            else:
                at = place_of[name] if name in place_of else add(name, -1)
                reads.append(RowRead(at, window))
        row_ops.append(RowOp(tuple(reads), *written(op, place, weights)))
    region = FusedRegion(tuple(row_ops), tuple(tensors))
    return region if _is_one(region) else None


def _is_one(region: FusedRegion) -> bool:
    """Tell whether the last op that makes rows waits for all others, and sums can follow theirs."""
    makers = [op for op in region.ops if op.follows < 0]
    if not makers:
        return False
    consumers = [[region.ops[at].follows < 0 for at, _ in of] for of in region.consumers]
    if any(not any(consumers[op.writes]) for op in makers[:-1]) or any(consumers[region.last]):
        return False
    for op in region.ops:
        if op.follows >= 0:
            if op.follows != region.last and not any(consumers[op.follows]):
                return False
            others = (read.tensor for read in op.reads if read.tensor != op.follows)
            if any(region.tensors[tensor].producer >= 0 for tensor in others):
                return False
    return True
