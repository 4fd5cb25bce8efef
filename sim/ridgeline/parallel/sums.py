"""Sums of gradients over micro-batches: who adds to them, and what that moves.

A framework adds a gradient to a sum of a wider format in one kernel, which reads both and writes
the sum. A library whose products can read what they write (cuBLAS: C = A B + C) adds in the product
itself: the sum is read and written instead of the gradient (Megatron-LM, "gradient accumulation
fusion").

The formats differ because weights are computed with in 16 bits and updated in 32. Casts of the
gradients belong to the backward pass (torch.amp; Megatron-LM's main gradients), or to the update:
apex O2 and DeepSpeed's fp16 sum and send what the products give (`with_narrow_gradients`).
DeepSpeed's bf16 sums in 32 bits and gives gradients in 16 bits back only before the next backward
pass (runtime/bf16_optimizer.py and runtime/pipe/engine.py): it holds both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from ridgeline.workload.autodiff import weight_gradients
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


def narrow_gradients(graph: Graph) -> frozenset[str]:
    """Name the gradients that the backward pass casts to the format of the sum."""
    handed = frozenset(weight_gradients(graph).values())
    return frozenset(
        op.inputs[0]
        for op in graph.ops
        if op.pass_ is Pass.WEIGHT_GRADIENT and casts(op) and op.outputs[0] in handed
    )


@lru_cache(maxsize=16)
def with_narrow_gradients(same: Same) -> Graph:
    """Let updates begin with casting gradients, which have the format of the passes until then.

    All are cast before the first weight is updated, as clipping needs the norm of all. What the
    backward pass goes on to add to, as to the gradient of a shared weight, stays wide.
    """
    graph = same.graph
    narrow = narrow_gradients(graph)
    late = [op for op in graph.ops if casts(op) and op.inputs[0] in narrow]
    rest = [op for op in graph.ops if not (casts(op) and op.inputs[0] in narrow)]
    first = next((i for i, op in enumerate(rest) if op.pass_ is Pass.UPDATE), len(rest))
    casting = [replace(op, pass_=Pass.UPDATE) for op in late]
    return replace(graph, ops=(*rest[:first], *casting, *rest[first:]))


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
