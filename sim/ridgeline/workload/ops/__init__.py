"""The op kinds: each is one entry with its shapes, its arithmetic and its gradient.

A new kind is one `OpKind` registered in a file here (see `ridgeline.workload.kinds`) with the
function by which families call it.
"""

from ridgeline.workload.kinds import Cost, registered
from ridgeline.workload.ops.contraction import conv2d, linear
from ridgeline.workload.ops.elementwise import activation, add, dropout, relu
from ridgeline.workload.ops.normalization import batch_norm
from ridgeline.workload.ops.pooling import adaptive_avg_pool, avg_pool, max_pool
from ridgeline.workload.ops.step import cross_entropy, scale, seed, unscale, update

__all__ = [
    "activation",
    "adaptive_avg_pool",
    "add",
    "avg_pool",
    "batch_norm",
    "conv2d",
    "cross_entropy",
    "dropout",
    "flop_table",
    "linear",
    "max_pool",
    "relu",
    "scale",
    "seed",
    "unscale",
    "update",
]


def flop_table() -> list[tuple[str, Cost, Cost]]:
    """Rows (kind, forward cost, gradient cost): the conventions behind `Op.vector_flops`."""
    return [(kind.name, kind.forward, kind.gradient) for kind in registered()]
