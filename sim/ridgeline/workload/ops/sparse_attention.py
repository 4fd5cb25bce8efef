"""The scores by which an indexer chooses the keys that attention meets.

DeepSeek-AI, DeepSeek-V3.2, 2025, arXiv:2512.02556, Section 2.1 (DSA): with queries q_h of a few
small heads, one key k for all of them, and weights w_h of the heads,

    I(t, s) = sum over h of w_h(t) relu(q_h(t) . k(s)),

and a query t meets the keys with the largest I(t, s) alone.
"""

from __future__ import annotations

from fractions import Fraction

from ridgeline.errors import RidgelineError
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.formats import number_bytes
from ridgeline.workload.graph import Gemm, Op, Passes
from ridgeline.workload.kinds import Cost, op_kind
from ridgeline.workload.numerics import MASTER
from ridgeline.workload.sharding_axes import OpAxes, Tensors


def index_scores(b: GraphBuilder, layer: str, q: str, k: str, weights: str) -> str:
    """Score every key for every query, by one kernel that sums over heads.

    Parameters
    ----------
    q, k, weights
        [batch, positions, heads x size], [batch, positions, size], [batch, positions, heads].

    Returns
    -------
    [batch, positions, positions] in fp32. The kernel is causal and has no gradient: the indexer is
    trained by a loss of its own, which is left out.
    """
    (n, rows, width), (_, columns, size) = b.shape(q), b.shape(k)
    heads, step = b.shape(weights)[2], b.generation
    passes: Passes = ()
    if step is not None:  # keys of earlier positions are read from a cache, new ones put there
        kept = number_bytes(step.kv_format) / number_bytes(b.format(k))
        columns += step.context
        passes = (1, 1 + Fraction(kept) * Fraction(columns, rows), 1)
    if width != heads * size:
        raise RidgelineError(f"layer {layer!r}: {width} features are not {heads} heads of {size}")
    y = b.activation(f"{layer}.y", (n, rows, columns), MASTER)
    flops = INDEX_SCORES.forward.of(n * heads * rows * columns)
    loops = Gemm(rows, columns, size, batch=n * heads)
    if step is not None:  # rows of all heads, which share the keys, fill tiles together
        loops = Gemm(heads * rows, columns, size, batch=n)
    attrs = (("heads", heads), ("causal", 1))
    b.emit(
        INDEX_SCORES, layer, (q, k, weights), (y,), loops=loops, flops=flops, passes=passes,
        attrs=attrs,
    )  # fmt: skip
    return y


def _index_scores_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """Q [b, s, h], k [b, t, f], weights [b, s, h] -> scores [b, s, t]: a sum over heads."""
    rows = ("b", "s", "")
    loops = {"b": ("batch",), "s": ("m",)}
    return OpAxes((rows, ("b", "", ""), rows), (rows,), {}, loops)


INDEX_SCORES = op_kind(
    "index-scores",
    forward=Cost(3, "score of a head", "relu, times its weight, added"),
    sharding=_index_scores_sharding,
)(None)
