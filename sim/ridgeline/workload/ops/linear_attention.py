"""Linear attention: the kernels of gated delta rules, and the causal convolution before them.

Yang, Kautz and Hatamizadeh, Gated Delta Networks, ICLR 2025, arXiv:2412.06464; Kimi Team, Kimi
Linear, 2025, arXiv:2510.26692 (KDA: a decay for every feature of a key). A head has a state
S [key features, value features]; at each position with decay a and learning rate w

    S <- a S + w k (v - (a S)' k)';    y = S' q.

Section 3.3 of the first forms it chunk by chunk (the WY representation): with C positions a chunk,
the products K K', its triangular inverse T, T K and T V; then one chunk after the other W S, Q S,
(Q K') U and K' U. Traffic is that of the authors' kernels (fla-org/flash-linear-attention,
fla/ops/gated_delta_rule/chunk.py), which exchange T, W, U and the states through memory.
`chunked_delta_rule` and `delta_rule_step` are the forward kernels of inference, which have no
gradient; `linear_attention` is the layer that is trained, as one op of all its kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from ridgeline.errors import RidgelineError
from ridgeline.workload.builder import Attrs, GradientBuilder, GraphBuilder
from ridgeline.workload.formats import bytes_of
from ridgeline.workload.generation_step import CachedLayer
from ridgeline.workload.graph import LIBRARY, Gemm, Op, Role
from ridgeline.workload.kinds import Cost, op_kind
from ridgeline.workload.numerics import MASTER
from ridgeline.workload.sharding_axes import OpAxes, Tensors

_STATE_BYTES = 4
_CHUNK_KERNELS = 6
"""Running sums of the decays, K K', its inverse, W and U, states, outputs."""


@dataclass(frozen=True)
class DeltaHeads:
    """Extents of a layer with a delta rule.

    Attributes
    ----------
    keys, key_size
        Heads of queries and keys, each shared by a group of value heads, and their features.
    values, value_size
        Heads of values, each with a state, and their features.
    chunk
        Positions that are formed together.
    per_feature
        Whether every feature of a key has a decay of its own (KDA).
    """

    keys: int
    key_size: int
    values: int
    value_size: int
    chunk: int = 64
    per_feature: bool = False


def causal_conv1d(b: GraphBuilder, layer: str, x: str, taps: int, *, kernels: int = 1) -> str:
    """Filter each feature of x [sequences, positions, features] over time; bias and silu follow.

    The last taps - 1 positions of every sequence are read from a state and written to it, so that
    generation can go on. `kernels`: how many share the features, one after the other.
    """
    sequences, positions, features = b.shape(x)
    if taps < 1:
        raise RidgelineError(f"layer {layer!r}: a filter of {taps} taps")
    filters = b.tensor(f"{layer}.filter", (features, taps), b.format(x), Role.BUFFER)
    history = b.input(f"{layer}.history", (sequences, max(taps - 1, 1), features), b.format(x))
    y = b.activation(f"{layer}.y", (sequences, positions, features), b.format(x))
    kept = b.activation(f"{layer}.kept", b.shape(history), b.format(x))
    attrs: Attrs = (("kernels", kernels),) if kernels > 1 else ()
    flops = (2 * taps + CAUSAL_CONV.forward.flops) * b.elements(x)
    b.emit(CAUSAL_CONV, layer, (x, filters, history), (y, kept), flops=flops, attrs=attrs)
    return y


