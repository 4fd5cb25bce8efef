"""Updates as kernels of frameworks do them: for many tensors in short launches, or op by op.

Kernels for many tensors get the addresses of tensors and chunks as arguments, of which a launch
has 4 KB: 320 chunks of 65,536 numbers, each a thread block (`multi_tensor_apply` of apex,
DeepSpeed, Transformer Engine and PyTorch, `depth_to_max_blocks`). Launches come one after the
other, so that the last round of blocks of each leaves multiprocessors without work. What longer
launches win is known of PyTorch: on an H100, where 320 blocks take three rounds of 132 instead of
2.42, Adam went from 4.54 to 3.58 ms and copies from 1,458 to 1,902 GB/s, 1.27 and 1.30 times as
fast (its pull requests 119842 and 134373), and on an H200 1.14 and 1.16 times (178641); here 1.24.

Before optimizers had kernels for many tensors (apex, PyTorch's foreach), a loop over the weights
called an elementwise op for each step of the rule: momentum in four kernels, Adam in eight
(`Optimizer.kernels`). Each streams tensors from memory, is launched, and is issued by the host.
In a graph of TensorFlow most rules are one op for each weight, and decay is of its loss
(`Optimizer.graph_kernels`).
"""

from __future__ import annotations

from dataclasses import replace

from ridgeline.parallel.pass_manager import graph_pass
from ridgeline.workload import optimizers
from ridgeline.workload.graph import Graph, Op

ISSUED = 0.17
"""Time of the host to issue such an op, over that of an op of the forward and backward pass, which
modules and autograd take part in: 2.3 against 13.6 us in PyTorch (`benchmarks/host_issue.py`)."""
CHUNKS = 320
"""Of a launch of a kernel for many tensors."""
APART = frozenset({"per-tensor", "graph"})
"""Kinds of updates whose ops the host launches one by one."""
TOGETHER = frozenset({"foreach", "fused"})
"""Kinds of updates (`OptimizerSettings.impl`) whose kernels the host issues at once."""


@graph_pass(
    "multi-tensor-launches", 100, lambda to: () if to.stack.optimizer.impl == "fused" else None
)
def in_launches(graph: Graph) -> Graph:
    """Return the graph whose updates are shared by launches of so many thread blocks."""
    return replace(graph, ops=tuple(map(_launched, graph.ops)))


def _launched(op: Op) -> Op:
    return op if op.kind != "optimizer" else replace(op, attrs=(*op.attrs, ("launched", CHUNKS)))


@graph_pass(
    "optimizer-op-by-op",
    101,
    lambda to: (to.stack.optimizer.impl == "graph",) if to.stack.optimizer.impl in APART else None,
)
def op_by_op(graph: Graph, of_graph: bool = False) -> Graph:
    """Return the graph with as many kernels in every update as the rule has ops.

    Those of a loop over tensors, or of TensorFlow's graph.

    Updates of the looked-up rows of a table, and those by rules of which no such program is known,
    stay one kernel.
    """
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
