"""Inference mode: a forward pass without what only training needs of it.

Norms of batches use the statistics that training left, nothing is dropped out, weights lie in the
format that they are multiplied in, and what only the backward pass reads is not written. Ops that
work element by element on what a contraction writes are its epilogue, as compilers of inference
programs and libraries of kernels have it (`torch.compile`, TensorRT, cuDNN's fused convolutions).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ridgeline.workload.builder import ADD
from ridgeline.workload.graph import Graph, Op, Pass, Role, Tensor
from ridgeline.workload.ops.contraction import CONV2D, GEMM
from ridgeline.workload.ops.elementwise import RELU
from ridgeline.workload.ops.normalization import BATCH_NORM, FROZEN_BATCH_NORM

_CAST, _DROPOUT = "cast", "dropout"
_EPILOGUES = frozenset(
    {ADD.name, BATCH_NORM.name, FROZEN_BATCH_NORM.name, RELU.name, "bias", "gelu", "relu6",
     "sigmoid", "silu", "tanh"}
)  # fmt: skip


def inference_mode(graph: Graph) -> Graph:
    """Return a forward graph as it is run once a network is trained; see the module."""
    return _with_epilogues(_without_training(graph))


def _without_training(graph: Graph) -> Graph:
    tensors = dict(graph.tensors)
    same: dict[str, str] = {}
    ops: list[Op] = []
    for op in graph.ops:
        inputs = tuple(same.get(name, name) for name in op.inputs)
        first = op.outputs[0]
        if op.kind == _CAST and tensors[inputs[0]].role is Role.WEIGHT:
            cast = tensors[first]
            tensors[first] = Tensor(first, cast.shape, cast.format, Role.WEIGHT, cast.sparsity)
            continue
        if op.kind == _DROPOUT:
            same[first] = inputs[0]
            continue
        kept = op
        if op.kind == BATCH_NORM.name:
            kept = replace(
                op,
                kind=FROZEN_BATCH_NORM.name,
                vector_flops=FROZEN_BATCH_NORM.forward.of(tensors[first].elements),
                input_passes=(),
            )
        ops.append(replace(kept, inputs=inputs))
    read = {name for op in ops for name in op.inputs} | {same.get(graph.loss, graph.loss)}
    ops = [
        replace(op, outputs=(op.outputs[0], *(n for n in op.outputs[1:] if _is_read(n, op, read))))
        for op in ops
    ]
    used = {name for op in ops for name in (*op.inputs, *op.outputs)}
    return replace(
        graph,
        ops=tuple(ops),
        tensors={name: tensor for name, tensor in tensors.items() if name in used},
        loss=same.get(graph.loss, graph.loss),
    )


def _is_read(name: str, op: Op, read: set[str]) -> bool:
    return name in read and name not in op.inputs  # running statistics stay what they are


def _with_epilogues(graph: Graph) -> Graph:
    readers = Counter(name for op in graph.ops for name in op.inputs)
    made: list[Op | None] = []
    at: dict[str, int] = {}
    for each in graph.ops:
        op = each
        if op.kind in _EPILOGUES and op.loops is None and op.pass_ is Pass.FORWARD:
            for place, name in enumerate(each.inputs):
                before = made[at[name]] if name in at else None
                if (
                    before is not None
                    and before.kind in (CONV2D.name, GEMM.name)
                    and readers[name] == 1
                    and name != graph.loss
                    and graph.tensors[name].shape == graph.tensors[each.outputs[0]].shape
                ):
                    made[at[name]] = None
                    op = _joined(before, each, place)
                    break
        at[op.outputs[0]] = len(made)
        made.append(op)
    ops = tuple(op for op in made if op is not None)
    used = {name for op in ops for name in (*op.inputs, *op.outputs)}
    tensors = {name: tensor for name, tensor in graph.tensors.items() if name in used}
    return replace(graph, ops=ops, tensors=tensors)


def _joined(first: Op, second: Op, place: int) -> Op:
    """Return a contraction with one more op in its epilogue, which reads its other inputs."""
    others = tuple(name for i, name in enumerate(second.inputs) if i != place)
    ours = first.input_passes or (1,) * len(first.inputs)
    return replace(
        first,
        inputs=(*first.inputs, *others),
        outputs=second.outputs,
        input_passes=(*ours, *(1 for _ in others)),
        vector_flops=first.vector_flops + second.vector_flops,
    )
