"""Updates that are written op by op, tensor after tensor.

Before optimizers had kernels for many tensors (apex, PyTorch's foreach), a loop over the weights
called an elementwise op for each step of the rule: momentum in four kernels, Adam in eight
(`Optimizer.kernels`). Each streams tensors from memory, is launched, and is issued by the host.
In a graph of TensorFlow most rules are one op for each weight, and decay is of its loss
(`Optimizer.graph_kernels`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from ridgeline.workload import optimizers
from ridgeline.workload.graph import Graph, Op, Same

ISSUED = 0.17
"""Time of the host to issue such an op, over that of an op of the forward and backward pass, which
modules and autograd take part in: 2.3 against 13.6 us in PyTorch (`benchmarks/host_issue.py`)."""


@lru_cache(maxsize=16)
def op_by_op(same: Same, *, of_graph: bool = False) -> Graph:
    """Return the graph with as many kernels in every update as the rule has ops.

    Those of a loop over tensors, or of TensorFlow's graph.

    Updates of the looked-up rows of a table, and those by rules of which no such program is known,
    stay one kernel.
    """
    graph = same.graph
    return replace(graph, ops=tuple(_written_out(op, graph, of_graph) for op in graph.ops))


def _written_out(op: Op, graph: Graph, of_graph: bool) -> Op:
    if op.kind != "optimizer":
        return op
    rule = optimizers.find(str(dict(op.attrs)["rule"]))
    kernels = rule.graph_kernels if of_graph else rule.kernels
    weight, gradient, *states = (graph.tensors[name] for name in op.inputs)
    if not kernels or weight.shape != gradient.shape:
        return op
    reads, writes = (sum(counts) for counts in zip(*kernels, strict=True))
    return replace(
        op,
        attrs=(*op.attrs, ("kernels", len(kernels))),
        input_passes=(reads - 1 - len(states), 1, *(1 for _ in states)),
        output_passes=(writes - len(states), *(1 for _ in states)),
    )
