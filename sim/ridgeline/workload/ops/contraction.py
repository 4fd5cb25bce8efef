"""Convolutions and matrix products with weights, and their biases.

The first two inputs of every op with `loops` are the operands A and B of its product; further
inputs are streamed once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ridgeline.errors import RidgelineError
from ridgeline.workload.adapters import part_names
from ridgeline.workload.builder import Attrs, GradientBuilder, GraphBuilder
from ridgeline.workload.graph import Conv, Gemm, Op
from ridgeline.workload.kinds import Cost, OpKind, op_kind
from ridgeline.workload.numerics import NARROW_MULTIPLE
from ridgeline.workload.ops.elementwise import add, dropout
from ridgeline.workload.ops.shape import gather_gradients
from ridgeline.workload.ops.window import Pair, check, image, pair
from ridgeline.workload.sharding_axes import (
    COLUMNS,
    EXPERT_ROWS,
    EXPERTS,
    ROWS,
    Labels,
    OpAxes,
    Tensors,
    Window,
    whole,
)
from ridgeline.workload.sharding_rules import (
    elementwise_sharding,
    filter_labels,
    flat_lead,
    image_labels,
    is_channels_last,
    plain_labels,
    shapes_of,
)


def conv2d(
    b: GraphBuilder,
    layer: str,
    x: str,
    filters: int,
    kernel: Pair,
    *,
    stride: Pair = 1,
    padding: Pair = 0,
    dilation: Pair = 1,
    groups: int = 1,
    bias: bool = True,
    weights_of: str | None = None,
) -> str:
    """2-D convolution (cross-correlation) with weights [filters, channels / groups, r, s].

    Parameters
    ----------
    weights_of
        An earlier layer whose weights and bias it uses, too.
    """
    n, c, h, w = image(layer, b.shape(x))
    (r, s), dilated = pair(kernel), pair(dilation)
    if c % groups or filters % groups:
        raise RidgelineError(
            f"layer {layer!r}: {groups} groups do not divide {c} channels and {filters} filters"
        )
    reach = (dilated[0] * (r - 1) + 1, dilated[1] * (s - 1) + 1)
    check(layer, (h, w), reach, pair(padding))
    loops = Conv(n, c, h, w, filters, r, s, pair(stride), pair(padding), dilated, groups)
    of_weight = (filters, c // groups, r, s)
    if weights_of is None:
        weight = b.weight(f"{layer}.weight", of_weight)
    elif b.shape(weight := f"{weights_of}.weight") != of_weight:
        raise RidgelineError(f"layer {layer!r}: the weights of {weights_of!r} do not fit")
    shape = (n, filters, loops.h_out, loops.w_out)
    (y,) = contract(b, CONV2D, layer, x, weight, [shape], loops)
    if bias:
        y = add_bias(b, layer, y, axis=1, shared=weights_of and f"{weights_of}.bias")
    return adapted_image(b, layer, x, y, loops) if weights_of is None else y


def conv_transpose2d(
    b: GraphBuilder,
    layer: str,
    x: str,
    filters: int,
    kernel: Pair,
    *,
    stride: Pair = 1,
    padding: Pair = 0,
    bias: bool = True,
) -> str:
    """Transposed convolution with weights [channels, filters, r, s]: every pixel adds a window.

    Its loops are those of the matrix product [pixels, channels] x [channels, filters r s] that
    makes the windows (Dumoulin and Visin, 2016, arXiv:1603.07285, Section 4); adding up windows
    that overlap is not counted, as in a convolution's gradient.
    """
    n, c, h, w = image(layer, b.shape(x))
    (r, s), (u, v), (p, q) = pair(kernel), pair(stride), pair(padding)
    shape = (n, filters, (h - 1) * u + r - 2 * p, (w - 1) * v + s - 2 * q)
    if min(shape) < 1:
        raise RidgelineError(f"layer {layer!r}: nothing is left of {h} x {w} pixels")
    weight = b.weight(f"{layer}.weight", (c, filters, r, s))
    attrs = (("stride_h", u), ("stride_w", v), ("padding_h", p), ("padding_w", q))
    loops = Gemm(n * h * w, filters * r * s, c)
    (y,) = contract(b, CONV_TRANSPOSE2D, layer, x, weight, [shape], loops, attrs)
    return add_bias(b, layer, y, axis=1) if bias else y


def linear(
    b: GraphBuilder, layer: str, x: str, features: int, *, bias: bool = True, flatten: bool = False
) -> str:
    """Product of the last axis of `x` with weights [features, k].

    Parameters
    ----------
    flatten
        Take all axes but the first as one: images as vectors.
    """
    k = math.prod(b.shape(x)[1:]) if flatten else b.shape(x)[-1]
    weight = b.weight(f"{layer}.weight", (features, k), matrix_of=layer)
    y = product(b, layer, x, weight, flatten=flatten)
    y = add_bias(b, layer, y, axis=-1) if bias else y
    return adapted(b, layer, x, (y,), k)[0]


def fused_linear(
    b: GraphBuilder, layer: str, x: str, features: Sequence[int], *, bias: bool = True
) -> tuple[str, ...]:
    """Several linear layers of one input as one matrix product, with one output and bias each.

    In the backward pass the outputs' gradients are first copied side by side.
    """
    *lead, k = b.shape(x)
    weight = b.weight(f"{layer}.weight", (sum(features), k), matrix_of=layer)
    loops = Gemm(math.prod(lead), sum(features), k)
    ys = contract(b, GEMM, layer, x, weight, [(*lead, n) for n in features], loops)
    if bias:
        ys = tuple(add_bias(b, layer, y, axis=-1, name=f"bias{i}") for i, y in enumerate(ys))
    return adapted(b, layer, x, ys, k)


def adapted(
    b: GraphBuilder, layer: str, x: str, ys: tuple[str, ...], k: int, experts: int = 1
) -> tuple[str, ...]:
    """Add to the outputs of a linear layer what its adapters of low rank give, if it has some.

    Parameters
    ----------
    k
        Features that the layer reads of every row.
    experts
        How many layers of equal size it is, each with weights and adapters of its own.
    """
    b.adaptable[layer] = len(ys)
    if b.adapters is None or layer not in b.adapters.parts:
        return ys
    chosen = b.adapters.parts[layer]
    if not chosen:
        return _with_adapter(b, layer, x, ys, (k, experts))
    names = part_names(layer, len(ys))
    return tuple(
        _with_adapter(b, names[i], x, (y,), (k, experts))[0] if i in chosen else y
        for i, y in enumerate(ys)
    )


def _with_adapter(
    b: GraphBuilder, layer: str, x: str, ys: tuple[str, ...], sizes: tuple[int, int]
) -> tuple[str, ...]:
    assert b.adapters is not None
    down, up = f"{layer}.adapter-down", f"{layer}.adapter-up"
    rank, features, (k, experts) = b.adapters.adapters.rank, [b.shape(y)[-1] for y in ys], sizes
    if b.adapters.adapters.dropout:
        x = dropout(b, f"{layer}.adapter-dropout", x, b.adapters.adapters.dropout)
    own = () if experts == 1 else (experts,)
    lead = b.shape(ys[0])[:-1]
    rows = math.prod(lead) // experts
    weight = b.weight(f"{down}.weight", (*own, rank, k), adapts=True)
    loops = Gemm(rows, rank, k, experts)
    (x,) = contract(b, GEMM, down, x, weight, [(*lead, rank)], loops)
    weight = b.weight(f"{up}.weight", (*own, sum(features), rank), adapts=True)
    loops = Gemm(rows, sum(features), rank, experts)
    more = contract(b, GEMM, up, x, weight, [b.shape(y) for y in ys], loops)
    sums = [f"{layer}.add-adapter{i}" for i in range(len(ys))]
    return tuple(add(b, name, y, z) for name, y, z in zip(sums, ys, more, strict=True))


def adapted_image(b: GraphBuilder, layer: str, x: str, y: str, loops: Conv) -> str:
    """Add to the output of a convolution what its adapter gives: such a window, then 1 x 1."""
    if loops.groups > 1 or loops.taps > 1:
        return y  # nothing is published of adapters beside these
    b.adaptable[layer] = 0
    if b.adapters is None or layer not in b.adapters.parts:
        return y
    rank, shape = b.adapters.adapters.rank, b.shape(y)
    down, up = f"{layer}.adapter-down", f"{layer}.adapter-up"
    if b.adapters.adapters.dropout:
        x = dropout(b, f"{layer}.adapter-dropout", x, b.adapters.adapters.dropout)
    windows = replace(loops, c_out=rank)
    weight = b.weight(f"{down}.weight", (rank, loops.c_in, loops.r, loops.s), adapts=True)
    (x,) = contract(b, CONV2D, down, x, weight, [(shape[0], rank, *shape[2:])], windows)
    weight = b.weight(f"{up}.weight", (loops.c_out, rank, 1, 1), adapts=True)
    points = Conv(loops.batch, rank, loops.h_out, loops.w_out, loops.c_out, 1, 1)
    (more,) = contract(b, CONV2D, up, x, weight, [shape], points)
    return add(b, f"{layer}.add-adapter", y, more)


def product(
    b: GraphBuilder,
    layer: str,
    x: str,
    weight: str,
    *,
    flatten: bool = False,
    narrow: bool = True,
) -> str:
    """`linear` with weights [features, k] that are already there, as those of tied embeddings.

    Parameters
    ----------
    narrow
        Whether it is done in the narrow format of the precision, if that has one.
    """
    (features, k), shape = b.shape(weight), b.shape(x)
    lead = shape[:1] if flatten else shape[:-1]
    if math.prod(shape) != math.prod(lead) * k:
        raise RidgelineError(f"layer {layer!r}: {list(shape)} does not end in {k} features")
    loops = Gemm(math.prod(lead), features, k)
    (y,) = contract(b, GEMM, layer, x, weight, [(*lead, features)], loops, narrow=narrow)
    return y


def expert_linears(b: GraphBuilder, layer: str, x: str, features: Sequence[int]) -> tuple[str, ...]:
    """`fused_linear` with other weights for each expert: x [experts, tokens, k]."""
    experts, tokens, k = b.shape(x)
    weight = b.weight(f"{layer}.weight", (experts, sum(features), k), matrix_of=layer)
    loops = Gemm(tokens, sum(features), k, batch=experts)
    ys = contract(b, GEMM, layer, x, weight, [(experts, tokens, n) for n in features], loops)
    return adapted(b, layer, x, ys, k, experts)


def add_bias(
    b: GraphBuilder,
    layer: str,
    x: str,
    *,
    axis: int,
    name: str = "bias",
    shared: str | None = None,
) -> str:
    """Add a trained vector along one axis, in place: a new one, or one that is already there."""
    axis %= len(b.shape(x))
    vector = shared or b.weight(f"{layer}.{name}", (b.shape(x)[axis],))
    weight = b.cast(vector, b.format(x), layer)
    op_name = f"{layer}.add-{name}"
    y = b.activation(f"{op_name}.y", b.shape(x), b.format(x))
    b.emit(
        BIAS,
        layer,
        (x, weight),
        (y,),
        name=op_name,
        flops=BIAS.forward.of(b.elements(y)),
        in_place=True,
        attrs=(("axis", axis),),
    )
    return y


def contract(
    b: GraphBuilder,
    kind: OpKind,
    layer: str,
    x: str,
    weight: str,
    shapes: Sequence[tuple[int, ...]],
    loops: Gemm | Conv,
    attrs: Attrs = (),
    *,
    narrow: bool = True,
) -> tuple[str, ...]:
    """Write one product with weights, whose outputs have `shapes`, in the compute format."""
    compute = b.numerics.compute
    x, weight = operands(b, layer, kind, x, weight, loops, narrow=narrow)
    names = [f"{layer}.y"] if len(shapes) == 1 else [f"{layer}.y{i}" for i in range(len(shapes))]
    ys = tuple(
        b.activation(name, shape, compute) for name, shape in zip(names, shapes, strict=True)
    )
    b.emit(kind, layer, (x, weight), ys, loops=loops, attrs=attrs)
    return ys


def operands(
    b: GraphBuilder,
    layer: str,
    kind: OpKind,
    x: str,
    weight: str,
    loops: Gemm | Conv,
    *,
    narrow: bool = True,
) -> tuple[str, str]:
    """Return the operands of a contraction in the format that the precision multiplies in."""
    if b.packed(weight):
        return b.cast(x, b.numerics.compute, layer), weight
    if narrow and _may_be_narrow(b, kind, loops):
        return b.quantise(x, layer), b.quantise(weight, layer)
    compute = b.numerics.compute
    return b.cast(x, compute, layer), b.cast(weight, compute, layer)


def _may_be_narrow(b: GraphBuilder, kind: OpKind, loops: Gemm | Conv) -> bool:
    """Tell whether a contraction can be done in the narrow format of the precision."""
    if b.numerics.narrow is None or kind.name != "gemm" or not isinstance(loops, Gemm):
        return False
    rows = NARROW_MULTIPLE if b.generation else loops.m  # programs that generate fill rows up
    return all(size % NARROW_MULTIPLE == 0 for size in (rows, loops.n, loops.k))


def _conv2d_gradient(g: GradientBuilder, op: Op) -> None:
    (x, weight), dy = op.inputs, g.gradient(op.outputs[0])
    if g.wants(x):
        g.derive(CONV2D, op, (x,), (dy, weight), loops=op.loops)
    if g.wants(weight):
        g.derive(CONV2D, op, (weight,), (dy, x), loops=op.loops)


def _gemm_gradient(g: GradientBuilder, op: Op) -> None:
    (x, weight), dy = op.inputs, gather_gradients(g, op)
    assert isinstance(op.loops, Gemm)
    if g.numerics.narrow is not None and g.format(x) == g.numerics.narrow.forward:
        dy = g.quantise_gradient(dy, op.layer)
    m, n, k, batch = op.loops.m, op.loops.n, op.loops.k, op.loops.batch
    if g.wants(x):  # dx [m, k] = dy [m, n] w [n, k]
        g.derive(GEMM, op, (x,), (dy, weight), loops=Gemm(m, k, n, batch))
    if g.wants(weight):  # dw [n, k] = dy' [n, m] x [m, k]
        g.derive(GEMM, op, (weight,), (dy, x), loops=Gemm(n, k, m, batch))


def _conv_transpose2d_gradient(g: GradientBuilder, op: Op) -> None:
    (x, weight), dy = op.inputs, g.gradient(op.outputs[0])
    assert isinstance(op.loops, Gemm)
    m, n, k, groups = op.loops.m, op.loops.n, op.loops.k, op.loops.batch
    if g.wants(x):  # dx [m, k] = windows of dy [m, n] w' [n, k]
        g.derive(CONV_TRANSPOSE2D, op, (x,), (dy, weight), loops=Gemm(m, k, n, groups))
    if g.wants(weight):  # dw [k, n] = x' [k, m] windows of dy [m, n]
        g.derive(CONV_TRANSPOSE2D, op, (weight,), (x, dy), loops=Gemm(k, n, m, groups))


def _bias_gradient(g: GradientBuilder, op: Op) -> None:
    (x, weight), dy = op.inputs, g.gradient(op.outputs[0])
    if g.wants(x):
        g.give(x, dy, op.layer)
    if g.wants(weight):
        g.derive(BIAS, op, (weight,), (dy,), flops=BIAS.gradient.of(g.elements(dy)))


def _gemm_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """X [..., k] w [n, k] -> y [..., n], or several; experts [e, t, k] [e, n, k]."""
    (x, w), ys = shapes_of(op, tensors)
    if not isinstance(op.loops, Gemm):
        return whole(op, tensors)
    if len(w) == 3:
        return OpAxes(
            ((EXPERTS, EXPERT_ROWS, "k"), (EXPERTS, "n", "k")),
            ((EXPERTS, EXPERT_ROWS, "n"),) * len(ys),
            loops={EXPERTS: ("batch",), EXPERT_ROWS: ("m",), "n": ("n",), "k": ("k",)},
        )
    if is_channels_last((*ys[0][:-1], w[-1]), x):
        lead = plain_labels(len(ys[0]) - 1)
        return OpAxes(
            ((lead[0], "k", *lead[1:]), ("n", "k")),
            ((*lead, "n"),) * len(ys),
            {"n": math.gcd(*[y[-1] for y in ys])} if len(ys) > 1 else {},
            {"n": ("n",), "k": ("k",), **dict.fromkeys(lead, ("m",))},
        )
    few = len(x)  # dimensions of rows: those before the features of one
    while few and math.prod(x[few - 1 :]) <= w[-1]:
        few -= 1
        if x[:few] == ys[0][:-1] and math.prod(x[few:]) == w[-1]:
            break  # positions of which there is one are rows, too
    lead = plain_labels(len(ys[0]) - 1)
    rows, units = lead, {}
    if x[:few] != ys[0][:-1]:  # the same rows, written as one dimension or several
        lead, rows = flat_lead(len(ys[0]) - 1), flat_lead(few)
        units["d0"] = math.gcd(x[0], ys[0][0])
    features: Labels = ("k", *("" for _ in x[few + 1 :]))
    if len(features) > 1:
        units["k"] = x[few]
    if len(ys) > 1:
        units["n"] = math.gcd(*[y[-1] for y in ys])
    loops = {"n": ("n",), "k": ("k",), **dict.fromkeys(filter(None, lead), ("m",))}
    return OpAxes(((*rows, *features), ("n", "k")), ((*lead, "n"),) * len(ys), units, loops)


def _bias_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """Add a vector along one axis."""
    labels = plain_labels(len(tensors[op.inputs[0]].shape))
    axis = int(dict(op.attrs)["axis"])
    return OpAxes((labels, (labels[axis],)), (labels,))


def _conv2d_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """X [b, c, h, w] w [o, c, r, s] -> y [b, o, p, q], or volumes; groups go together."""
    assert isinstance(op.loops, Conv)
    x, w, y = (tensors[name].shape for name in (*op.inputs, *op.outputs))
    windows = _conv_windows(op.loops, x) if len(x) > 3 else {}
    if op.loops.groups > 1:
        return OpAxes(
            (image_labels(x, "g"), filter_labels(w, "g", "")),
            (image_labels(y, "g"),),
            {"g": op.loops.groups},
            {"b": ("batch",), "g": ("groups", "c_in", "c_out")},
            windows=windows,
        )
    return OpAxes(
        (image_labels(x, "c"), filter_labels(w, "o", "c")),
        (image_labels(y, "o"),),
        loops={"b": ("batch",), "o": ("c_out",), "c": ("c_in",)},
        windows=windows,
    )


def _conv_windows(loops: Conv, x: tuple[int, ...]) -> dict[str, Window]:
    """Windows of a convolution; unequal padding is part of the image that its loops read."""
    sizes = (loops.h_in, loops.w_in)
    found = {}
    for axis, label in enumerate((ROWS, COLUMNS)):
        before = loops.padding[axis] + (sizes[axis] - x[axis - 2]) // 2
        kernel = (loops.r, loops.s)[axis]
        found[label] = Window("slide", kernel, loops.stride[axis], before, loops.dilation[axis])
    return found


def _conv_transpose2d_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """X [b, c, h, w] w [c, o, r, s] -> y [b, o, p, q], or volumes."""
    x, w, y = (tensors[name].shape for name in (*op.inputs, *op.outputs))
    return OpAxes(
        (image_labels(x, "c"), filter_labels(w, "c", "o")),
        (image_labels(y, "o"),),
        loops={"b": ("m",), "o": ("n",), "c": ("k",), ROWS: ("m",), COLUMNS: ("m",)},
        windows={
            label: _spreading(w[axis], x[axis], y[axis])
            for axis, label in ((-2, ROWS), (-1, COLUMNS))
            if len(x) > 3
        },
    )


def _spreading(kernel: int, n_in: int, n_out: int) -> Window:
    """Window of a transposed convolution: of its stride and padding the sizes leave one choice.

    ``n_out = (n_in - 1) stride + kernel - 2 padding``, and the stride is how many times larger the
    output is.
    """
    stride = max(1, round(n_out / n_in))
    padding = max(0, ((n_in - 1) * stride + kernel - n_out) // 2)
    return Window("spread", kernel, stride, padding)


CONV2D = op_kind("conv2d", sharding=_conv2d_sharding)(_conv2d_gradient)
CONV_TRANSPOSE2D = op_kind("conv-transpose2d", sharding=_conv_transpose2d_sharding)(
    _conv_transpose2d_gradient
)
GEMM = op_kind("gemm", sharding=_gemm_sharding)(_gemm_gradient)
BIAS = op_kind(
    "bias",
    forward=Cost(1, "output element", "an addition"),
    gradient=Cost(1, "output element", "an addition into the sum over the batch"),
    sharding=_bias_sharding,
)(_bias_gradient)
UNPACK = op_kind(
    "unpack",
    forward=Cost(2, "element", "a conversion, and a multiplication by the scale of its block"),
    sharding=elementwise_sharding,
)(None)