def chunked_delta_rule(
    b: GraphBuilder, layer: str, sequences: int, positions: int, heads: DeltaHeads, format_: str
) -> str:
    """Run the delta rule over whole sequences, chunk by chunk; returns the outputs."""
    if heads.values % heads.keys:
        raise RidgelineError(f"layer {layer!r}: {heads.keys} heads of keys, {heads.values} values")
    rows, size = sequences * positions, int(bytes_of(format_))
    chunk = min(heads.chunk, positions)
    chunks = sequences * -(-positions // chunk)
    kv = heads.key_size * heads.value_size
    q, k, v = (
        b.input(f"{layer}.{name}", (rows, count, features), format_)
        for name, count, features in (
            ("queries", heads.keys, heads.key_size),
            ("keys", heads.keys, heads.key_size),
            ("values", heads.values, heads.value_size),
        )
    )
    decays = heads.key_size if heads.per_feature else 1
    gates = b.input(f"{layer}.decays", (rows, heads.values, decays), MASTER)
    rates = b.input(f"{layer}.rates", (rows, heads.values), MASTER)
    before = b.input(
        f"{layer}.state", (sequences, heads.values, heads.key_size, heads.value_size), MASTER
    )
    y = b.activation(f"{layer}.y", (rows, heads.values, heads.value_size), format_)
    after = b.activation(f"{layer}.state-after", b.shape(before), MASTER)
    # What kernels hand to each other, written and read: running decays (fp32, read by four), T
    # (fp32, then narrow), W and U, the states of every chunk, U with the state taken off. Keys are
    # read three times more.
    per_row = 5 * 4 * decays + (2 * 4 + 2 * size) * chunk
    per_row += 2 * size * heads.key_size + 4 * size * heads.value_size
    handed = heads.values * (rows * per_row + chunks * 2 * size * kv)
    handed += 3 * b.elements(k) * size
    between = b.activation(f"{layer}.between", (handed // 2,), "int8")
    b.emit(
        DELTA_EXCHANGE,
        layer,
        (between,),
        (between,),
        name=f"{layer}.exchange",
        attrs=(("kernels", _CHUNK_KERNELS - 1),),
    )
    rank = _rank(heads, chunk, "delta")
    b.emit(
        DELTA_RULE,
        layer,
        (q, k, v, gates, rates, before),
        (y, after),
        loops=Gemm(chunk, heads.value_size, rank, batch=chunks * heads.values),
        flops=DELTA_RULE.forward.of(rows * heads.values * chunk),
    )
    return y


def delta_rule_step(
    b: GraphBuilder, layer: str, sequences: int, positions: int, heads: DeltaHeads, format_: str
) -> str:
    """Advance the states of some sequences by a few positions, one after the other, in one kernel.

    One position: states are read and written once. Several (the tokens that a draft proposes):
    the state behind each is written, since any of them may be the last that is accepted.
    """
    rows = sequences * positions
    shapes = (
        (rows, heads.keys, heads.key_size),
        (rows, heads.keys, heads.key_size),
        (rows, heads.values, heads.value_size),
    )
    q, k, v = (
        b.input(f"{layer}.{name}", shape, format_)
        for name, shape in zip(("queries", "keys", "values"), shapes, strict=True)
    )
    state = (sequences, heads.values, heads.key_size, heads.value_size)
    before = b.input(f"{layer}.state", state, MASTER)
    after = b.activation(f"{layer}.state-after", (positions, *state), MASTER)
    y = b.activation(f"{layer}.y", shapes[2], format_)
    flops = DELTA_STEP.forward.of(b.elements(after))
    b.emit(DELTA_STEP, layer, (q, k, v, before), (y, after), flops=flops)
    return y


StateRule = Literal["delta", "decay"]
"""How states take up a key and its value: by what they do not hold yet (the delta rule), or whole
(Lightning attention: Qin et al., 2024, arXiv:2401.04658; MiniMax-01, 2025, arXiv:2501.08313)."""


def _rank(heads: DeltaHeads, chunk: int, rule: StateRule) -> int:
    """Rank of one product [chunk, value features] with as many multiplications as a chunk's all."""
    kv, scores = heads.key_size * heads.value_size, chunk * chunk
    macs = scores * (heads.key_size + heads.value_size) + 2 * chunk * kv  # Q K', times U; Q S, K' U
    if rule == "delta":  # K K', T K, T V, W S and the inverse
        macs += scores * (2 * heads.key_size + heads.value_size) + chunk * kv + chunk * scores // 3
    return -(-macs // (chunk * heads.value_size))


def linear_attention(
    b: GraphBuilder,
    layer: str,
    inputs: tuple[str, ...],
    heads: DeltaHeads,
    rule: StateRule,
) -> str:
    """Let states of heads run over positions, as a layer that is trained.

    Parameters
    ----------
    inputs
        Queries and keys [batch, positions, keys x key size], values [batch, positions, values x
        value size]; of the delta rule also rates w [batch, positions, values] and steps [batch,
        positions, values, or values x key size], of which a = exp(-exp(decay) softplus(step +
        bias)) with trained decays of the heads and biases of the steps. States of "decay" decay by
        fixed factors.

    Returns
    -------
    [batch, positions, values x value size]. The backward pass forms W, U and the states again and
    keeps none of them (`chunk_gated_delta_rule_bwd` of the authors' kernels).
    """
    q, k, v = inputs[:3]
    n, positions, width = b.shape(v)
    if heads.values % heads.keys or width != heads.values * heads.value_size:
        raise RidgelineError(f"layer {layer!r}: {width} features and {heads} do not fit together")
    if b.shape(q) != b.shape(k) or b.shape(k)[2] != heads.keys * heads.key_size:
        raise RidgelineError(f"layer {layer!r}: queries and keys do not fit {heads}")
    chunk, size = min(heads.chunk, positions), int(bytes_of(b.format(v)))
    weights = []
    if rule == "delta":
        biases, decays = (b.shape(inputs[4])[2],), (heads.values,)
        weights.append(b.weight(f"{layer}.step-bias", biases))
        weights.append(b.weight(f"{layer}.decay", decays))
    y = b.activation(f"{layer}.y", b.shape(v), b.format(v))
    chunks = n * -(-positions // chunk)
    loops = Gemm(chunk, heads.value_size, _rank(heads, chunk, rule), batch=chunks * heads.values)
    step = b.generation is not None and b.generation.decodes
    attrs: Attrs = (
        ("heads", heads.values), ("kv-heads", heads.keys), ("state", heads.key_size),
        ("chunk", chunk), ("rule", rule), ("kernels", 1 if step else _CHUNK_KERNELS),
    )  # fmt: skip
    passes = _exchanged(heads, chunk, size, rule)
    if b.generation is not None:
        of_states = _STATE_BYTES * heads.values * heads.key_size * heads.value_size
        b.cached.append(CachedLayer(layer, heads.keys, 0, MASTER, state_bytes=of_states))
        if step:  # states are read and written, and nothing is handed on
            passes = 1 + Fraction(2 * of_states, width * size)
        if rule == "delta":
            kind = "kda" if heads.per_feature else "gdn"
            attrs = (*attrs, ("per-feature", int(heads.per_feature)), ("rule-of", kind))
            attrs = (*attrs, (LIBRARY, b.generation.library))
    flops = LINEAR_ATTENTION.forward.of(n * positions * heads.values * chunk)
    b.emit(
        LINEAR_ATTENTION,
        layer,
        (*inputs, *weights),
        (y,),
        loops=loops,
        flops=flops,
        passes=(1, 1, passes, *(1 for _ in (*inputs[3:], *weights))),
        attrs=attrs,
    )
    return y


def _exchanged(heads: DeltaHeads, chunk: int, size: int, rule: StateRule) -> Fraction:
    """How often the values' bytes are read, if all that kernels hand to each other is added.

    Of each position: W and U (delta rule), T, and the states of every chunk, written and read.
    """
    of_states = 2 * size * heads.key_size * heads.value_size // chunk
    handed = of_states
    if rule == "delta":
        handed += 2 * size * (heads.key_size + heads.value_size) + (8 + 2 * size) * chunk
    return 1 + Fraction(handed, heads.value_size * size)


def _linear_attention_gradient(g: GradientBuilder, op: Op) -> None:
    """Form W, U and the states again; every product has two gradients.

    What kernels exchange passes memory as often as products are done, three times: assumed, since
    no measured backward pass of these kernels was there to check it.
    """
    dy = g.gradient(op.outputs[0])
    assert isinstance(op.loops, Gemm)
    m, features, rank, batch = op.loops.m, op.loops.n, op.loops.k, op.loops.batch
    scores = g.elements(dy) // features * m  # rows of all heads, times the positions of a chunk
    g.derive(
        LINEAR_ATTENTION,
        op,
        tuple(filter(g.wants, op.inputs)),
        (dy, *op.inputs),
        loops=Gemm(m, features, 3 * rank, batch),
        flops=LINEAR_ATTENTION.gradient.of(scores),
        passes=(2, 2, 2, 3 * op.input_passes[2], *(1 for _ in op.inputs[3:])),
        attrs=(*((k, v) for k, v in op.attrs if k != "kernels"), ("kernels", 2 * _CHUNK_KERNELS)),
        recomputed_flops=2 * op.loops.macs,
    )


def causal_filter(b: GraphBuilder, layer: str, x: str, taps: int, *, bias: bool, silu: bool) -> str:
    """Filter each feature of x [batch, positions, features] over time by trained taps, then silu.

    The trained form of `causal_conv1d`: no state comes in or goes out.
    """
    features = b.shape(x)[2]
    names = (("filter", (features, taps)), ("filter-bias", (features,)))[: 1 + bias]
    weights = [b.cast(b.weight(f"{layer}.{n}", of), b.format(x), layer) for n, of in names]
    y = b.activation(f"{layer}.y", b.shape(x), b.format(x))
    per_element = 2 * taps + CAUSAL_FILTER.forward.flops * silu
    attrs: Attrs = (("taps", taps), ("silu", int(silu)))
    before: int | Fraction = 0
    if b.generation is not None:  # the positions before are read, and the last ones are kept
        before = Fraction(2 * (taps - 1), b.shape(x)[1])
        b.cached.append(
            CachedLayer(
                layer, features, 0, b.format(x),
                state_bytes=(taps - 1) * features * bytes_of(b.format(x)),
            )
        )  # fmt: skip
    b.emit(
        CAUSAL_FILTER,
        layer,
        (x, *weights),
        (y,),
        flops=per_element * b.elements(x),
        passes=(1 + before, *(1 for _ in weights)),
        attrs=attrs,
    )
    return y


def _causal_filter_gradient(g: GradientBuilder, op: Op) -> None:
    """Filter again where silu follows; gradients of what is filtered and of the taps."""
    dy, attrs = g.gradient(op.outputs[0]), dict(op.attrs)
    silu = int(attrs["silu"])
    per_element = (4 + 2 * silu) * int(attrs["taps"]) + CAUSAL_FILTER.gradient.flops * silu
    g.derive(
        CAUSAL_FILTER,
        op,
        tuple(filter(g.wants, op.inputs)),
        (dy, *op.inputs),
        flops=per_element * g.elements(dy),
    )


def _linear_attention_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """Q, k, v, rates, steps [b, s, H], weights [H] -> y [b, s, H]; a unit is a head of keys."""
    rows = ("b", "", "H")
    inputs = tuple(rows if len(tensors[name].shape) == 3 else ("H",) for name in op.inputs)
    units = {"H": int(dict(op.attrs)["kv-heads"])}
    loops = {"b": ("batch",), "H": ("batch",)}
    return OpAxes(inputs, (rows,), units, loops, strict=frozenset({"H"}))


def _causal_filter_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """X [b, s, f], taps [f, taps], bias [f] -> y [b, s, f]; positions read those before them."""
    rows = ("b", "", "f")
    weights = tuple(("f", *("" for _ in tensors[name].shape[1:])) for name in op.inputs[1:])
    return OpAxes((rows, *weights), (rows,))


LINEAR_ATTENTION = op_kind(
    "linear-attention",
    forward=Cost(
        4, "score of a head inside a chunk", "difference of decays, exp, times K K' and Q K'"
    ),
    gradient=Cost(
        12, "score of a head inside a chunk", "the same again, and for the gradients of both"
    ),
    sharding=_linear_attention_sharding,
)(_linear_attention_gradient)
CAUSAL_FILTER = op_kind(
    "causal-filter",
    forward=Cost(5, "element", "silu, where there is one; and 2 taps for the filter"),
    gradient=Cost(
        14, "element", "silu again and its gradient; 4 taps for the filter's, 2 to filter"
    ),
    sharding=_causal_filter_sharding,
)(_causal_filter_gradient)
CAUSAL_CONV = op_kind(
    "causal-conv1d", forward=Cost(6, "element", "bias, silu; and 2 taps for the filter")
)(None)
DELTA_RULE = op_kind(
    "delta-rule",
    forward=Cost(
        4, "score of a head inside a chunk", "difference of decays, exp, times K K' and Q K'"
    ),
)(None)
DELTA_EXCHANGE = op_kind("delta-rule-exchange")(None)
"""What the kernels of a chunked delta rule hand to each other, and their launches."""
DELTA_STEP = op_kind(
    "delta-rule-step",
    forward=Cost(
        7,
        "element of a state",
        "decay (1); product with the key (2); an outer product added (2); with the query (2)",
    ),
)(None)
