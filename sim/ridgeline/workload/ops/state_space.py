"""State-space layers of Mamba-2, as one op and its gated norm.

Dao and Gu, Transformers are SSMs, ICML 2024, arXiv:2405.21060. Of every head the state [size,
features] decays and takes up an outer product at each position: with x, B and C behind a short
causal convolution and silu, and with d = softplus(dt + bias),

    state <- exp(-d exp(A)) state + d B x';    y = C state + D x.

Groups of heads share B and C. Section 6 forms it chunk by chunk, by products: C B' inside a chunk,
these times x, the state that a chunk adds, and C times the state before it. What the op costs is
that of its authors' kernels (state-spaces/mamba, ops/triton/ssd_combined.py, called with the
convolution as in `mamba_split_conv1d_scan_combined`): scores of chunks and states pass through
memory, and the backward pass forms both again, and the convolution, so that only the op's inputs
and its output are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from ridgeline.errors import RidgelineError
from ridgeline.workload.builder import Attrs, GradientBuilder, GraphBuilder
from ridgeline.workload.formats import bytes_of
from ridgeline.workload.generation_step import CachedLayer
from ridgeline.workload.graph import Gemm, Op
from ridgeline.workload.kinds import Cost, op_kind
from ridgeline.workload.numerics import MASTER
from ridgeline.workload.sharding_axes import OpAxes, Tensors

_KERNELS, _BACKWARD_KERNELS = 6, 16
_WIDE = 4  # bytes of scores and states, which are in fp32


@dataclass(frozen=True)
class StateSpaceSizes:
    """Extents of a state-space layer.

    Attributes
    ----------
    heads, size
        Heads, and features of each.
    groups, state
        Groups of heads that share B and C, and the features of a group's.
    chunk
        Positions that are formed together.
    """

    heads: int
    size: int
    groups: int
    state: int
    chunk: int

    @property
    def inner(self) -> int:
        """Features of all heads."""
        return self.heads * self.size

    @property
    def mixed(self) -> int:
        """Features of x, B and C side by side."""
        return self.inner + 2 * self.groups * self.state


def state_space(
    b: GraphBuilder,
    layer: str,
    mixed: str,
    steps: str,
    sizes: StateSpaceSizes,
    taps: int,
    *,
    bias: bool = True,
) -> str:
    """Let states of heads run over positions; returns [batch, positions, heads x size].

    Parameters
    ----------
    mixed
        X, B and C side by side, before their convolution; [batch, positions,
        `StateSpaceSizes.mixed`].
    steps
        What d is made of; [batch, positions, heads].
    taps
        Positions that the convolution of every feature reads.
    bias
        Whether the convolution adds a bias.
    """
    n, positions, width = b.shape(mixed)
    if width != sizes.mixed or b.shape(steps)[2] != sizes.heads or sizes.heads % sizes.groups:
        raise RidgelineError(f"layer {layer!r}: {width} features and {sizes} do not fit together")
    heads = (sizes.heads,)
    weights = (
        b.cast(b.weight(f"{layer}.filter", (width, taps)), b.numerics.compute, layer),
        *(
            b.cast(b.weight(f"{layer}.{name}", (width,)), b.numerics.compute, layer)
            for name in ("filter-bias",) * bias
        ),
        *(b.weight(f"{layer}.{name}", heads) for name in ("step-bias", "decay", "skip")),
    )
    y = b.activation(f"{layer}.y", (n, positions, sizes.inner), b.numerics.compute)
    chunk = min(sizes.chunk, positions)
    attrs: Attrs = (
        ("heads", sizes.heads), ("groups", sizes.groups), ("state", sizes.state),
        ("chunk", chunk), ("kernels", _KERNELS),
    )  # fmt: skip
    size = int(bytes_of(b.format(mixed)))
    # convolution: read, write; then x by two kernels, B and C by two each
    streams = 4 * width * size + _scan_streams(sizes, chunk, size)
    if b.generation is not None:
        of_states = _WIDE * sizes.inner * sizes.state
        kept = of_states + (taps - 1) * width * size
        b.cached.append(CachedLayer(layer, sizes.groups, 0, MASTER, state_bytes=kept))
        if b.generation.decodes:  # two kernels, which read and write the states alone
            streams = 2 * width * size + 2 * kept
            attrs = (*attrs[:-1], ("kernels", 2))
    scores = sizes.heads * chunk
    b.emit(
        STATE_SPACE,
        layer,
        (mixed, steps, *weights),
        (y,),
        loops=_loops(n * -(-positions // chunk), sizes, chunk, 1, 2, 1),
        flops=n * positions * (STATE_SPACE.forward.of(scores) + (2 * taps + 6) * width),
        passes=(Fraction(streams, width * size), *(1 for _ in range(len(weights) + 1))),
        attrs=attrs,
    )
    return y


def chunk_scan(
    b: GraphBuilder,
    layer: str,
    sequences: int,
    positions: int,
    sizes: StateSpaceSizes,
    format_: str,
) -> str:
    """Let states of heads run over positions, without the convolution before; forward kernels.

    `state_space` less its convolution, as `mamba_chunk_scan_combined` runs it: one op of products,
    and one of what its kernels hand to each other.
    """
    rows, size = sequences * positions, int(bytes_of(format_))
    chunk = min(sizes.chunk, positions)
    x, steps = (
        b.input(f"{layer}.{name}", (sequences, positions, features), format_)
        for name, features in (("mixed", sizes.mixed), ("steps", sizes.heads))
    )
    weights = tuple(
        b.buffer(f"{layer}.{name}", (sizes.heads,)) for name in ("step-bias", "decay", "skip")
    )
    y = b.activation(f"{layer}.y", (sequences, positions, sizes.inner), format_)
    # x, B and C once more, besides what the products read
    streams = rows * (sizes.mixed * size + _scan_streams(sizes, chunk, size))
    between = b.activation(f"{layer}.between", (streams // 2,), "int8")
    b.emit(
        SCAN_EXCHANGE,
        layer,
        (between,),
        (between,),
        name=f"{layer}.exchange",
        attrs=(("kernels", _KERNELS - 2),),
    )
    b.emit(
        STATE_SPACE,
        layer,
        (x, steps, *weights),
        (y,),
        loops=_loops(sequences * -(-positions // chunk), sizes, chunk, 1, 2, 1),
        flops=rows * STATE_SPACE.forward.of(sizes.heads * chunk),
        attrs=(("chunk", chunk),),
    )
    return y


def _scan_streams(sizes: StateSpaceSizes, chunk: int, size: int) -> int:
    """Bytes a position of what kernels hand to each other: states, scores of chunks, decays."""
    streams = sizes.inner * sizes.state // chunk * (2 * _WIDE + 2 * size)
    return streams + 2 * sizes.groups * chunk * _WIDE + 6 * sizes.heads * _WIDE


def _loops(
    chunks: int, sizes: StateSpaceSizes, chunk: int, inside: int, states: int, scores: int
) -> Gemm:
    """Products of a head: over positions of its chunk, over its state, and those of B and C."""
    k = inside * chunk + states * sizes.state
    k += scores * -(-sizes.groups * chunk * sizes.state // sizes.inner)
    return Gemm(chunk, sizes.size, k, batch=chunks * sizes.heads)


def gated_norm(
    b: GraphBuilder, layer: str, x: str, gate: str, groups: int, *, epsilon: float = 1e-5
) -> str:
    """RMS norm of x silu(gate) within groups of features, then scale, by one op."""
    *rows, features = b.shape(x)
    if features % groups or b.shape(gate) != b.shape(x):
        raise RidgelineError(f"layer {layer!r}: {groups} groups of {features} features")
    y = b.activation(f"{layer}.y", b.shape(x), b.format(x))
    saved = b.activation(f"{layer}.inverse-deviation", (*rows, groups), MASTER)
    b.emit(
        GATED_NORM,
        layer,
        (x, gate, b.weight(f"{layer}.weight", (features,))),
        (y, saved),
        flops=GATED_NORM.forward.of(b.elements(x)),
        attrs=(("epsilon", epsilon), ("heads", groups)),
    )
    return y


def _state_space_gradient(g: GradientBuilder, op: Op) -> None:
    """Form scores and states again; then the gradients of both, of x, B and C, and of the decays.

    Kernels besides the convolution, its repetition and its gradient: see `ssd_combined.py`,
    `_mamba_chunk_scan_combined_bwd`.
    """
    mixed, filters = op.inputs[0], op.inputs[2]
    dy, attrs = g.gradient(op.outputs[0]), dict(op.attrs)
    heads, groups, state, chunk = (
        int(attrs[name]) for name in ("heads", "groups", "state", "chunk")
    )
    n, positions, inner = g.shape(dy)
    sizes = StateSpaceSizes(heads, inner // heads, groups, state, chunk)
    size, taps, rows = int(bytes_of(g.format(mixed))), g.shape(filters)[1], n * positions
    # the convolution again and its gradient: three times read and written; x by five kernels, B and
    # C by four each; states and their gradients: seven times in fp32, and five narrow
    streams = 5 * sizes.mixed + 5 * inner + 8 * groups * state
    bytes_ = streams * size + inner * state // chunk * (6 * _WIDE + 5 * size)
    bytes_ += 6 * groups * chunk * _WIDE + 12 * heads * _WIDE
    loops = _loops(n * -(-positions // chunk), sizes, chunk, 3, 5, 3)
    again = _loops(n * -(-positions // chunk), sizes, chunk, 1, 1, 1)
    wanted = tuple(filter(g.wants, op.inputs))
    g.derive(
        STATE_SPACE,
        op,
        wanted,
        (dy, *op.inputs),
        loops=loops,
        flops=rows * (STATE_SPACE.gradient.of(heads * chunk) + (6 * taps + 20) * sizes.mixed),
        passes=(5, Fraction(bytes_, sizes.mixed * size), *(1 for _ in op.inputs[1:])),
        attrs=(*((k, v) for k, v in op.attrs if k != "kernels"), ("kernels", _BACKWARD_KERNELS)),
        recomputed_flops=2 * again.macs,
    )


def _gated_norm_gradient(g: GradientBuilder, op: Op) -> None:
    (x, gate, weight), (y, saved) = op.inputs, op.outputs
    wanted = tuple(filter(g.wants, op.inputs))
    inputs = (g.gradient(y), x, gate, weight, saved)
    g.derive(GATED_NORM, op, wanted, inputs, flops=GATED_NORM.gradient.of(g.elements(x)))


def _state_space_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """X, B and C [b, s, H], steps [b, s, H], weights [H] -> y [b, s, H]; a unit is a group."""
    rows = ("b", "", "H")
    weights = tuple(("H", *("" for _ in tensors[name].shape[1:])) for name in op.inputs[2:])
    units = {"H": int(dict(op.attrs)["groups"])}
    loops = {"b": ("batch",), "H": ("batch",)}
    return OpAxes((rows, rows, *weights), (rows,), units, loops, strict=frozenset({"H"}))


def _gated_norm_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """X, gate [b, s, H], weight [H] -> y [b, s, H] and a statistic for each group."""
    rows = ("b", "s", "H")
    units = {"H": int(dict(op.attrs)["heads"])}
    return OpAxes((rows, rows, ("H",)), (rows, rows), units, strict=frozenset({"H"}))


STATE_SPACE = op_kind(
    "state-space",
    forward=Cost(
        4,
        "score of a head inside a chunk",
        "difference of decays, exp, times C B', times d; and 2 taps + 6 for each element that"
        " is convolved: filter, bias, silu",
    ),
    gradient=Cost(
        13,
        "score of a head inside a chunk",
        "the same for x, for C B' and for the decays (4 each), sums of these (1); and 6 taps +"
        " 20 for each element: convolved again, its gradient, those of the filter",
    ),
    sharding=_state_space_sharding,
)(_state_space_gradient)
SCAN_EXCHANGE = op_kind("scan-exchange")(None)
"""What the kernels of a scan hand to each other, and their launches."""
GATED_NORM = op_kind(
    "gated-norm",
    forward=Cost(10, "element", "x silu(gate) (6); its RMS norm (4)"),
    gradient=Cost(
        22, "element", "x silu(gate) again (6); gradient of the norm (9); of the gate (7)"
    ),
    sharding=_gated_norm_sharding,
)(_gated_norm_gradient)
