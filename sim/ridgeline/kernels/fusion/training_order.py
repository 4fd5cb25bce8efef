"""Order of a training step's ops in which layers can be fused: what a group shares stands together.

Weight gradients stand directly behind the gradient that they take, so that its rows serve them and
the next layer's gradient at once. Copies of weights in another format are made before all layers;
copies of their gradients behind all.
"""

from __future__ import annotations

from dataclasses import replace

from ridgeline.kernels.fusion.regions import WHOLE
from ridgeline.workload.graph import Graph, Op, Pass


def fusing_order(graph: Graph) -> Graph:
    """Return a graph of the same ops, each behind all whose results it reads, in such an order."""
    made_at = {name: at for at, op in enumerate(graph.ops) for name in op.outputs}
    ops = len(graph.ops)
    updates = next((at for at, op in enumerate(graph.ops) if op.pass_ is Pass.UPDATE), ops)

    def place(at: int, op: Op) -> tuple[int, int, int]:
        alone = all(graph.tensors[name].role in WHOLE for name in op.inputs)
        if alone and op.inputs and op.pass_ is Pass.FORWARD:
            return -1, 0, at
        if op.pass_ is Pass.WEIGHT_GRADIENT:
            return (updates, 0, at) if alone else (made_at.get(op.inputs[0], at), 1, at)
        return at, int(op.pass_ is Pass.UPDATE), at

    order = sorted(range(ops), key=lambda at: place(at, graph.ops[at]))
    return replace(graph, ops=tuple(graph.ops[at] for at in order))
