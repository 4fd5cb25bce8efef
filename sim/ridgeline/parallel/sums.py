"""Sums of gradients over micro-batches: who adds to them, and what that moves.

A framework adds a gradient to a sum of a wider format in one kernel, which reads both and writes
the sum. A library whose products can read what they write (cuBLAS: C = A B + C) adds in the product
itself: the sum is read and written instead of the gradient (Megatron-LM, "gradient accumulation
fusion").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from ridgeline.workload.graph import Graph, Op, Pass, Same

_READ_AND_WRITTEN = (2,)


def casts(op: Op) -> bool:
    """Whether all that an op does with a gradient is to cast it to the format of the sum."""
    return op.kind == "cast"


def adds(op: Op) -> bool:
    """Whether a product adds to the sum by itself (`with_summing_products`)."""
    of_weights = op.pass_ is Pass.WEIGHT_GRADIENT and op.loops is not None
    return of_weights and op.output_passes == _READ_AND_WRITTEN


def sum_bytes(op: Op, graph: Graph, sums: Sequence[str]) -> float:
    """Return the bytes that adding an op's gradients to their sums moves.

    Both are read, the sums written; what an op only casts is added as it is, instead of the cast.
    """
    added = op.inputs if casts(op) else sums
    return float(sum(graph.tensors[name].bytes for name in (*added, *sums, *sums)))


@lru_cache(maxsize=16)
def with_summing_products(same: Same) -> Graph:
    """Let products of weight gradients make them in the format of the sum, and add to it."""
    graph = same.graph
    read = Counter(name for op in graph.ops for name in op.inputs)
    products = {
        op.outputs[0]: op
        for op in graph.ops
        if op.pass_ is Pass.WEIGHT_GRADIENT and op.loops is not None and len(op.outputs) == 1
    }
    instead = {
        id(products[op.inputs[0]]): op
        for op in graph.ops
        if casts(op) and op.inputs[0] in products and read[op.inputs[0]] == 1
    }
    gone = {id(cast) for cast in instead.values()}
    ops = [
        replace(op, outputs=instead[id(op)].outputs, output_passes=_READ_AND_WRITTEN)
        if id(op) in instead
        else op
        for op in graph.ops
        if id(op) not in gone
    ]
    held = {name for op in ops for name in (*op.inputs, *op.outputs)}
    tensors = {name: tensor for name, tensor in graph.tensors.items() if name in held}
    return replace(graph, ops=tuple(ops), tensors=tensors)
