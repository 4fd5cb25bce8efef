"""Fused attention of new positions to themselves and to those in a cache; products of heads.

The cache is no tensor of the graph: its bytes count as passes over the new keys and values, so that
whatever divides these divides the cache (heads of keys, samples). What is read are the positions
that some query meets: all, or those of a window or a chunk; new ones are written in the cache's
format.
"""

from __future__ import annotations

from fractions import Fraction

from ridgeline.errors import RidgelineError
from ridgeline.workload.builder import Attrs, GraphBuilder
from ridgeline.workload.formats import number_bytes
from ridgeline.workload.generation_step import CachedLayer
from ridgeline.workload.graph import LIBRARY, MET, Gemm, Op
from ridgeline.workload.kinds import op_kind
from ridgeline.workload.numerics import MASTER
from ridgeline.workload.ops.attention import CHUNK, FLASH, WINDOW
from ridgeline.workload.sharding_axes import OpAxes, Tensors

CONTEXT = "context"
"""Attribute of fused attention: positions before the new ones, which no causal mask hides."""
CACHE = "cache"
"""Attribute of fused attention: the number format of its cache."""


def cached_attention(
    b: GraphBuilder,
    layer: str,
    q: str,
    k: str,
    v: str,
    heads: int,
    kv_heads: int,
    *,
    window: int = 0,
    chunk: int = 0,
    latent: bool = False,
    keeps: bool = True,
) -> str:
    """Attend to new positions and to `b.generation.context` cached ones.

    Parameters
    ----------
    q, k, v
        New positions [batch, positions, heads x size] before the cache; keys and values may have
        fewer heads.
    window, chunk
        As of `flash_attention`.
    latent
        Keys of one head for all, whose first features are the values (`k` and `v` are the same):
        the cache has them once, and devices do not divide it.
    keeps
        Whether new keys and values are put into the cache; False: an earlier layer has done it.
    """
    step = b.generation
    assert step is not None
    (n, rows, width), size = b.shape(q), b.shape(k)[2] // kv_heads
    of_value = b.shape(v)[2] // kv_heads
    if width != heads * size or heads % kv_heads:
        raise RidgelineError(f"layer {layer!r}: {heads} and {kv_heads} heads do not fit together")
    columns, scores = met_keys(rows, step.context, window, chunk)
    y = b.activation(f"{layer}.y", (n, rows, heads * of_value), b.numerics.compute)
    sums = b.activation(f"{layer}.log-sums", (n, heads, rows), MASTER)
    within: Attrs = ((WINDOW, window),) if window else ((CHUNK, chunk),) if chunk else ()
    if scores < rows * columns:
        within = (*within, (MET, scores / (rows * columns)))
    causal = rows > 1
    kept = number_bytes(step.kv_format) / number_bytes(b.format(k))
    old = Fraction(kept) * Fraction(columns - min(rows, columns) + rows * keeps, rows)
    library: Attrs = () if latent else ((LIBRARY, step.library),)
    b.emit(
        FLASH if not latent else LATENT,
        layer,
        (q, k, v),
        (y, sums),
        loops=Gemm(heads // kv_heads * rows, columns, size + of_value, batch=n * kv_heads),
        flops=FLASH.forward.flops * n * heads * scores,
        passes=(1, 1 + old, 0 if latent else 1 + old),
        attrs=(
            ("heads", heads), ("kv-heads", kv_heads), ("causal", int(causal)), *within,
            (CONTEXT, step.context), (CACHE, step.kv_format), ("size", size), *library,
        ),
    )  # fmt: skip
    if keeps:
        if latent:
            keep_latent(b, layer, size)  # whole: a choice of keys for each query leaves none out
        else:
            elements = kv_heads * (size + of_value)
            kept_at_most = window or chunk
            b.cached.append(CachedLayer(layer, kv_heads, elements, step.kv_format, kept_at_most))
    return y


def keep_latent(b: GraphBuilder, layer: str, elements: int) -> None:
    """Note that a layer keeps latent vectors of so many numbers a position."""
    assert b.generation is not None
    b.cached.append(CachedLayer(layer, 0, elements, b.generation.kv_format))


def met_keys(rows: int, context: int, window: int, chunk: int) -> tuple[int, int]:
    """Return how many keys are read for new rows, and how many scores no mask hides.

    Row i, counted from 0, meets the ``context + i + 1`` keys up to itself: at most a window of
    them, or those since the last multiple of a chunk.
    """
    last = context + rows
    if chunk:
        starts = [p // chunk * chunk for p in range(context, last)]
        return last - starts[0], sum(p + 1 - s for p, s in enumerate(starts, context))
    most = window or last
    short = max(0, min(rows, most - context))  # rows that meet all before them
    scores = short * context + short * (short + 1) // 2 + (rows - short) * most
    return min(last, most + rows - 1), scores


def head_products(b: GraphBuilder, layer: str, x: str, heads: int, weight: str, size: int) -> str:
    """Multiply the features of every head by weights of its own [heads x size, features].

    The absorbed form of multi-head latent attention (DeepSeek-V2, 2024, arXiv:2405.04434, Section
    2.1.2): queries times the matrix that would make keys of latent vectors, and what attention
    gives of these times the one that would make values.
    """
    n, rows, width = b.shape(x)
    features = width // heads
    y = b.activation(f"{layer}.y", (n, rows, heads * size), b.numerics.compute)
    loops = Gemm(n * rows, size, features, batch=heads)
    b.emit(HEAD_PRODUCTS, layer, (x, weight), (y,), loops=loops, attrs=(("heads", heads),))
    return y


def _head_products_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """X [b, s, H], w [H, k] -> y [b, s, H]."""
    rows = ("b", "s", "H")
    units = {"H": int(dict(op.attrs)["heads"])}
    loops = {"b": ("m",), "s": ("m",), "H": ("batch",)}
    return OpAxes((rows, ("H", "")), (rows,), units, loops, strict=frozenset({"H"}))


def _latent_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """Q [b, s, H], k and v [b, t, f] of one head for all -> y [b, s, H], sums [b, H, s]."""
    keys = ("b", "", "")
    return OpAxes(
        (("b", "s", "H"), keys, keys),
        (("b", "s", "H"), ("b", "H", "s")),
        {"H": int(dict(op.attrs)["heads"])},
        {"b": ("batch",), "H": ("m",), "s": ("m",)},
        strict=frozenset({"H"}),
    )


HEAD_PRODUCTS = op_kind("head-products", sharding=_head_products_sharding)(None)
LATENT = op_kind("latent-attention", forward=FLASH.forward, sharding=_latent_sharding)(None)
"""Fused attention to latent vectors, of which all devices have the whole cache."""
