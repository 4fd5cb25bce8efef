"""Gradient accumulation over micro-batches: which ops add, and the bytes that it moves.

A framework adds a gradient to a sum of a wider format in one kernel, which reads both and writes
the sum. A library whose products can read what they write (cuBLAS: C = A B + C) adds in the product
itself: the sum is read and written instead of the gradient (Megatron-LM, "gradient accumulation
fusion").

The formats differ because weights are computed with in 16 bits and updated in 32. Casts of the
gradients belong to the backward pass (torch.amp; Megatron-LM's main gradients), or to the update:
apex O2 sums and sends what the products give (`with_narrow_gradients`), DeepSpeed's fp16 as well,
with copies of them (`with_flat_gradients`).
DeepSpeed's bf16 sums in 32 bits and gives gradients in 16 bits back only before the next backward
pass (runtime/bf16_optimizer.py and runtime/pipe/engine.py): it holds both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ridgeline.workload.autodiff import weight_gradients
from ridgeline.workload.graph import Graph, Op, Pass

_READ_AND_WRITTEN = (2,)
_COLLECTED, _FLAT = ".collected", ".flat"
_BUCKET = 500_000_000
"""Elements of DeepSpeed's bucket (zero/constants.py, ZERO_OPTIMIZATION_REDUCE_BUCKET_SIZE_DEFAULT),
which a pipeline makes before it reduces and frees behind it (stage_1_and_2.py,
reduce_gradients, _release_ipg_buffers)."""


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


def with_gradients(graph: Graph, how: str) -> Graph:
    """Sum gradients as a plan says (`Plan.gradients`)."""
    if how == "narrow":
        return with_narrow_gradients(graph)
    return with_flat_gradients(graph) if how == "flat" else graph


def lasting(how: str) -> bool:
    """Whether sums of gradients have buffers of their own from one step to the next."""
    return how in {"wide", "both"}


def with_narrow_gradients(graph: Graph) -> Graph:
    """Let updates begin with casting gradients, which have the format of the passes until then.

    All are cast before the first weight is updated, as clipping needs the norm of all. What the
    backward pass goes on to add to, as to the gradient of a shared weight, stays wide.
    """
    narrow = narrow_gradients(graph)
    late = [op for op in graph.ops if casts(op) and op.inputs[0] in narrow]
    rest = [op for op in graph.ops if not (casts(op) and op.inputs[0] in narrow)]
    first = next((i for i, op in enumerate(rest) if op.pass_ is Pass.UPDATE), len(rest))
    casting = [replace(op, pass_=Pass.UPDATE) for op in late]
    return replace(graph, ops=(*rest[:first], *casting, *rest[first:]))


def with_flat_gradients(graph: Graph) -> Graph:
    """Copy narrow gradients twice before they are cast.

    DeepSpeed's ZeRO collects the reduced gradients of a rank's part in one buffer, flattens what
    lies there into another, and casts that (runtime/zero/stage_1_and_2.py: copy_grads_in_partition
    and step): `copied` says how long each is there.
    """
    graph = with_narrow_gradients(graph)
    casting = [op for op in graph.ops if op.pass_ is Pass.UPDATE and casts(op)]
    if not casting:
        return graph
    tensors, copies = dict(graph.tensors), list[Op]()
    for before, behind in (("", _COLLECTED), (_COLLECTED, _FLAT)):
        for cast in casting:
            name = cast.inputs[0]
            made = replace(tensors[name], name=f"{name}{behind}")
            tensors[made.name] = made
            copies.append(
                replace(cast, name=made.name, inputs=(f"{name}{before}",), outputs=(made.name,))
            )
    flat = {
        op.name: replace(op, inputs=(f"{op.inputs[0]}{_FLAT}",), input_passes=(1,))
        for op in casting
    }
    at = next(i for i, op in enumerate(graph.ops) if op.name in flat)
    ops = (*graph.ops[:at], *copies, *(flat.get(op.name, op) for op in graph.ops[at:]))
    return replace(graph, ops=ops, tensors=tensors)


class Copied(NamedTuple):
    """How long copies of gradients are there, as `memory_entries` asks for it."""

    waiting: frozenset[str] = frozenset()
    buffers: tuple[frozenset[str], ...] = ()
    staged: tuple[tuple[int, int, int], ...] = ()
    beside: frozenset[str] = frozenset()

    def begun(self, graph: Graph) -> tuple[int, ...]:
        """Bytes of buffers that are there for a moment before the first step.

        DeepSpeed's fp16 updates with zeros in the place of its gradients, so that the state of the
        optimizer is there (stage_1_and_2.py, initialize_optimizer_states).
        """
        cast = self.buffers[-1] if self.buffers else ()
        return (sum(graph.tensors[name].bytes for name in cast),) if cast else ()


def copied(graph: Graph, how: str) -> Copied:
    """Say how long the copies of gradients are there that a plan has (`Plan.gradients`).

    Of apex O2 those that updates begin with casting. Of DeepSpeed's fp16 what is collected, all of
    it in one buffer as what is flattened and what is cast, and the bucket in which gradients are
    reduced before they are collected. Of its bf16 those of the last micro-batch, and a copy of
    the sums in their format, in which they are reduced.
    """
    casting = [i for i, op in enumerate(graph.ops) if op.pass_ is Pass.UPDATE and casts(op)]
    if how == "narrow":
        return Copied(frozenset(name for i in casting for name in graph.ops[i].inputs))
    if how == "both":
        beside = narrow_gradients(graph)
        updated = next((i for i, op in enumerate(graph.ops) if op.kind == "optimizer"), None)
        if updated is None:
            return Copied(beside=beside)
        size = sum(graph.tensors[name].bytes for name in beside)
        return Copied(staged=((updated, updated, size),), beside=beside)
    if how != "flat" or not casting:
        return Copied()
    made = [graph.ops[i].outputs[0] for i in casting]
    collected = frozenset(name for name in made if name.endswith(_COLLECTED))
    flat = frozenset(name for name in made if name.endswith(_FLAT))
    ops = [i for i in casting if graph.ops[i].outputs[0] in collected]
    buffers = collected, flat, frozenset(made) - collected - flat
    if not ops:  # products add to the sums themselves
        return Copied(collected, buffers)
    reduced = [graph.tensors[graph.ops[i].inputs[0]] for i in ops]
    width = max(tensor.bytes // tensor.elements for tensor in reduced)
    bucket = width * min(_BUCKET, sum(tensor.elements for tensor in reduced))
    return Copied(collected, buffers, ((min(ops), max(ops), bucket),))


def with_summing_products(graph: Graph) -> Graph:
    """Let products of weight gradients make them in the format of the sum, and add to it.

    Where the update begins with a cast, the sum has the format of the passes, and stays so.
    """
    read = Counter(name for op in graph.ops for name in op.inputs)
    products = {
        op.outputs[0]: op
        for op in graph.ops
        if op.pass_ is Pass.WEIGHT_GRADIENT and op.loops is not None and len(op.outputs) == 1
    }
    cast = {
        id(products[op.inputs[0]]): op
        for op in graph.ops
        if casts(op) and op.inputs[0] in products and read[op.inputs[0]] == 1
    }
    gone = {id(op) for op in cast.values() if op.pass_ is Pass.WEIGHT_GRADIENT}
    ops = []
    for op in graph.ops:
        if id(op) in gone:
            continue
        if (after := cast.get(id(op))) is None:
            ops.append(op)
            continue
        outputs = after.outputs if id(after) in gone else op.outputs
        ops.append(replace(op, outputs=outputs, output_passes=_READ_AND_WRITTEN))
    held = {name for op in ops for name in (*op.inputs, *op.outputs)}
    tensors = {name: tensor for name, tensor in graph.tensors.items() if name in held}
    return replace(graph, ops=tuple(ops), tensors=tensors)
