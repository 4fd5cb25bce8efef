"""Linear attention: the kernels of gated delta rules, and the causal convolution before them.

Yang, Kautz and Hatamizadeh, Gated Delta Networks, ICLR 2025, arXiv:2412.06464; Kimi Team, Kimi
Linear, 2025, arXiv:2510.26692 (KDA: a decay for every feature of a key). A head has a state
S [key features, value features]; at each position with decay a and learning rate w

    S <- a S + w k (v - (a S)' k)';    y = S' q.

Section 3.3 of the first forms it chunk by chunk (the WY representation): with C positions a chunk,
the products K K', its triangular inverse T, T K and T V; then one chunk after the other W S, Q S,
(Q K') U and K' U. Traffic is that of the authors' kernels (fla-org/flash-linear-attention,
fla/ops/gated_delta_rule/chunk.py), which exchange T, W, U and the states through memory. These are
forward kernels of inference: they have no gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.errors import RidgelineError
from ridgeline.workload.builder import Attrs, GraphBuilder
from ridgeline.workload.formats import bytes_of
from ridgeline.workload.graph import Gemm, Role
from ridgeline.workload.kinds import Cost, op_kind
from ridgeline.workload.numerics import MASTER

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
    kv, per_chunk = heads.key_size * heads.value_size, chunk * chunk
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
    macs = 3 * per_chunk * heads.key_size + 2 * per_chunk * heads.value_size
    macs += 3 * chunk * kv + chunk * per_chunk // 3
    rank = -(-macs // (chunk * heads.value_size))
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
