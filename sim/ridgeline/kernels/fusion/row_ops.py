"""An op on some rows of one sample: the piece of it that one step of a fused region does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ridgeline.kernels.fusion.regions import (
    RowWindow,
    by_rows_of,
    makes_sums,
    rows_of,
    rows_written,
)
from ridgeline.workload.graph import Conv, Gemm, Graph, Op, Tensor

_IMAGE, _SEQUENCE = 4, 3


def on_rows(
    op: Op, graph: Graph, windows: Sequence[RowWindow | None], rows: int
) -> tuple[Op, Graph]:
    """Return an op on so many rows of its output, of one sample, and a graph with its operands.

    An op that makes sums is on so many rows of its first input.

    Rows of padding are read like others: a piece at the border counts what one inside does.

    Parameters
    ----------
    windows
        Of each input (`regions.windows`).
    """
    whole = rows_of(by_rows_of(op, graph).shape)
    tensors = {name: graph.tensors[name] for name in op.outputs}
    tensors |= {name: _cut(tensors[name], rows) for name in rows_written(op, graph)}
    for name, window in zip(op.inputs, windows, strict=True):
        tensor = graph.tensors[name]
        if window is not None:
            every = rows_of(tensor.shape)
            reach = (rows - 1) * window.stride + window.size
            tensors[name] = _cut(tensor, every if window.stride == 0 else min(every, reach))
        else:
            tensors[name] = tensor
    share = rows / (whole * graph.batch)
    piece = replace(
        op,
        loops=_loops(op, graph, windows, rows),
        vector_flops=math.ceil(op.vector_flops * share),
        recomputed_flops=0,
    )
    return piece, replace(graph, batch=1, tensors=tensors, ops=(piece,), loss=op.outputs[0])


def _cut(tensor: Tensor, rows: int) -> Tensor:
    shape = [1, *tensor.shape[1:]]
    if len(shape) == _IMAGE:
        shape[2] = rows
    elif len(shape) == _SEQUENCE:
        shape[1] = rows
    return tensor.reshaped(tuple(shape))


def _loops(
    op: Op, graph: Graph, windows: Sequence[RowWindow | None], rows: int
) -> Gemm | Conv | None:
    loops = op.loops
    if isinstance(loops, Conv):
        window = windows[1] if makes_sums(op) else windows[0]
        assert window is not None
        height = (rows - 1) * window.stride + window.size
        return replace(loops, batch=1, h_in=height, padding=(0, loops.padding[1]))
    if isinstance(loops, Gemm):
        if makes_sums(op):
            return Gemm(loops.m, loops.n, rows)
        whole = rows_of(graph.tensors[op.outputs[0]].shape)
        if op.kind == "gemm":
            return Gemm(rows, loops.n, loops.k)
        return Gemm(rows * (loops.m // whole), loops.n, loops.k, loops.batch // graph.batch)
    return None
