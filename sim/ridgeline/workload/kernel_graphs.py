"""Graphs of single kernels as frameworks call them: what one measured row of a table runs.

Each function returns the ops that run one after the other for one call, with the exact shapes and
formats of what they read and write. They are forward ops, without gradients; `kernels.kernel_price`
prices them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from ridgeline.errors import RidgelineError, nearest
from ridgeline.workload import numerics, ops
from ridgeline.workload.builder import CAST, QUANTISE, GraphBuilder
from ridgeline.workload.formats import AS, find
from ridgeline.workload.graph import Conv, Gemm, Graph, Role
from ridgeline.workload.ops.contraction import CONV2D, GEMM
from ridgeline.workload.ops.elementwise import RELU_SQUARED, SWIGLU, Activation
from ridgeline.workload.ops.linear_attention import (
    DeltaHeads,
    causal_conv1d,
    chunked_delta_rule,
    delta_rule_step,
)
from ridgeline.workload.ops.routing import COMBINE, DISPATCH
from ridgeline.workload.ops.state_space import StateSpaceSizes, chunk_scan

ELEMENTWISE = {
    "add": ("add", 2), "mul": ("broadcast-multiply", 2), "div": ("divide", 2),
    "pow": ("power-of", 2), "addu": ("shift", 1), "mulu": ("broadcast-multiply", 1),
    "divu": ("broadcast-multiply", 1), "powu": ("power", 1), "relu": ("relu", 1),
    "gelu": ("gelu", 1), "tanh": ("tanh", 1),
}  # fmt: skip
"""Elementwise functions: the function of the table that does them, and the tensors that it reads.
Those with a "u" take a tensor and a scalar."""
_ACTIVATIONS: dict[str, Activation] = {"relu": "relu", "gelu": "gelu", "tanh": "tanh"}


@dataclass(frozen=True, slots=True)
class ProductFormats:
    """Number formats of a matrix product with weights, as a framework runs it.

    Attributes
    ----------
    inputs
        Of the activations where they are multiplied.
    weights
        As they are stored; "X-as-Y" where kernels convert them.
    outputs
        Of the result, and of the activations before they are quantised.
    quantises
        Whether the call quantises its activations: they arrive in the outputs' format.
    reads
        How often they are read to be quantised: twice where their own magnitude is their scale.
    """

    inputs: str
    weights: str
    outputs: str
    quantises: bool = False
    reads: int = 1


PRODUCTS = {
    "fp32": ProductFormats("fp32", "fp32", "fp32"),
    "tf32": ProductFormats("tf32", "tf32", "fp32"),
    "bf16": ProductFormats("bf16", "bf16", "bf16"),
    "fp16": ProductFormats("fp16", "fp16", "fp16"),
    "fp8-e4m3": ProductFormats("fp8-e4m3", "fp8-e4m3", "bf16"),
    "fp8": ProductFormats("fp8-e4m3", "fp8-e4m3", "bf16", quantises=True),
    "fp8-block": ProductFormats("fp8-e4m3", "fp8-e4m3", "bf16", quantises=True),
    "nvfp4": ProductFormats("nvfp4", "nvfp4", "bf16", quantises=True),
    "int8-wo": ProductFormats("bf16", f"int8{AS}bf16", "bf16"),
    "int4-wo": ProductFormats("bf16", f"nvfp4{AS}bf16", "bf16"),
    "int8-sq": ProductFormats("int8", "int8", "bf16"),
    "int8-w8a8": ProductFormats("int8", "int8", "bf16", quantises=True, reads=2),
    "w4a16-mxfp4": ProductFormats("bf16", f"nvfp4{AS}bf16", "bf16"),
    "w4a8-fp8": ProductFormats("fp8-e4m3", f"nvfp4{AS}fp8-e4m3", "bf16", quantises=True),
    "w4a8-mxfp4-mxfp8": ProductFormats("fp8-e4m3", f"nvfp4{AS}fp8-e4m3", "bf16", quantises=True),
}
"""How serving frameworks run a product of a format's name. Weights of 4 bits are counted with a
scale of 8 bits for every 16 of them, as NVFP4's; other block sizes differ by at most 8 %."""


