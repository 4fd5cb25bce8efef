"""Gradients of the data themselves, which nobody reads.

A backward pass need not go beyond the first layer with weights. A framework whose layers each form
the gradient of their input, whoever asks, goes one product further: Torch7's
`nn.Sequential:backward` calls `backward` of every layer, the first included.
"""

from __future__ import annotations

from dataclasses import replace

from ridgeline.parallel.pass_manager import graph_pass
from ridgeline.workload.graph import Gemm, Graph, Op, Pass, Role
from ridgeline.workload.ops.contraction import CONV2D, GEMM

_KINDS = frozenset({CONV2D.name, GEMM.name})


@graph_pass("input-gradients", 20, lambda to: () if to.stack.kernels.input_gradients else None)
def with_data_gradients(graph: Graph) -> Graph:
    """Return the graph with the gradients of what convolutions and products read of the data."""
    data = {t.name for t in graph.tensors.values() if t.role is Role.INPUT}
    data |= {op.outputs[0] for op in graph.ops if op.kind == "cast" and op.inputs[0] in data}
    first = {
        (op.layer, op.inputs[0]): op
        for op in graph.ops
        if op.kind in _KINDS and op.pass_ is Pass.FORWARD and op.inputs[0] in data
    }
    tensors, ops = dict(graph.tensors), list[Op]()
    for op in graph.ops:
        ops.append(op)
        if op.kind not in _KINDS or op.pass_ is not Pass.WEIGHT_GRADIENT:
            continue
        layer = first.get((op.layer, op.inputs[1]))
        if layer is None:
            continue
        read, name = tensors[layer.inputs[0]], f"{layer.name}.input-gradient"
        tensors[name] = replace(read, name=name, role=Role.ACTIVATION_GRADIENT)
        ops.append(_gradient(layer, op.inputs[0], name))
    return replace(graph, tensors=tensors, ops=tuple(ops))


def _gradient(layer: Op, gradient: str, written: str) -> Op:
    """Return the op that forms the gradient of a layer's input from that of its output."""
    loops = layer.loops
    if isinstance(loops, Gemm):
        loops = Gemm(loops.m, loops.k, loops.n, loops.batch)
    return replace(
        layer,
        name=written,
        pass_=Pass.INPUT_GRADIENT,
        inputs=(gradient, layer.inputs[1]),
        outputs=(written,),
        loops=loops,
        input_passes=(),  # of a device's own part: what neighbours sent is read by the layer alone
        output_passes=(),
    )
