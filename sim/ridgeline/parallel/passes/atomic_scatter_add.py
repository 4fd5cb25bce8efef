"""Rows of experts that are added up for their tokens by atomic additions.

A kernel made for it gathers the rows of each token and writes their sum (Transformer Engine,
`moe_unpermute`; Megatron-Core, `--moe-permute-fusion`, which is off by default). PyTorch's general
kernels go the other way: they add every number of every row to its token's where that lies, by an
atomic addition in the last cache. That is how Megatron-Core brings results back without fusion
(`megatron/core/transformer/moe/moe_utils.py`: `unpermute` by `scatter_add_` to zeros), and how the
gradients of tokens come back from rows (`permute` is an `index_select`, whose gradient is
`index_add_` to zeros).

These kernels read and write as many bytes, but caches take numbers of 16 bits one after the other:
devices state how fast that goes in `Device.kernels`. Others are as fast as memory.
"""

from __future__ import annotations

from dataclasses import replace

from ridgeline.parallel.pass_manager import graph_pass
from ridgeline.workload.graph import Graph, Op, Pass
from ridgeline.workload.ops.routing import COMBINE, DISPATCH, SCATTER_ADD

_SUMS = {(COMBINE.name, Pass.FORWARD), (DISPATCH.name, Pass.INPUT_GRADIENT)}
_KERNELS = 2  # the sums are set to zero first


@graph_pass("atomic-scatter-add", 90, lambda to: () if to.stack.moe.combine == "atomic" else None)
def with_atomic_sums(graph: Graph) -> Graph:
    """Return the graph whose rows of experts are added up by atomic additions."""
    return replace(graph, ops=tuple(map(_summed, graph.ops)))


def _summed(op: Op) -> Op:
    if (op.kind, op.pass_) not in _SUMS:
        return op
    return replace(op, kind=SCATTER_ADD.name, attrs=(*op.attrs, ("kernels", _KERNELS)))