def product_formats(name: str) -> ProductFormats:
    """Return how a product of a format is run.

    Raises
    ------
    RidgelineError
        If the format is unknown.
    """
    if name not in PRODUCTS:
        raise RidgelineError(
            f"no product is known in the format {name!r}{nearest(name, PRODUCTS)} (known: "
            f"{', '.join(PRODUCTS)})"
        )
    return PRODUCTS[name]


def linear_graph(m: int, n: int, k: int, formats: ProductFormats, *, batch: int = 1) -> Graph:
    """C[m, n] = A[m, k] W[n, k]', `batch` times with other weights; A is quantised before."""
    b = _builder(f"linear {batch}x{m}x{n}x{k}")
    shape = (batch, m, k)
    if formats.quantises:
        x = _quantised(b, "quantise", b.input("A", shape, formats.outputs), formats)
    else:
        x = b.input("A", shape, formats.inputs)
    y = _product(b, "gemm", x, (batch, n, k), (batch, m, n), formats, Gemm(m, n, k, batch))
    return _graph(b, y)


def conv_graph(loops: Conv, format: str = "fp32") -> Graph:
    """Write the forward pass of a convolution."""
    b = _builder(f"convolution {loops.r}x{loops.s} of {loops.c_in}")
    x = b.input("images", (loops.batch, loops.c_in, loops.h_in, loops.w_in), format)
    filters = (loops.c_out, loops.c_in // loops.groups, loops.r, loops.s)
    w = b.tensor("filters", filters, format, Role.WEIGHT_COPY)
    y = b.activation("y", (loops.batch, loops.c_out, loops.h_out, loops.w_out), format)
    b.emit(CONV2D, "convolution", (x, w), (y,), loops=loops)
    return _graph(b, y)


def attention_graph(
    batch: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    seq_q: int,
    seq_kv: int,
    *,
    causal: bool,
    window: int = 0,
    format: str = "bf16",
    kv_format: str | None = None,
    projected: str | None = None,
) -> Graph:
    """Fused attention of `seq_q` queries, the last of `seq_kv` positions, over a cache.

    `window`: how many keys a query meets at most; 0: all. `kv_format`: of the cache, which is
    converted where it is narrower than `format`. `projected`: the format in which the projections
    before it left new queries, keys and values, of programs that put these into the cache, and
    quantise queries that are multiplied in a narrower format; None: all are where they are read.
    """
    for name, size in (("batch", batch), ("heads", heads), ("kv_heads", kv_heads),
                       ("head_dim", head_dim), ("seq_q", seq_q)):  # fmt: skip
        if size < 1:
            raise RidgelineError(f"{name} must be at least 1, found {size}")
    if seq_kv < seq_q:
        raise RidgelineError(f"seq_kv {seq_kv} is less than seq_q {seq_q}")
    if heads % kv_heads:
        raise RidgelineError(f"{heads} heads cannot share {kv_heads} heads of keys")
    if seq_q == 1:  # the last position meets all keys that its window reaches
        seq_kv, causal, window = min(seq_kv, window or seq_kv), False, 0
    cache = stored = kv_format or format
    if find(stored).bits < find(format).bits:
        stored = f"{stored}{AS}{format}"
    b = _builder(f"attention of {heads} x {head_dim}")
    queries = (batch, seq_q, heads * head_dim)
    if projected is not None:
        added = b.input("new keys and values", (batch, seq_q, 2 * kv_heads * head_dim), projected)
        _copied(b, "cache-write", added, cache)
    if projected is None or find(projected).bits <= find(format).bits:
        q = b.input("Q", queries, format)
    else:
        q = _copied(b, "quantise", b.input("Q", queries, projected), format)
    k = b.input("K", (batch, seq_kv, kv_heads * head_dim), stored)
    v = b.input("V", (batch, seq_kv, kv_heads * head_dim), stored)
    y = ops.flash_attention(
        b, "attention", q, k, v, heads, kv_heads, scale=head_dim**-0.5,
        causal=causal, window=window if window < seq_kv else 0, casts=False,
    )  # fmt: skip
    return _graph(b, y)


def experts_graph(
    rows: int,
    active: int,
    tokens: int,
    hidden: int,
    inter: int,
    formats: ProductFormats,
    *,
    gated: bool = True,
) -> Graph:
    """Fused expert networks of one rank: rows in order, two products, the sum of each token.

    Parameters
    ----------
    rows
        Pairs of a token and an expert of this rank.
    active
        Experts that have any of them; they share the rows evenly.
    tokens
        That are summed up at the end: all that this rank knows.
    inter
        Features inside an expert, on this rank.
    """
    if not 1 <= active <= rows:
        raise RidgelineError(f"{rows} rows for {active} experts")
    b = _builder(f"experts {active} of {hidden} x {inter}")
    each = -(-rows // active)
    x = b.input("x", (tokens, hidden), formats.outputs)
    if formats.quantises:
        x = _quantised(b, "quantise-in", x, formats)
    chosen = b.input("chosen", (rows,), "int32")
    places = b.input("places", (rows,), "int32")
    sorted_ = b.activation("dispatch.y", (active, each, hidden), b.format(x))
    b.emit(DISPATCH, "dispatch", (x, chosen), (sorted_,), passes=(Fraction(rows, tokens), 1))
    wide = (2 if gated else 1) * inter
    halves = _product(
        b, "up", sorted_, (active, wide, hidden), (active, each, wide), formats,
        Gemm(each, wide, hidden, active),
    )  # fmt: skip
    narrow = b.activation("activation.y", (active, each, inter), formats.outputs)
    kind = SWIGLU if gated else RELU_SQUARED
    flops = kind.forward.of(b.elements(narrow))
    b.emit(kind, "activation", (halves,), (narrow,), flops=flops)
    if formats.quantises:
        narrow = _quantised(b, "quantise-between", narrow, formats)
    down = _product(
        b, "down", narrow, (active, hidden, inter), (active, each, hidden), formats,
        Gemm(each, hidden, inter, active),
    )  # fmt: skip
    y = b.activation("combine.y", (tokens, hidden), formats.outputs)
    weights = b.input("weights", (rows,), "fp32")
    flops = COMBINE.forward.of(rows * hidden)
    b.emit(COMBINE, "combine", (down, weights, places), (y,), flops=flops)
    return _graph(b, y)


def elementwise_graph(op: str, rows: int, columns: int, format: str = "fp32") -> Graph:
    """One elementwise function of a tensor or two (`ELEMENTWISE`).

    Raises
    ------
    RidgelineError
        If there is no such function.
    """
    if op not in ELEMENTWISE:
        raise RidgelineError(
            f"there is no elementwise function {op!r}{nearest(op, ELEMENTWISE)} (there are: "
            f"{', '.join(ELEMENTWISE)})"
        )
    name, reads = ELEMENTWISE[op]
    b = _builder(f"{op} {rows}x{columns}")
    inputs = [b.input(f"x{i}", (rows, columns), format) for i in range(reads)]
    if op in _ACTIVATIONS:
        y = ops.activation(b, op, inputs[0], _ACTIVATIONS[op])
    elif name == "add":
        y = ops.add(b, op, *inputs)
    else:
        (y, *_) = ops.function(b, op, name, inputs, (rows, columns))
    return _graph(b, y)


def norm_graph(rows: int, columns: int, format: str = "fp32", *, rms: bool = False) -> Graph:
    """Layer norm of the last axis, or RMS norm."""
    b = _builder(f"norm {rows}x{columns}")
    x = b.input("x", (rows, columns), format)
    return _graph(b, (ops.rms_norm if rms else ops.layer_norm)(b, "norm", x))


def softmax_graph(rows: int, columns: int, format: str = "fp32") -> Graph:
    """Softmax of the last axis."""
    b = _builder(f"softmax {rows}x{columns}")
    return _graph(b, ops.softmax(b, "softmax", b.input("x", (rows, columns), format)))


def cast_graph(m: int, k: int, source: str, target: str, *, reads: int = 1) -> Graph:
    """Scale and cast a matrix; `reads`: 2 where the largest magnitude is looked for first."""
    b = _builder(f"cast {m}x{k}")
    formats = ProductFormats(target, target, source, quantises=True, reads=reads)
    return _graph(b, _quantised(b, "cast", b.input("x", (m, k), source), formats))


def causal_conv_graph(
    sequences: int, positions: int, features: int, taps: int, format: str = "bf16", kernels: int = 1
) -> Graph:
    """Write a causal convolution over time, feature by feature."""
    b = _builder(f"causal convolution of {features}")
    x = b.input("x", (sequences, positions, features), format)
    return _graph(b, causal_conv1d(b, "convolution", x, taps, kernels=kernels))


def delta_rule_graph(
    sequences: int, positions: int, heads: DeltaHeads, format: str = "bf16", *, step: bool = False
) -> Graph:
    """Write a gated delta rule: chunk by chunk, or a few positions of generation (`step`)."""
    b = _builder(f"delta rule of {heads.values} heads")
    run = delta_rule_step if step else chunked_delta_rule
    return _graph(b, run(b, "delta", sequences, positions, heads, format))


def scan_graph(
    sequences: int, positions: int, sizes: StateSpaceSizes, format: str = "bf16"
) -> Graph:
    """Write the scan of a Mamba-2 layer, chunk by chunk, without its convolution."""
    b = _builder(f"scan of {sizes.heads} heads")
    return _graph(b, chunk_scan(b, "scan", sequences, positions, sizes, format))


def compulsory_bytes(graph: Graph) -> int:
    """Bytes of what a call must read and write once: its inputs and its results.

    What its own ops hand to each other is left out.
    """
    made = {name for op in graph.ops for name in op.outputs}
    used = {name for op in graph.ops for name in op.inputs}
    return sum(size for name, size in graph.sizes.items() if (name in made) != (name in used))


def _builder(name: str) -> GraphBuilder:
    return GraphBuilder(name, 1, numerics.find("bf16-true"))


def _graph(b: GraphBuilder, y: str) -> Graph:
    return Graph(b.name, 1, b.numerics.name, b.tensors, tuple(b.ops), y)


def _copied(b: GraphBuilder, layer: str, x: str, format_: str) -> str:
    y = b.activation(f"{layer}.y", b.shape(x), format_)
    b.emit(CAST, layer, (x,), (y,), flops=CAST.forward.of(b.elements(x)))
    return y


def _quantised(b: GraphBuilder, layer: str, x: str, formats: ProductFormats) -> str:
    y = b.activation(f"{layer}.y", b.shape(x), formats.inputs)
    flops = QUANTISE.forward.of(b.elements(x))
    b.emit(QUANTISE, layer, (x,), (y,), flops=flops, passes=(formats.reads,))
    return y


def _product(
    b: GraphBuilder,
    layer: str,
    x: str,
    weights: Sequence[int],
    outputs: Sequence[int],
    formats: ProductFormats,
    loops: Gemm,
) -> str:
    w = b.tensor(f"{layer}.weight", tuple(weights), formats.weights, Role.WEIGHT_COPY)
    y = b.activation(f"{layer}.y", tuple(outputs), formats.outputs)
    b.emit(GEMM, layer, (x, w), (y,), loops=loops)
    return y
