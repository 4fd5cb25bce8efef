"""Scaled dot-product attention, as separate ops or as one fused op.

Vaswani et al., Attention is all you need, NIPS 2017, arXiv:1706.03762, Section 3.2. Queries are
[batch, positions, heads x size]; keys and values may have fewer heads, each shared by a group of
query heads (Ainslie et al., GQA, EMNLP 2023, arXiv:2305.13245): then the group's queries are the
rows of one product. Scores are [batch, heads, query positions, key positions]. A causal mask hides
the scores of later positions; the products are formed in full all the same, and the ops say
"causal".
"""

from __future__ import annotations

from ridgeline.errors import RidgelineError
from ridgeline.workload.builder import Attrs, GradientBuilder, GraphBuilder
from ridgeline.workload.graph import MET, Gemm, Op
from ridgeline.workload.kinds import Cost, op_kind
from ridgeline.workload.numerics import MASTER
from ridgeline.workload.ops.elementwise import DROPOUT
from ridgeline.workload.sharding_axes import Grouped, Labels, OpAxes, Tensors
from ridgeline.workload.sharding_rules import last_axis_sharding


def attention_scores(
    b: GraphBuilder, layer: str, q: str, k: str, heads: int, kv_heads: int, *, causal: bool = False
) -> str:
    """Products of every query with every key."""
    (n, rows, size), (_, columns, _) = _per_head(b, layer, q, heads), b.shape(k)
    if _per_head(b, layer, k, kv_heads)[2] != size or heads % kv_heads:
        raise RidgelineError(f"layer {layer!r}: {heads} and {kv_heads} heads do not fit together")
    q, k = b.cast(q, b.numerics.compute, layer), b.cast(k, b.numerics.compute, layer)
    y = b.activation(f"{layer}.y", (n, heads, rows, columns), b.numerics.compute)
    loops = Gemm(heads // kv_heads * rows, columns, size, batch=n * kv_heads)
    b.emit(SCORES, layer, (q, k), (y,), loops=loops, attrs=_attrs(heads, kv_heads, causal))
    return y


def softmax(
    b: GraphBuilder, layer: str, x: str, *, scale: float = 1.0, causal: bool = False
) -> str:
    """Softmax of scaled and masked scores over the last axis, in the input's format."""
    x = b.widened(x, layer)
    y = b.activation(f"{layer}.y", b.shape(x), b.format(x))
    attrs = (("scale", scale), ("causal", int(causal)))
    b.emit(SOFTMAX, layer, (x,), (y,), flops=SOFTMAX.forward.of(b.elements(x)), attrs=attrs)
    return y


def softmax_with_sinks(
    b: GraphBuilder, layer: str, x: str, sinks: str, *, scale: float = 1.0, causal: bool = False
) -> str:
    """Softmax of scores [batch, heads, rows, columns] in which a sink of each head takes part.

    See `sink_scale`, which does the same behind a fused kernel.
    """
    x = b.widened(x, layer)
    y = b.activation(f"{layer}.y", b.shape(x), b.format(x))
    attrs = (("scale", scale), ("causal", int(causal)))
    flops = SINK_SOFTMAX.forward.of(b.elements(x))
    b.emit(SINK_SOFTMAX, layer, (x, sinks), (y,), flops=flops, attrs=attrs)
    return y


def attention_context(
    b: GraphBuilder, layer: str, p: str, v: str, kv_heads: int, *, causal: bool = False
) -> str:
    """Values weighted by probabilities [batch, heads, query positions, key positions]."""
    (n, heads, rows, columns), (_, _, size) = b.shape(p), _per_head(b, layer, v, kv_heads)
    p, v = b.cast(p, b.numerics.compute, layer), b.cast(v, b.numerics.compute, layer)
    y = b.activation(f"{layer}.y", (n, rows, heads * size), b.numerics.compute)
    loops = Gemm(heads // kv_heads * rows, size, columns, batch=n * kv_heads)
    b.emit(CONTEXT, layer, (p, v), (y,), loops=loops, attrs=_attrs(heads, kv_heads, causal))
    return y


def flash_attention(
    b: GraphBuilder,
    layer: str,
    q: str,
    k: str,
    v: str,
    heads: int,
    kv_heads: int,
    *,
    scale: float,
    causal: bool = False,
    dropout: float = 0.0,
    first: bool = False,
    window: int = 0,
    chunk: int = 0,
    casts: bool = True,
) -> str:
    """Scores, softmax, dropout and context by one op, which stores no scores.

    Dao et al., FlashAttention, NeurIPS 2022, arXiv:2205.14135, Algorithms 1 and 4: the logarithm of
    every row's sum is kept, and the backward pass forms the scores again. Its loops count both
    products, one after the other: k is the size of a key plus that of a value; backward five.
    `first`: the kernel of 2022, which reaches less of the peak than its successors. `window`: how
    many keys a query meets at most, itself the last, of a causal mask; 0: all before it. `chunk`:
    positions that attend to each other alone, those after them to each other, and so on (Meta,
    Llama 4, 2025: `attention_chunk_size` of its configurations; windows of patches, if the mask is
    not causal); 0: all do. `casts`: False of kernels that read queries, keys and values in the
    formats that they are stored in.
    """
    (n, rows, size), (_, columns, _) = _per_head(b, layer, q, heads), b.shape(k)
    of_value = _per_head(b, layer, v, kv_heads)[2]
    if window and not causal:
        raise RidgelineError(f"layer {layer!r}: a window of {window} keys needs a causal mask")
    if window and chunk:
        raise RidgelineError(f"layer {layer!r}: give either a window or chunks")
    window, chunk = (0 if keys >= columns else keys for keys in (window, chunk))
    if casts:
        q, k, v = (b.cast(x, b.numerics.compute, layer) for x in (q, k, v))
    y = b.activation(f"{layer}.y", (n, rows, heads * of_value), b.numerics.compute)
    sums = b.activation(f"{layer}.log-sums", (n, heads, rows), MASTER)
    group = heads // kv_heads
    version: Attrs = (("first", True),) if first else ()
    within: Attrs = ((WINDOW, window),) if window else ((CHUNK, chunk),) if chunk else ()
    if within and (scores := _scores(rows, columns, window, chunk, causal)) < rows * columns:
        within = (*within, (MET, scores / (rows * columns)))
    b.emit(
        FLASH,
        layer,
        (q, k, v),
        (y, sums),
        loops=Gemm(group * rows, columns, size + of_value, batch=n * kv_heads),
        flops=(FLASH.forward.flops + bool(dropout) * DROPOUT.forward.flops)
        * (n * heads * _scores(rows, columns, window, chunk, causal)),
        attrs=(
            *_attrs(heads, kv_heads, causal),
            ("scale", scale),
            ("probability", dropout),
            *version,
            *within,
        ),
    )
    return y


def met_scores(op: Op) -> float:
    """Share of the scores of fused attention that no mask hides, to the last one."""
    assert isinstance(op.loops, Gemm)
    attrs = dict(op.attrs)
    rows = op.loops.m * int(attrs["kv-heads"]) // int(attrs["heads"])
    columns = op.loops.n
    chunk = int(attrs.get(CHUNK, 0))
    if not (op.causal or chunk):
        return 1.0
    window = int(attrs.get(WINDOW, 0 if chunk else columns))
    return _scores(rows, columns, window, chunk, op.causal) / (rows * columns)


def _scores(rows: int, columns: int, window: int, chunk: int, causal: bool) -> int:
    """Count the scores of a head: all, or those inside a window of a causal mask or in chunks.

    The queries are the last ones of the keys' positions.
    """
    if chunk:  # those of positions before p: of whole chunks, and of a part of one
        last = columns % chunk or chunk  # length of the last chunk
        before = [
            p // chunk * (chunk * (chunk + 1) // 2) + p % chunk * (p % chunk + 1) // 2
            if causal
            else p // chunk * chunk**2 + p % chunk * (last if p + last > columns else chunk)
            for p in (columns - rows, columns)
        ]
        return before[1] - before[0]
    if not window:
        return rows * columns
    window, first = min(window, columns), columns - rows + 1  # keys of the first query
    short = max(0, window - first)  # queries that have fewer keys before them
    return rows * window - short * (short + 1) // 2


def sink_scale(b: GraphBuilder, layer: str, y: str, sums: str, sinks: str) -> str:
    """Scale what fused attention gives [batch, positions, heads x size] as a sink in its sum does.

    A sink is a trained score of each head that takes part in the softmax, but has no value (Xiao et
    al., StreamingLLM, ICLR 2024, arXiv:2309.17453; OpenAI, gpt-oss model card, 2025,
    arXiv:2508.10925, Section 2). With l the logarithm of a row's sum [batch, heads, positions] the
    result is y / (1 + exp(sink - l)), by which programs add sinks to a kernel that knows none.
    """
    out = b.activation(f"{layer}.y", b.shape(y), b.format(y))
    flops = SINK_SCALE.forward.of(b.elements(y))
    b.emit(SINK_SCALE, layer, (y, sums, sinks), (out,), flops=flops, in_place=True)
    return out


def rotary(b: GraphBuilder, layer: str, x: str, angles: str) -> str:
    """Rotate pairs of features by angles that grow with the position, in place.

    Su et al., RoFormer, 2021, arXiv:2104.09864, Section 3.4.2, in the layout of GPT-NeoX and Llama
    (the first half of a head's features with the second). `angles` [positions, head size] holds
    the cosines and sines of a head; see `rotary_angles`.
    """
    positions, size = b.shape(angles)
    if b.shape(x)[1] != positions or b.shape(x)[2] % size:
        raise RidgelineError(f"layer {layer!r}: {list(b.shape(x))} against angles {positions}")
    y = b.activation(f"{layer}.y", b.shape(x), b.format(x))
    flops = ROTARY.forward.of(b.elements(x))
    b.emit(ROTARY, layer, (x, angles), (y,), flops=flops, in_place=True)
    return y


def rotary_angles(b: GraphBuilder, name: str, positions: int, size: int) -> str:
    """Declare the fixed cosines (first half of each row) and sines that `rotary` reads."""
    if size % 2:
        raise RidgelineError(f"{name}: heads of {size} features cannot be rotated in pairs")
    return b.buffer(name, (positions, size))


def relative_bias(
    b: GraphBuilder, layer: str, scores: str, table: str, distance: int, *, causal: bool
) -> str:
    """Add a trained bias for each head and range of distances to scores, in place.

    Raffel et al., T5, JMLR 21(140), 2020, arXiv:1910.10683, Section 2.1. `table` [ranges, heads];
    distances from `distance` on share the last range. A causal stack uses all ranges for the past,
    others half for each direction.
    """
    y = b.activation(f"{layer}.y", b.shape(scores), b.format(scores))
    b.emit(
        RELATIVE_BIAS,
        layer,
        (scores, table),
        (y,),
        flops=RELATIVE_BIAS.forward.of(b.elements(scores)),
        in_place=True,
        attrs=(("distance", distance), ("causal", int(causal))),
    )
    return y


def join_heads(
    b: GraphBuilder, layer: str, x: str, other: str, heads: int, other_heads: int
) -> str:
    """Append to the features of each head those of another tensor's head.

    With `other_heads` 1 all heads get the same, as the rotated part of the keys in multi-head
    latent attention (DeepSeek-V2, 2024, arXiv:2405.04434, Section 2.1.3).
    """
    (n, positions, size), (_, _, more) = (
        _per_head(b, layer, x, heads),
        _per_head(b, layer, other, other_heads),
    )
    y = b.activation(f"{layer}.y", (n, positions, heads * (size + more)), b.format(x))
    b.emit(JOIN_HEADS, layer, (x, other), (y,), attrs=(("heads", heads),))
    return y


def additive_attention(b: GraphBuilder, layer: str, q: str, k: str, v: str, length: str) -> str:
    """Scores length v / |v| . tanh(q + k) of every query with every key; one head.

    Bahdanau, Cho and Bengio, ICLR 2015, arXiv:1409.0473, Appendix A.1.2, with the weight vector
    normalised (Luong et al., TensorFlow NMT tutorial, 2017). `q` [batch, rows, features], `k`
    [batch, columns, features], trained `v` [features] and `length` [1]. The gradient forms the
    sums again, rather than keep them.
    """
    (n, rows, features), (_, columns, _) = b.shape(q), b.shape(k)
    y = b.activation(f"{layer}.y", (n, 1, rows, columns), b.format(q))
    flops = ADDITIVE.forward.of(n * rows * columns * features)
    trained = (b.cast(weight, b.format(q), layer) for weight in (v, length))
    b.emit(ADDITIVE, layer, (q, k, *trained), (y,), flops=flops)
    return y


def _attrs(heads: int, kv_heads: int, causal: bool) -> Attrs:
    return (("heads", heads), ("kv-heads", kv_heads), ("causal", int(causal)))


def _per_head(b: GraphBuilder, layer: str, x: str, heads: int) -> tuple[int, int, int]:
    """Return (batch, positions, features of a head)."""
    n, positions, width = b.shape(x)
    if width % heads:
        raise RidgelineError(f"layer {layer!r}: {heads} heads do not divide {width} features")
    return n, positions, width // heads


def _scores_gradient(g: GradientBuilder, op: Op) -> None:
    (q, k), dy = op.inputs, g.gradient(op.outputs[0])
    assert isinstance(op.loops, Gemm)
    m, n, size, batch = op.loops.m, op.loops.n, op.loops.k, op.loops.batch
    if g.wants(q):  # dq [m, size] = dy [m, n] k [n, size]
        g.derive(SCORES, op, (q,), (dy, k), loops=Gemm(m, size, n, batch), attrs=_which(op, 0))
    if g.wants(k):  # dk [n, size] = dy' [n, m] q [m, size]
        g.derive(SCORES, op, (k,), (dy, q), loops=Gemm(n, size, m, batch), attrs=_which(op, 1))


def _context_gradient(g: GradientBuilder, op: Op) -> None:
    (p, v), dy = op.inputs, g.gradient(op.outputs[0])
    assert isinstance(op.loops, Gemm)
    m, size, n, batch = op.loops.m, op.loops.n, op.loops.k, op.loops.batch
    if g.wants(p):  # dp [m, n] = dy [m, size] v' [size, n]
        g.derive(CONTEXT, op, (p,), (dy, v), loops=Gemm(m, n, size, batch), attrs=_which(op, 0))
    if g.wants(v):  # dv [n, size] = p' [n, m] dy [m, size]
        g.derive(CONTEXT, op, (v,), (p, dy), loops=Gemm(n, size, m, batch), attrs=_which(op, 1))


def _which(op: Op, operand: int) -> Attrs:
    """Say which operand of a product of two activations a gradient op is for."""
    return (*op.attrs, ("gradient-of", operand))


def _flash_gradient(g: GradientBuilder, op: Op) -> None:
    """Five products: scores again, dp = dy v', dv = p' dy, dq = ds k, dk = ds' q.

    Those that only an unwanted gradient needs are left out.
    """
    (q, k, v), (y, sums) = op.inputs, op.outputs
    of_sums = (g.gradient(sums),) if g.has_gradient(sums) else ()  # of sinks
    assert isinstance(op.loops, Gemm)
    of_value = g.elements(y) // g.elements(sums)
    of_key = op.loops.k - of_value
    m, columns, batch = op.loops.m, op.loops.n, op.loops.batch
    attrs = dict(op.attrs)
    drops, met = float(attrs["probability"]) > 0, float(attrs.get(MET, 1.0))
    dq, dk, dv = map(g.wants, op.inputs)
    products = of_key * (1 + dq + dk) + of_value * ((dq or dk) + dv)
    g.derive(
        FLASH,
        op,
        tuple(filter(g.wants, op.inputs)),
        (q, k, v, y, sums, g.gradient(y), *of_sums),
        loops=Gemm(m, columns, products, batch),
        recomputed_flops=2 * batch * m * columns * of_key,
        flops=round(
            (FLASH.gradient.flops + drops * DROPOUT.gradient.flops) * (batch * m * columns) * met
        ),
    )


def _sink_softmax_gradient(g: GradientBuilder, op: Op) -> None:
    (y,) = op.outputs
    wanted = tuple(filter(g.wants, op.inputs))
    flops = SINK_SOFTMAX.gradient.of(g.elements(y))
    g.derive(SINK_SOFTMAX, op, wanted, (g.gradient(y), y), flops=flops)


def _sink_scale_gradient(g: GradientBuilder, op: Op) -> None:
    """Form dy, and of each row the sum of dy y, of which sums and sinks have their gradients."""
    (y, sums, sinks), dy = op.inputs, g.gradient(op.outputs[0])
    flops = SINK_SCALE.gradient.of(g.elements(y))
    wanted = tuple(filter(g.wants, (y, sums, sinks)))
    g.derive(SINK_SCALE, op, wanted, (dy, y, sums, sinks), flops=flops)


def _softmax_gradient(g: GradientBuilder, op: Op) -> None:
    (x,), (y,) = op.inputs, op.outputs
    if g.wants(x):
        g.derive(SOFTMAX, op, (x,), (g.gradient(y), y), flops=SOFTMAX.gradient.of(g.elements(y)))


def _rotary_gradient(g: GradientBuilder, op: Op) -> None:
    (x, angles), dy = op.inputs, g.gradient(op.outputs[0])
    if g.wants(x):
        g.derive(ROTARY, op, (x,), (dy, angles), flops=ROTARY.gradient.of(g.elements(x)))


def _relative_bias_gradient(g: GradientBuilder, op: Op) -> None:
    (scores, table), dy = op.inputs, g.gradient(op.outputs[0])
    if g.wants(scores):
        g.give(scores, dy, op.layer)
    flops = RELATIVE_BIAS.gradient.of(g.elements(dy))
    g.derive(RELATIVE_BIAS, op, (table,), (dy,), flops=flops)


def _join_heads_gradient(g: GradientBuilder, op: Op) -> None:
    (x, other), dy = op.inputs, g.gradient(op.outputs[0])
    if not (g.wants(x) and g.wants(other)):
        raise RidgelineError(f"{op.name}: both parts must depend on weights")
    g.derive(JOIN_HEADS, op, (x, other), (dy,), flops=JOIN_HEADS.gradient.of(g.elements(dy)))


def _additive_gradient(g: GradientBuilder, op: Op) -> None:
    dy = g.gradient(op.outputs[0])
    flops = ADDITIVE.gradient.of(g.elements(dy) * g.shape(op.inputs[0])[-1])
    g.derive(ADDITIVE, op, op.inputs, (dy, *op.inputs), flops=flops)


OFF_DIAGONAL = "off-diagonal"
"""Attribute of fused attention to keys of other devices: with a causal mask half of it is hidden,
without a diagonal (`ridgeline.parallel.sharding.ring_attention`)."""
WINDOW = "window"
"""Attribute of fused attention: the keys that a query meets at most, itself the last."""
CHUNK = "chunk"
"""Attribute of fused attention: how many positions attend to each other alone."""


def _row_labels(shape: tuple[int, ...], positions: str) -> Labels:
    """Labels of queries, keys or values: [b, s, H], or [b s, H] as some networks write them."""
    return ("b", positions, "H") if len(shape) == 3 else ("b", "H")


def _flat_units(op: Op, tensors: Tensors, samples: int) -> tuple[dict[str, int], str, str]:
    """Units of heads, and of samples where rows are one dimension; labels of the positions.

    There only samples can be divided: positions of one device are no rows next to each other.
    """
    units = {"H": int(dict(op.attrs)["kv-heads"])}
    shapes = [tensors[name].shape for name in (*op.inputs, *op.outputs)]
    if all(len(shape) != 2 for shape in shapes):
        return units, "s", "t"
    return {**units, "b": samples}, "", ""


def _scores_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """Q [b, s, H] k [b, t, H] -> y [b, H, s, t]; a unit of H is a head of keys."""
    q, k, y = (tensors[name].shape for name in (*op.inputs, *op.outputs))
    units, s, t = _flat_units(op, tensors, y[0])
    return OpAxes(
        (_row_labels(q, s), _row_labels(k, t)),
        (("b", "H", s, t),),
        units,
        {"b": ("batch",), "H": ("batch",), "s": ("m",), "t": ("n",)},
        strict=frozenset({"H"}),
        grouped=Grouped("H", int(dict(op.attrs)["heads"]), (1,), "s"),
    )


def _context_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """P [b, H, s, t] v [b, t, H] -> y [b, s, H]."""
    p, v, y = (tensors[name].shape for name in (*op.inputs, *op.outputs))
    units, s, t = _flat_units(op, tensors, p[0])
    return OpAxes(
        (("b", "H", s, t), _row_labels(v, t)),
        (_row_labels(y, s),),
        units,
        {"b": ("batch",), "H": ("batch",), "s": ("m",), "t": ("k",)},
        strict=frozenset({"H"}),
        grouped=Grouped("H", int(dict(op.attrs)["heads"]), (1,), "s"),
    )


def _flash_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """Q [b, s, H] k [b, t, H] v [b, t, H] -> y [b, s, H], sums [b, H, s]; keys stay whole."""
    q, k, v, y, sums = (tensors[name].shape for name in (*op.inputs, *op.outputs))
    units, s, _ = _flat_units(op, tensors, sums[0])
    return OpAxes(
        (_row_labels(q, s), _row_labels(k, ""), _row_labels(v, "")),
        (_row_labels(y, s), ("b", "H", s)),
        units,
        {"b": ("batch",), "H": ("batch",), "s": ("m",)},
        strict=frozenset({"H"}),
        grouped=Grouped("H", int(dict(op.attrs)["heads"]), (1, 2), "s"),
    )


def _merge_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """Two times y [b, s, H], sums [b, H, s] -> both of one."""
    both = (("b", "s", "H"), ("b", "H", "s"))
    return OpAxes(both * 2, both, {"H": tensors[op.outputs[1]].shape[1]})


def _sink_softmax_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """Scores [b, H, s, t], sinks [H] -> y [b, H, s, t]; rows stay whole."""
    rows = ("b", "H", "s", "")
    return OpAxes((rows, ("H",)), (rows,))


def _sink_scale_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """Y [b, s, H], sums [b, H, s], sinks [H] -> y [b, s, H]."""
    rows, heads = ("b", "s", "H"), tensors[op.inputs[2]].shape[0]
    return OpAxes((rows, ("b", "H", "s"), ("H",)), (rows,), {"H": heads})


def _rotary_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """X [b, s, heads x size], angles [s, size]."""
    x, angles = (tensors[name].shape for name in op.inputs)
    labels = ("b", "s", "H")
    return OpAxes((labels, ("s", "")), (labels,), {"H": x[2] // angles[1]})


def _relative_bias_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """Scores [b, H, s, t], table [ranges, H]."""
    labels = ("b", "H", "s", "t")
    return OpAxes((labels, ("", "H")), (labels,))


def _join_heads_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """X [b, s, H], other [b, s, H] or of one head, which all need."""
    x, other, y = (tensors[name].shape for name in (*op.inputs, *op.outputs))
    heads = int(dict(op.attrs)["heads"])
    of_other = "H" if heads * other[2] // heads == y[2] - x[2] else ""
    return OpAxes((("b", "s", "H"), ("b", "s", of_other)), (("b", "s", "H"),), {"H": heads})


def _additive_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """Q [b, s, f] k [b, t, f] v [f] length [1] -> y [b, 1, s, t]: a sum over features."""
    return OpAxes((("b", "s", "f"), ("b", "t", "f"), ("f",), ("",)), (("b", "", "s", "t"),))


SCORES = op_kind("attention-scores", sharding=_scores_sharding)(_scores_gradient)
PRODUCT = op_kind("matmul")(_scores_gradient)  # of any two activations
CONTEXT = op_kind("attention-context", sharding=_context_sharding)(_context_gradient)
SOFTMAX = op_kind(
    "softmax",
    forward=Cost(6, "element", "scale and mask, maximum, subtract, exp, sum, divide"),
    gradient=Cost(5, "element", "dy y, its sum, subtract, times y, scale"),
    sharding=last_axis_sharding,
)(_softmax_gradient)
FLASH = op_kind(
    "flash-attention",
    forward=Cost(6, "score", "as softmax, and dropout; rescaling of partial rows is not counted"),
    gradient=Cost(6, "score", "p again: scale, subtract, exp; ds = p (dp - sum of dy y), scale"),
    sharding=_flash_sharding,
)(_flash_gradient)
MERGE = op_kind(
    "merge-attention",
    forward=Cost(3, "output element", "both parts times what their row sums weigh, added"),
    sharding=_merge_sharding,
)(None)
SINK_SOFTMAX = op_kind(
    "softmax-with-sinks",
    forward=Cost(6, "element", "as softmax; a sink is one more score of a row"),
    gradient=Cost(6, "element", "as softmax; the share of the sink, and its sum"),
    sharding=_sink_softmax_sharding,
)(_sink_softmax_gradient)
SINK_SCALE = op_kind(
    "sink-scale",
    forward=Cost(1, "element", "times a factor of its row and head"),
    gradient=Cost(3, "element", "dy times the factor; dy y and its sum"),
    sharding=_sink_scale_sharding,
)(_sink_scale_gradient)
ROTARY = op_kind(
    "rotary",
    forward=Cost(3, "element", "two products and their sum"),
    gradient=Cost(3, "element", "the rotation back"),
    sharding=_rotary_sharding,
)(_rotary_gradient)
RELATIVE_BIAS = op_kind(
    "relative-bias",
    forward=Cost(1, "score", "an addition"),
    gradient=Cost(1, "score", "an addition into the sum of its range"),
    sharding=_relative_bias_sharding,
)(_relative_bias_gradient)
JOIN_HEADS = op_kind(
    "join-heads",
    gradient=Cost(1, "output element", "an addition where heads share features"),
    sharding=_join_heads_sharding,
)(_join_heads_gradient)
ADDITIVE = op_kind(
    "additive-attention",
    forward=Cost(4, "score and feature", "add, tanh, times v, add"),
    gradient=Cost(
        10,
        "score and feature",
        "t again (2); v dy (1 - t t) (4), added to dq and dk (2); dy t added to dv (2)",
    ),
    sharding=_additive_sharding,
)(_additive_gradient)
