"""Positions that a gradient of weights reads, gathered beside the gradient of the inputs.

With sequence parallelism the gradient of a column-parallel product's weights reads the positions of
all tensor-parallel devices, which are gathered again for it. The gradient of its inputs does not,
and comes first: programs that overlap the communication of these devices ask for the gathering
before it, and wait for it behind it (Megatron-LM's
`LinearWithGradAccumulationAndAsyncCommunication`; "bulk" overlap of Transformer Engine's user
buffers, which NeMo's configurations have as `qkv_dgrad` and `fc1_dgrad`). The sums of the gradient
of the inputs are scattered beside that of the weights in any case.
"""

from __future__ import annotations

from dataclasses import replace

from ridgeline.parallel.pass_manager import graph_pass
from ridgeline.workload.graph import Graph, Op, Pass


@graph_pass("prefetch-all-gather", 10, lambda to: () if to.stack.overlap.tensor else None)
def with_early_gathers(graph: Graph) -> Graph:
    """Gather what a gradient of weights reads before the product that stands before the gather."""
    ops = list(graph.ops)
    for i in range(1, len(ops)):
        if _goes_beside(ops[i], ops[i - 1]):
            ops[i - 1], ops[i] = ops[i], ops[i - 1]
    return replace(graph, ops=tuple(ops))


def _goes_beside(op: Op, before: Op) -> bool:
    """Whether an op gathers for a gradient of weights, and the one before is that of inputs."""
    gathers = op.kind == "all-gather" and op.pass_ is Pass.WEIGHT_GRADIENT
    between = ("dimension", "tensor") in op.attrs
    product = before.kind == "gemm" and before.pass_ is Pass.INPUT_GRADIENT
    return gathers and between and product and not set(op.inputs) & set(before.outputs)
