"""Random small networks, valid by construction: chains with branches that meet again.

Of images, of sequences, and of tables of features.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.graph import Graph
from ridgeline.workload.numerics import PRECISIONS
from ridgeline.workload.optimizers import OPTIMIZERS, Optimizer

FUNCTIONS = ["relu", "tanh", "sigmoid", "gelu", "silu", "relu-squared"]
IMAGE_MOVES = [
    *("conv", "bn", "max", "avg", "adaptive", "dropout", "add", "multiply", "concat", *FUNCTIONS),
    *("transposed", "frozen", "response", "rms", "crop", "pad", "nearest", "bilinear"),
    "channels",
]
SEQUENCE_MOVES = [
    *("linear", "attention", "flash", "latent", "additive", "cell", "experts", "gated"),
    *("layer", "rms", "bn", "position", "cut", "dropout", "add", "multiply", *FUNCTIONS),
]


def is_sparse(graph: Graph) -> bool:
    """Whether a table has sparse gradients."""
    return any(("sparse", 1) in op.attrs for op in graph.ops)


Draw = Callable[[st.SearchStrategy[Any]], Any]


@st.composite
def forward_graphs(draw: st.DrawFn) -> Graph:
    """A network in any precision, for two or three samples."""
    make = draw(st.sampled_from([_images, _images, _sequences, _sequences, _features]))
    return make(draw, draw(st.integers(2, 3)), draw(st.sampled_from(sorted(PRECISIONS))))


@st.composite
def optimized_graphs(draw: st.DrawFn) -> tuple[Graph, Optimizer]:
    """A network and an optimizer that can update its weights."""
    graph = draw(forward_graphs())
    fitting = [o for o in OPTIMIZERS.values() if o.by_element or not is_sparse(graph)]
    return graph, draw(st.sampled_from(fitting))


@st.composite
def forward_pairs(draw: st.DrawFn) -> tuple[Graph, Graph]:
    """One network in fp32, for a mini-batch and for one three times as large."""
    tape: list[Any] = []

    def record(strategy: st.SearchStrategy[Any]) -> Any:
        tape.append(draw(strategy))
        return tape[-1]

    make = draw(st.sampled_from([_images, _sequences, _features]))
    small = make(record, 2, "fp32")
    replay = iter(tape)
    return small, make(lambda _: next(replay), 6, "fp32")


def _images(draw: Draw, batch: int, precision: str) -> Graph:
    b = GraphBuilder("random", batch, PRECISIONS[precision])
    side = st.integers(4, 7)
    x = b.input("images", (batch, draw(st.integers(1, 3)), draw(side), draw(side)))
    labels = b.input("labels", (batch,), "int64")
    seen: list[str] = []
    for i in range(draw(st.integers(1, 8))):
        x = _image_move(draw, b, f"{draw(st.sampled_from(IMAGE_MOVES))}{i}", x, seen)
        seen.append(x)
    if draw(st.booleans()):
        targets = b.input("targets", b.shape(x))
        regress = ops.smooth_l1 if draw(st.booleans()) else ops.mean_squared_error
        x = ops.conv2d(b, "last", x, b.shape(x)[1], 1)
        of_pixels = regress(b, "pixels", x, targets)
    else:
        targets = b.input("targets", (batch, *b.shape(x)[2:]), "int64")
        x = ops.conv2d(b, "last", x, 2, 1)
        of_pixels = ops.cross_entropy(b, "pixels", x, targets, axis=1)
    logits = ops.linear(b, "fc", x, draw(st.integers(2, 3)), bias=draw(st.booleans()), flatten=True)
    of_images = ops.cross_entropy(b, "loss", logits, labels)
    return b.graph(ops.add(b, "sum", of_images, of_pixels))


def _image_move(draw: Draw, b: GraphBuilder, name: str, x: str, seen: list[str]) -> str:
    kind = name.rstrip("0123456789")
    _, channels, h, w = b.shape(x)
    if kind == "conv":
        groups = draw(st.sampled_from([g for g in (1, 2) if channels % g == 0]))
        y = ops.conv2d(
            b,
            name,
            x,
            groups * draw(st.integers(1, 2)),
            (draw(st.integers(1, min(3, h))), draw(st.integers(1, min(3, w)))),
            stride=draw(st.integers(1, 2)),
            padding=draw(st.integers(0, 1)),
            groups=groups,
            bias=draw(st.booleans()),
        )
    elif kind == "transposed":
        kernel, stride = draw(st.integers(1, 3)), draw(st.integers(1, 2))
        padding = draw(st.integers(0, (kernel - 1) // 2))
        y = ops.conv_transpose2d(
            b, name, x, draw(st.integers(1, 2)), kernel, stride=stride, padding=padding
        )
    elif kind in NORMS:
        y = NORMS[kind](b, name, x)
    elif kind == "rms":
        y = ops.rms_norm(b, name, x, axis=1)
    elif kind == "channels":
        y = ops.layer_norm(b, name, x, axis=1)
    elif kind == "response":
        y = ops.local_response_norm(b, name, x, draw(st.integers(1, 3)), alpha=0.5)
    elif kind == "crop":
        y = ops.crop(b, name, x, (draw(st.integers(1, h)), draw(st.integers(1, w))))
    elif kind == "pad":
        y = ops.pad_channels(b, name, x, channels + draw(st.integers(0, 3)))
    elif kind in {"nearest", "bilinear"}:
        size = (h + draw(st.integers(0, 3)), w + draw(st.integers(0, 3)))
        y = ops.upsample(b, name, x, size, kind)
    elif kind == "concat":
        fitting = [z for z in seen if b.shape(z)[2:] == (h, w)]
        y = ops.concat(b, name, [x, draw(st.sampled_from(fitting)), x]) if fitting else x
    elif kind == "dropout":
        y = ops.dropout(b, name, x, draw(st.sampled_from([0.0, 0.25, 0.5])))
    elif kind == "adaptive":
        size = (draw(st.integers(1, h)), draw(st.integers(1, w)))
        y = ops.adaptive_avg_pool(b, name, x, size)
    elif kind in {"max", "avg"}:
        kernel = draw(st.integers(1, min(3, h, w)))
        y = (ops.max_pool if kind == "max" else ops.avg_pool)(
            b,
            name,
            x,
            kernel,
            stride=draw(st.sampled_from([None, 1, 2])),
            padding=draw(st.integers(0, kernel // 2)),
            ceil_mode=draw(st.booleans()),
        )
    else:
        y = _any_move(draw, b, name, x, seen)
    return y


NORMS = {"bn": ops.batch_norm, "frozen": ops.frozen_batch_norm}


def _any_move(draw: Draw, b: GraphBuilder, name: str, x: str, seen: list[str]) -> str:
    kind = name.rstrip("0123456789")
    if kind not in {"add", "multiply"}:
        return ops.activation(b, name, x, kind)  # type: ignore[arg-type]
    fitting = [z for z in seen if b.shape(z) == b.shape(x)]
    if not fitting:
        return x
    return (ops.add if kind == "add" else ops.multiply)(b, name, x, draw(st.sampled_from(fitting)))


# --- sequences


def _sequences(draw: Draw, batch: int, precision: str) -> Graph:
    b = GraphBuilder("random", batch, PRECISIONS[precision])
    time, width = draw(st.integers(2, 5)), 4 * draw(st.integers(1, 2))
    tokens = b.input("tokens", (batch, time), "int64")
    table = b.weight("table", (draw(st.integers(3, 4)), width))
    tied = draw(st.booleans())
    x = ops.embedding(b, "embedding", tokens, table, sparse=not tied and draw(st.booleans()))
    seen = [x]
    for i in range(draw(st.integers(1, 5))):
        x = _sequence_move(draw, b, f"{draw(st.sampled_from(SEQUENCE_MOVES))}{i}", x, seen)
        seen.append(x)
    time, x = b.shape(x)[1], ops.layer_norm(b, "norm", x)
    logits = ops.product(b, "head", x, table) if tied else ops.linear(b, "head", x, 3)
    if draw(st.booleans()):
        labels = b.input("labels", (batch, draw(st.integers(1, (time + 1) // 2))), "int64")
        return b.graph(ops.ctc(b, "loss", logits, labels))
    chosen = b.input("chosen", (batch, draw(st.integers(1, 3))), "int64")
    logits = ops.gather(b, "gather", logits, chosen) if time > 1 else logits
    labels = b.input("labels", b.shape(logits)[:2], "int64")
    return b.graph(ops.cross_entropy(b, "loss", logits, labels))


def _sequence_move(draw: Draw, b: GraphBuilder, name: str, x: str, seen: list[str]) -> str:
    kind = name.rstrip("0123456789")
    _, time, width = b.shape(x)
    if kind == "linear":
        y = ops.linear(b, name, x, width)
    elif kind in {"attention", "flash", "latent"}:
        y = _attention(draw, b, name, x, draw(st.sampled_from(seen)))
    elif kind == "additive":
        q, k = ops.fused_linear(b, f"{name}.qk", x, (2, 2), bias=False)
        v, length = b.weight(f"{name}.v", (2,)), b.weight(f"{name}.length", (1,))
        scores = ops.additive_attention(b, f"{name}.scores", q, k, v, length)
        p = ops.softmax(b, f"{name}.softmax", scores)
        y = ops.attention_context(b, name, p, x, 1)
    elif kind == "cell":
        cell = draw(st.sampled_from(["lstm", "gru", "rnn-tanh", "rnn-relu"]))
        bias = draw(st.sampled_from(["none", "one", "two"]))
        y = ops.recurrent(b, name, x, width, cell, reverse=draw(st.booleans()), bias=bias)
    elif kind == "experts":
        y = _experts(draw, b, name, x)
    elif kind == "gated":
        gate, up = ops.fused_linear(b, f"{name}.up", x, (width, width), bias=draw(st.booleans()))
        y = ops.gated(b, name, gate, up, draw(st.sampled_from(["swiglu", "geglu"])))
    elif kind == "layer":
        y = ops.layer_norm(b, name, x)
    elif kind == "rms":
        y = ops.rms_norm(b, name, x)
    elif kind == "bn":
        y = ops.batch_norm(b, name, x, axis=2)
    elif kind == "position":
        rows = time + draw(st.integers(0, 2))
        y = ops.position_embedding(b, name, x, b.weight(f"{name}.table", (rows, width)))
    elif kind == "cut":
        start = draw(st.integers(0, time - 1))
        y = ops.cut(b, name, x, axis=1, start=start, length=draw(st.integers(1, time - start)))
    elif kind == "dropout":
        y = ops.dropout(b, name, x, draw(st.sampled_from([0.0, 0.25])))
    else:
        y = _any_move(draw, b, name, x, seen)
    return y


def _attention(draw: Draw, b: GraphBuilder, name: str, x: str, memory: str) -> str:
    kind, width, time = name.rstrip("0123456789"), b.shape(x)[2], b.shape(x)[1]
    kv = draw(st.sampled_from([1, 2]))
    heads, causal = kv * draw(st.sampled_from([1, 2])), draw(st.booleans())
    size = 2 * draw(st.integers(1, 2))
    source = memory if kind == "attention" and not causal else x
    q = ops.linear(b, f"{name}.q", x, heads * size)
    k, v = ops.fused_linear(b, f"{name}.kv", source, (kv * size, kv * 3))
    if draw(st.booleans()) and b.shape(source)[1] == time:
        angles = ops.rotary_angles(b, f"{name}.angles", time, size)
        if draw(st.booleans()):
            q = ops.head_norm(b, f"{name}.norm-q", q, heads)
        q = ops.rotary(b, f"{name}.rotary-q", q, angles)
        k = ops.rotary(b, f"{name}.rotary-k", k, angles)
    if kind == "latent":
        more = draw(st.sampled_from([1, heads]))
        extra = ops.linear(b, f"{name}.extra", x, more * 2)
        q = ops.join_heads(b, f"{name}.join-q", q, extra, heads, more)
        extra = ops.linear(b, f"{name}.shared", x, 2)
        k = ops.join_heads(b, f"{name}.join-k", k, extra, kv, 1)
    drop = draw(st.sampled_from([0.0, 0.25]))
    if kind == "flash":
        y = ops.flash_attention(b, name, q, k, v, heads, kv, scale=0.7, causal=causal, dropout=drop)
    else:
        p = ops.attention_scores(b, f"{name}.scores", q, k, heads, kv, causal=causal)
        if draw(st.booleans()):
            table = b.weight(f"{name}.table", (draw(st.sampled_from([4, 8])), heads))
            p = ops.relative_bias(b, f"{name}.bias", p, table, 3, causal=causal)
        p = ops.softmax(b, f"{name}.softmax", p, scale=0.7, causal=causal)
        p = ops.dropout(b, f"{name}.dropout", p, drop)
        y = ops.attention_context(b, name, p, v, kv, causal=causal)
    return ops.linear(b, f"{name}.out", y, width)


def _experts(draw: Draw, b: GraphBuilder, name: str, x: str) -> str:
    experts, width = draw(st.sampled_from([1, 2])), b.shape(x)[2]
    scores = ops.linear(b, f"{name}.router", x, experts, bias=False)
    k = draw(st.integers(1, experts))
    if draw(st.booleans()):
        scores, chosen = ops.top_k(b, f"{name}.top", scores, k)
        weights = ops.softmax(b, f"{name}.softmax", scores)
    else:
        scores = ops.activation(b, f"{name}.sigmoid", scores, "sigmoid")
        weights, chosen = ops.top_k(b, f"{name}.top", scores, k)
        weights = ops.share(b, f"{name}.share", weights)
    rows, places = ops.dispatch(
        b, f"{name}.dispatch", x, chosen, experts, draw(st.sampled_from([1.0, 2.0]))
    )
    gate, up = ops.expert_linears(b, f"{name}.up", rows, (2, 2))
    hidden = ops.gated(b, f"{name}.gate", gate, up, "swiglu")
    (rows,) = ops.expert_linears(b, f"{name}.down", hidden, (width,))
    return ops.combine(b, name, rows, weights, places)


# --- tables of features


def _features(draw: Draw, batch: int, precision: str) -> Graph:
    """A recommender: dense features and looked-up rows, and the dot products of their pairs."""
    b = GraphBuilder("random", batch, PRECISIONS[precision])
    size, count = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    dense = ops.linear(b, "dense", b.input("dense-features", (batch, 2)), size)
    parts = [dense]
    for i in range(count):
        indices = b.input(f"indices{i}", (batch,), "int64")
        table = b.weight(f"table{i}", (draw(st.integers(2, 4)), size))
        parts.append(ops.embedding(b, f"lookup{i}", indices, table, sparse=draw(st.booleans())))
    features = ops.concat(b, "features", parts)
    pairs = ops.dot_interaction(b, "pairs", features, count + 1)
    x = ops.concat(b, "joined", [dense, pairs] if draw(st.booleans()) else [dense, pairs, dense])
    targets = b.input("targets", (batch, 1))
    return b.graph(ops.binary_cross_entropy(b, "loss", ops.linear(b, "click", x, 1), targets))
