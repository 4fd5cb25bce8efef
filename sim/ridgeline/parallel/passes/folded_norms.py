"""Frozen batch norms that convolutions apply to what they write, with the relu behind them.

Where statistics and weights of a norm are fixed it is a scale and a bias of each channel, which the
kernel of the convolution before it applies before it stores a number, and relu after that (apex,
contrib/conv_bias_relu, `ConvFrozenScaleBiasReLU`; `--apex-backbone-fusion` and `--jit` of NVIDIA's
RetinaNet in MLPerf Training). Where a shortcut is added in between, the sum and the relu are one
kernel. Backward, relu and scale are one kernel.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ridgeline.parallel.pass_manager import graph_pass
from ridgeline.workload.builder import ADD
from ridgeline.workload.graph import Graph, Op, Pass
from ridgeline.workload.ops.contraction import CONV2D
from ridgeline.workload.ops.elementwise import RELU
from ridgeline.workload.ops.normalization import FROZEN_BATCH_NORM

_CONV, _NORM, _RELU = CONV2D.name, FROZEN_BATCH_NORM.name, RELU.name
_BEHIND = {
    Pass.FORWARD: ((_CONV, _NORM), (_NORM, _RELU), (ADD.name, _RELU)),
    Pass.INPUT_GRADIENT: ((_RELU, _NORM),),
}
"""By pass: kinds of ops whose second is done by the first's kernel."""


@graph_pass("folded-norms", 52, lambda to: () if to.stack.kernels.norm == "fused" else None)
def with_folded_norms(graph: Graph) -> Graph:
    """Return the graph with frozen norms, and relus behind them, in the ops before them."""
    if not any(op.kind == _NORM for op in graph.ops):
        return graph
    readers = Counter(name for op in graph.ops for name in op.inputs)
    made: list[Op | None] = []
    last: list[str] = []  # kind of the last op that each of these does
    at: dict[str, int] = {}  # by what it writes first
    for op in graph.ops:
        name = op.inputs[0] if op.inputs else ""
        first = made[at[name]] if name in at and readers[name] == 1 else None
        joins = first is not None and (last[at[name]], op.kind) in _BEHIND.get(op.pass_, ())
        if joins:
            made[at[name]] = None  # both are done where the second stood, which may read more
        at[op.outputs[0]] = len(made)
        made.append(_joined(first, op) if first is not None and joins else op)
        last.append(op.kind)
    ops = tuple(op for op in made if op is not None)
    used = {name for op in ops for name in (*op.inputs, *op.outputs)}
    gone = {name for op in graph.ops for name in op.outputs} - used - {graph.loss}
    tensors = {name: tensor for name, tensor in graph.tensors.items() if name not in gone}
    return replace(graph, tensors=tensors, ops=ops)


def _joined(first: Op, second: Op) -> Op:
    """Return the op that does both; of the second it reads what the first does not write."""
    passes = (op.input_passes or (1,) * len(op.inputs) for op in (first, second))
    ours, theirs = passes
    return replace(
        first,
        inputs=(*first.inputs, *second.inputs[1:]),
        outputs=second.outputs,
        input_passes=(*ours, *theirs[1:]),
        vector_flops=first.vector_flops + second.vector_flops,
    )
