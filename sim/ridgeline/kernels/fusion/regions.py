"""Fused regions: which rows of its inputs each op of a graph needs for some rows of its output.

A tensor is cut along one axis: the rows of an image, the tokens of a sequence. Convolutions and
pools need a window of rows, what works element by element or on one row needs that row, attention
needs all rows of keys and values. Weights are needed whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline.workload.graph import Conv, Gemm, Graph, Op, Pass, Role
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
        return np.clip(row * self.stride - self.padding, 0, rows)

    def end(self, row: Rows, rows: int) -> Rows:
        """Return the end of the rows that output rows before these read."""
        end = np.clip((row - 1) * self.stride - self.padding + self.size, 0, rows)
        return np.where(row > 0, end, 0)


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
    """

    name: str
    rows: int
    row_bytes: float
    producer: int
    leaves: bool


class RowRead(NamedTuple):
    """That an op reads a tensor of the region: its place among them, and the window."""

    tensor: int
    window: RowWindow


class RowOp(NamedTuple):
    """An op of a region: the tensors that it reads and the one that it writes, and its weights."""

    reads: tuple[RowRead, ...]
    writes: int
    weight_bytes: float = 0.0


@dataclass(frozen=True)
class FusedRegion:
    """Ops in an order in which they can run, the last of which waits for all others."""

    ops: tuple[RowOp, ...]
    tensors: tuple[RowTensor, ...]

    @property
    def rows(self) -> int:
        """Rows of the last op's output."""
        return self.tensors[self.ops[-1].writes].rows

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
        "add", "bias", "cast", "frozen-batch-norm", "gelu", "hard-sigmoid", "hard-swish",
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


def windows(op: Op, graph: Graph) -> tuple[RowWindow | None, ...] | None:
    """Return the window of each input of an op; None: the input is needed whole for every sample.

    None altogether: the op cannot be cut into rows.
    """
    tensors, batch = graph.tensors, graph.batch
    out = tensors[op.outputs[0]]
    if op.pass_ is not Pass.FORWARD or len(op.outputs) > 1 or out.shape[:1] != (batch,):
        return None
    if any(passes != 1 for passes in (*op.input_passes, *op.output_passes)):
        return None  # statistics over all rows, or a part of a table
    found: list[RowWindow | None] = []
    for place, name in enumerate(op.inputs):
        tensor = tensors[name]
        if tensor.role in STATIC_ROLES:
            found.append(None)
            continue
        if tensor.shape[:1] != (batch,) or tensor.role is Role.HOST:
            return None
        window = _window(op, place, tensor.shape, out.shape, graph)
        if window is None:
            return None
        found.append(window)
    return tuple(found)


def _window(
    op: Op, place: int, shape: tuple[int, ...], out: tuple[int, ...], graph: Graph
) -> RowWindow | None:
    if op.loops is not None and place > 1 and op.kind != "flash-attention":  # of an epilogue
        return RowWindow() if shape == out else None
    if isinstance(op.loops, Conv):
        return _of_convolution(op, op.loops) if place == 0 else None
    if isinstance(op.loops, Gemm):
        return _of_product(op, op.loops, place, (shape, out), graph)
    return _of_vector_op(op, shape, out)


def _of_convolution(op: Op, loops: Conv) -> RowWindow | None:
    if op.kind != "conv2d" or loops.taps != 1:
        return None
    extent = loops.dilation[0] * (loops.r - 1) + 1
    return RowWindow(extent, loops.stride[0], loops.padding[0])


def _of_product(
    op: Op, loops: Gemm, place: int, shapes: tuple[tuple[int, ...], tuple[int, ...]], graph: Graph
) -> RowWindow | None:
    rows, of_out = map(rows_of, shapes)
    if op.kind not in _PRODUCTS or op.sequential or op.launched or "columns" in dict(op.attrs):
        return None
    own, total = loops.m, loops.m * loops.batch
    if (total if op.kind == "gemm" else own * graph.batch) != graph.batch * of_out:
        return None
    if op.kind == "gemm" and loops.batch not in (1, graph.batch):
        return None
    every = RowWindow(rows, 0, 0)
    if place == 1 or (place == 2 and op.kind == "flash-attention"):
        return every if op.kind != "gemm" else None
    return RowWindow() if rows == of_out else every


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

    def add(name: str, producer: int) -> int:
        tensor = graph.tensors[name]
        rows = rows_of(tensor.shape)
        row_bytes = tensor.bytes / (graph.batch * rows)
        tensors.append(RowTensor(name, rows, row_bytes, producer, name in leaving))
        place_of[name] = len(tensors) - 1
        return place_of[name]

    for place, op in enumerate(ops):
        found = windows(op, graph)
        if found is None:
            return None
        reads, weights = [], 0.0
        for name, window in zip(op.inputs, found, strict=True):
            if window is None:
                weights += graph.tensors[name].bytes
            else:
                at = place_of[name] if name in place_of else add(name, -1)
                reads.append(RowRead(at, window))
        row_ops.append(RowOp(tuple(reads), add(op.outputs[0], place), weights))
    region = FusedRegion(tuple(row_ops), tuple(tensors))
    last = len(ops) - 1
    ends = {t.producer for t, of in zip(tensors, region.consumers, strict=True) if not of}
    return region if ends == {last} else None
