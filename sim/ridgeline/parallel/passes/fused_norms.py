"""Batch norms whose kernels also add the shortcut and cut off what is negative.

A relu behind a batch norm, and the sum of a residual block between them, are kernels of their own
that read and write the whole image again. Libraries have one kernel for all (cuDNN,
`cudnnBatchNormOps_t`: BN_ACTIVATION and BN_ADD_ACTIVATION), which programs ask for by
`--fuse-bn-relu` and `--fuse-bn-add-relu` (NVIDIA's submissions to MLPerf Training and its MXNet
examples, OneFlow's). Forward it streams what the norm streams, and the shortcut. Backward it finds
the signs in a mask of one bit an element, which the forward kernel leaves; that this is written is
left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from ridgeline.parallel.pass_manager import graph_pass
from ridgeline.workload.builder import ADD
from ridgeline.workload.graph import Graph, Op, Pass
from ridgeline.workload.ops.elementwise import RELU
from ridgeline.workload.ops.normalization import BATCH_NORM


class _Chain(NamedTuple):
    """A norm, perhaps the sum behind it, and the relu behind these."""

    norm: Op
    add: Op | None
    relu: Op

    @property
    def forward(self) -> Op:
        """The kernel that does all."""
        norm, ops = self.norm, (self.norm, self.relu, *((self.add,) if self.add else ()))
        shortcut = () if self.add is None else _without(self.add.inputs, norm.outputs[0])
        return replace(
            norm,
            inputs=(*norm.inputs, *shortcut),
            outputs=(self.relu.outputs[0], *norm.outputs[1:]),
            input_passes=(*norm.input_passes, *(1 for _ in shortcut)),
            vector_flops=sum(op.vector_flops for op in ops),
        )


@graph_pass("fused-norms", 51, lambda to: () if to.stack.kernels.norm == "fused" else None)
def with_fused_norms(graph: Graph) -> Graph:
    """Return the graph with one op for each batch norm and what only it feeds."""
    written = {name: op for op in graph.ops for name in op.outputs}
    readers = Counter(name for op in graph.ops for name in op.inputs)
    chains = {
        chain.relu.name: chain
        for op in graph.ops
        if op.kind == RELU.name
        and op.pass_ is Pass.FORWARD
        and (chain := _chain(op, written, readers)) is not None
    }
    gone: set[str] = set()
    new: dict[str, Op] = {}
    for chain in chains.values():
        gone |= {chain.norm.name, *((chain.add.name,) if chain.add else ())}
        new[chain.relu.name] = chain.forward
    for signs, norm in _backward(graph, chains):
        gone.add(norm.name)
        new[signs.name] = _gradient(graph, signs, norm, alone=readers[signs.outputs[0]] == 1)
    ops = tuple(new.get(op.name, op) for op in graph.ops if op.name not in gone)
    used = {name for op in ops for name in (*op.inputs, *op.outputs)} | {graph.loss}
    unused = {name for op in graph.ops for name in (*op.inputs, *op.outputs)} - used
    tensors = {name: tensor for name, tensor in graph.tensors.items() if name not in unused}
    return replace(graph, tensors=tensors, ops=ops)


def _chain(relu: Op, written: Mapping[str, Op], readers: Mapping[str, int]) -> _Chain | None:
    """Return what ends with a relu; None if no norm, or one whose result others read."""
    before = written.get(relu.inputs[0])
    if before is None or readers[relu.inputs[0]] != 1:
        return None
    if _is_norm(before):
        return _Chain(before, None, relu)
    if before.kind != ADD.name or before.pass_ is not Pass.FORWARD:
        return None
    for name in before.inputs:
        norm = written.get(name)
        if norm is not None and _is_norm(norm) and readers[name] == 1:
            return _Chain(norm, before, relu)
    return None


def _is_norm(op: Op) -> bool:
    return op.kind == BATCH_NORM.name and op.pass_ is Pass.FORWARD


def _backward(graph: Graph, chains: Mapping[str, _Chain]) -> list[tuple[Op, Op]]:
    """Return the gradient ops of chains: of the relu, and of the norm that reads what it writes."""
    of_relu = {chain.relu.outputs[0]: chain for chain in chains.values()}
    of_norm = {
        op.inputs[1]: op
        for op in graph.ops
        if op.kind == BATCH_NORM.name and op.pass_ is Pass.INPUT_GRADIENT
    }
    pairs = []
    for op in graph.ops:
        if op.kind != RELU.name or op.pass_ is not Pass.INPUT_GRADIENT:
            continue
        chain = of_relu.get(op.inputs[1])
        norm = None if chain is None else of_norm.get(chain.norm.inputs[0])
        if norm is not None and norm.inputs[0] == op.outputs[0]:
            pairs.append((op, norm))
    return pairs


def _gradient(graph: Graph, signs: Op, norm: Op, *, alone: bool) -> Op:
    """Return the op of both gradients, with what the shortcut gets unless the norm is `alone`."""
    kept = graph.tensors[signs.inputs[1]]
    bits = Fraction(kept.elements, 8 * kept.bytes)
    return replace(
        norm,
        inputs=(signs.inputs[0], *norm.inputs[1:], signs.inputs[1]),
        outputs=(*norm.outputs, *(() if alone else (signs.outputs[0],))),
        input_passes=(*norm.input_passes, bits),
        vector_flops=norm.vector_flops + signs.vector_flops,
    )


def _without(names: tuple[str, ...], one: str) -> tuple[str, ...]:
    left = list(names)
    left.remove(one)
    return tuple(left)
