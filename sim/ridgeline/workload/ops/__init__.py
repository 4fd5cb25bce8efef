"""The op kinds: each is one entry with its shapes, its arithmetic and its gradient.

A new kind is one `OpKind` registered in a file here (see `ridgeline.workload.kinds`) with the
function by which families call it.
"""

from ridgeline.workload.kinds import Cost, registered
from ridgeline.workload.ops.attention import (
    additive_attention,
    attention_context,
    attention_scores,
    flash_attention,
    join_heads,
    relative_bias,
    rotary,
    rotary_angles,
    sink_scale,
    softmax,
    softmax_with_sinks,
)
from ridgeline.workload.ops.cached_attention import cached_attention, head_products, keep_latent
from ridgeline.workload.ops.contraction import (
    add_bias,
    conv2d,
    conv_transpose2d,
    expert_linears,
    fused_linear,
    linear,
    product,
)
from ridgeline.workload.ops.elementwise import activation, add, dropout, gated, multiply, relu
from ridgeline.workload.ops.embedding import class_token, embedding, gather, position_embedding
from ridgeline.workload.ops.functions import function
from ridgeline.workload.ops.interaction import dot_interaction
from ridgeline.workload.ops.linear_attention import causal_filter, linear_attention
from ridgeline.workload.ops.losses import (
    binary_cross_entropy,
    cross_entropy,
    ctc,
    mean_squared_error,
    smooth_l1,
    transducer,
)
from ridgeline.workload.ops.matrix_update import matrices_of, matrix_update
from ridgeline.workload.ops.normalization import (
    batch_norm,
    frozen_batch_norm,
    group_norm,
    head_norm,
    layer_norm,
    local_response_norm,
    rms_norm,
)
from ridgeline.workload.ops.pooling import adaptive_avg_pool, avg_pool, max_pool, pool_volume
from ridgeline.workload.ops.recurrent import recurrent
from ridgeline.workload.ops.regions import roi_align
from ridgeline.workload.ops.routing import combine, dispatch, share, top_k
from ridgeline.workload.ops.selective_scan import selective_scan
from ridgeline.workload.ops.shape import columns, concat, crop, cut, joint, pad_channels, upsample
from ridgeline.workload.ops.sparse_attention import index_scores
from ridgeline.workload.ops.state_space import gated_norm, state_space
from ridgeline.workload.ops.step import scale, seed, unscale, update
from ridgeline.workload.ops.volume import conv, conv_transpose

__all__ = [
    "activation",
    "adaptive_avg_pool",
    "add",
    "add_bias",
    "additive_attention",
    "attention_context",
    "attention_scores",
    "avg_pool",
    "batch_norm",
    "binary_cross_entropy",
    "cached_attention",
    "causal_filter",
    "class_token",
    "columns",
    "combine",
    "concat",
    "conv",
    "conv2d",
    "conv_transpose",
    "conv_transpose2d",
    "crop",
    "cross_entropy",
    "ctc",
    "cut",
    "dispatch",
    "dot_interaction",
    "dropout",
    "embedding",
    "expert_linears",
    "flash_attention",
    "flop_table",
    "frozen_batch_norm",
    "function",
    "fused_linear",
    "gated",
    "gated_norm",
    "gather",
    "group_norm",
    "head_norm",
    "head_products",
    "index_scores",
    "join_heads",
    "joint",
    "keep_latent",
    "layer_norm",
    "linear",
    "linear_attention",
    "local_response_norm",
    "matrices_of",
    "matrix_update",
    "max_pool",
    "mean_squared_error",
    "multiply",
    "pad_channels",
    "pool_volume",
    "position_embedding",
    "product",
    "recurrent",
    "relative_bias",
    "relu",
    "rms_norm",
    "roi_align",
    "rotary",
    "rotary_angles",
    "scale",
    "seed",
    "selective_scan",
    "share",
    "sink_scale",
    "smooth_l1",
    "softmax",
    "softmax_with_sinks",
    "state_space",
    "top_k",
    "transducer",
    "unscale",
    "update",
    "upsample",
]


def flop_table() -> list[tuple[str, Cost, Cost]]:
    """Rows (kind, forward cost, gradient cost): the conventions behind `Op.vector_flops`."""
    return [(kind.name, kind.forward, kind.gradient) for kind in registered()]
