"""Axis rules: the sharding axes of every op kind (see `axes`)."""

from __future__ import annotations

import math
from dataclasses import replace

from ridgeline.parallel.sharding.axes import (
    ADJUSTMENTS,
    EXPERT_ROWS,
    EXPERTS,
    GRID,
    HALO,
    Inner,
    Labels,
    Signature,
    Tensors,
    rule,
    whole,
)
from ridgeline.parallel.sharding.axis_rules_images import cut
from ridgeline.workload.graph import Gemm, Op, Pass, Role

_WITHOUT_SAMPLES = frozenset(
    {Role.WEIGHT, Role.WEIGHT_COPY, Role.WEIGHT_GRADIENT, Role.STATE, Role.BUFFER}
)


def _dims(count: int) -> Labels:
    """Labels that say nothing but which dimension it is."""
    return tuple(f"d{i}" for i in range(count))


def _shapes(op: Op, tensors: Tensors) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    return [tensors[n].shape for n in op.inputs], [tensors[n].shape for n in op.outputs]


@rule(
    *("add", "cast", "relu", "sigmoid", "tanh", "gelu", "silu", "multiply", "swiglu", "geglu"),
    *("dropout", "scale", "unscale", "quantise", "in-order"),
    *("exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "reciprocal", "square", "power"),
    *("negate", "shift", "sine", "cosine", "tangent", "hyperbolic", "arc", "erf", "softplus"),
    *("softsign", "log-sigmoid", "elu", "leaky-relu", "clamp", "hard-sigmoid", "hard-swish"),
    *("absolute", "mish", "step", "stop", "relu-squared"),
)
def elementwise(op: Op, tensors: Tensors) -> Signature:
    """All tensors have one shape, or the same rows, written as one dimension or several."""
    inputs, outputs = _shapes(op, tensors)
    if len({*inputs, *outputs}) > 1:
        return _alike_rows(op, tensors)
    labels = _dims(len(inputs[0]))
    return Signature((labels,) * len(inputs), (labels,) * len(outputs))


def _alike_rows(op: Op, tensors: Tensors) -> Signature:
    """Labels of tensors with the same rows of features, as [b s, f] and [b, s, f] have."""
    inputs, outputs = _shapes(op, tensors)
    shapes = [*inputs, *outputs]
    if len({(math.prod(shape), shape[-1:]) for shape in shapes}) > 1 or min(map(len, shapes)) < 2:
        return whole(op, tensors)
    few = math.gcd(*(shape[0] for shape in shapes))
    return Signature(
        tuple((*flat_lead(len(shape) - 1), "f") for shape in inputs),
        tuple((*flat_lead(len(shape) - 1), "f") for shape in outputs),
        {"d0": few},
    )


def flat_lead(count: int) -> Labels:
    """Labels of rows: where some tensors have them as one dimension, only samples can be told."""
    return ("d0", *("" for _ in range(count - 1)))


@rule(
    *("broadcast-add", "broadcast-multiply", "subtract", "divide", "extremum", "power-of", "atan2"),
    *("select", "interpolate-between", "compare"),
)
def broadcast(op: Op, tensors: Tensors) -> Signature:
    """Dimensions are matched from the last on; one that is broadcast stays whole."""
    inputs, (output,) = _shapes(op, tensors)
    labels = _dims(len(output))

    def of(shape: tuple[int, ...]) -> Labels:
        if _turned(shape, output):
            return (labels[0], *labels[2:], labels[1])
        if _turned(output, shape):
            return (labels[0], labels[-1], *labels[1:-1])
        last = labels[len(output) - len(shape) :]
        alike = zip(shape, output[len(output) - len(shape) :], last, strict=True)
        return tuple(label if mine == whole_ else "" for mine, whole_, label in alike)

    return Signature(tuple(map(of, inputs)), (labels,))


def _turned(last: tuple[int, ...], first: tuple[int, ...]) -> bool:
    """Whether one shape is that of images with channels last, the other of these with them first.

    Traced networks have no op for turning them: what comes next reads them in its own order.
    """
    return len(last) > 3 and last != first and last == (*first[:1], *first[2:], *first[1:2])


@rule("optimizer")
def update(op: Op, tensors: Tensors) -> Signature:
    """Weight, gradient and states; a factored state has the sums of rows or columns."""
    shape = tensors[op.inputs[0]].shape
    labels = _dims(len(shape))

    def of(name: str) -> Labels:
        mine = tensors[name].shape
        if len(mine) == len(shape):
            return labels  # also a sparse gradient, which has rows of the weight
        if name.endswith(".rows"):
            return labels[:-1]
        if name.endswith(".columns"):
            return (*labels[:-2], labels[-1])
        return tuple("" for _ in mine)

    return Signature(tuple(map(of, op.inputs)), tuple(map(of, op.outputs)))


@rule("gemm")
def gemm(op: Op, tensors: Tensors) -> Signature:
    """X [..., k] w [n, k] -> y [..., n], or several; experts [e, t, k] [e, n, k]."""
    (x, w), ys = _shapes(op, tensors)
    if not isinstance(op.loops, Gemm):
        return whole(op, tensors)
    if len(w) == 3:
        return Signature(
            ((EXPERTS, EXPERT_ROWS, "k"), (EXPERTS, "n", "k")),
            ((EXPERTS, EXPERT_ROWS, "n"),) * len(ys),
            loops={EXPERTS: ("batch",), EXPERT_ROWS: ("m",), "n": ("n",), "k": ("k",)},
        )
    if _turned((*ys[0][:-1], w[-1]), x):
        lead = _dims(len(ys[0]) - 1)
        return Signature(
            ((lead[0], "k", *lead[1:]), ("n", "k")),
            ((*lead, "n"),) * len(ys),
            {"n": _common_units([y[-1] for y in ys])} if len(ys) > 1 else {},
            {"n": ("n",), "k": ("k",), **dict.fromkeys(lead, ("m",))},
        )
    few = len(x)  # dimensions of rows: those before the features of one
    while few and math.prod(x[few - 1 :]) <= w[-1]:
        few -= 1
    lead = _dims(len(ys[0]) - 1)
    rows, units = lead, {}
    if x[:few] != ys[0][:-1]:  # the same rows, written as one dimension or several
        lead, rows = flat_lead(len(ys[0]) - 1), flat_lead(few)
        units["d0"] = math.gcd(x[0], ys[0][0])
    features: Labels = ("k", *("" for _ in x[few + 1 :]))
    if len(features) > 1:
        units["k"] = x[few]
    if len(ys) > 1:
        units["n"] = _common_units([y[-1] for y in ys])
    loops = {"n": ("n",), "k": ("k",), **dict.fromkeys(filter(None, lead), ("m",))}
    return Signature(((*rows, *features), ("n", "k")), ((*lead, "n"),) * len(ys), units, loops)


def _common_units(widths: list[int]) -> int:
    """Parts into which all outputs of one product can be cut alike."""
    return math.gcd(*widths)


@rule("bias")
def bias(op: Op, tensors: Tensors) -> Signature:
    """Add a vector along one axis."""
    labels = _dims(len(tensors[op.inputs[0]].shape))
    axis = int(dict(op.attrs)["axis"])
    return Signature((labels, (labels[axis],)), (labels,))


@rule("layer-norm", "rms-norm")
def row_norm(op: Op, tensors: Tensors) -> Signature:
    """Rows are independent of each other; the normalised axis stays whole but in a grid.

    It is the last, or that of the channels where a traced network has turned images. Devices that
    share its features add up the sums that are kept of each row (Xu et al., An efficient 2D method
    for training super-large deep learning models, 2021, arXiv:2104.05343, section 3.2).
    """
    shape = tensors[op.inputs[0]].shape
    count = len(shape)
    if heads := dict(op.attrs).get("heads"):  # each has its own statistics
        labels, units = (*_dims(count - 1), "h"), {"h": int(heads)}
        return Signature((labels, ("",)), (labels, labels), units, strict=frozenset({"h"}))
    axis = int(dict(op.attrs).get("axis", -1)) % count
    size = tensors[op.inputs[1]].elements if len(op.inputs) > 1 else shape[axis]
    if count > 3 and shape[axis] != size == shape[1]:
        axis = 1
    kept = sum(tensors[name].bytes for name in op.outputs[1:])
    feature = "f" if kept and size == shape[axis] else ""
    labels = tuple(feature if i == axis else f"d{i}" for i in range(count))
    rows = tuple(f"d{i}" for i in range(count) if i != axis)
    weights = ((feature,),) * (len(op.inputs) - 1)
    flat = any(len(tensors[name].shape) == 1 for name in op.outputs[1:]) and len(rows) > 1
    return Signature(
        (labels, *weights),
        (labels, *(("",) if flat else rows,) * (len(op.outputs) - 1)),
        local=frozenset(rows) if flat else frozenset(),  # statistics of each row, and no sums
        inner={"f": (Inner("all-reduce", kept),)} if feature else {},
        of_grid=frozenset({"f"}),
    )


def _row_norm_gradient(op: Op, tensors: Tensors, forward: Op, sig: Signature) -> Signature:
    """Add up the sums over dy and dy z of each row, as many as forward."""
    return replace(sig, inner=row_norm(forward, tensors).inner)


ADJUSTMENTS |= {"layer-norm": _row_norm_gradient, "rms-norm": _row_norm_gradient}


@rule("softmax", "share", "top-k", "length")
def last_axis(op: Op, tensors: Tensors) -> Signature:
    """Rows are independent of each other; the last axis stays whole."""
    count = len(tensors[op.inputs[0]].shape)
    labels = (*_dims(count - 1), "")
    return Signature((labels,), (labels,) * len(op.outputs))


@rule("embedding")
def embedding(op: Op, tensors: Tensors) -> Signature:
    """Look up [...] in a table [v, h] -> y [..., h]: what a device has not counts as zeros.

    Tables with sparse gradients are divided by columns, so that a device sends its part of each row
    to where it is needed, and no sums (Mudigere et al., Software-hardware co-design for fast and
    scalable training of deep learning recommendation models, ISCA 2022, arXiv:2104.05158).
    """
    lead = _dims(len(tensors[op.inputs[0]].shape))
    of_output = lead[: len(tensors[op.outputs[0]].shape) - 1]  # fewer where rows are added up
    lead = tuple(label if label in of_output else "" for label in lead)
    if int(dict(op.attrs).get("sparse", 0)):
        return Signature((lead, ("", "h")), ((*of_output, "h"),), padded=frozenset({"h"}))
    return Signature((lead, ("v", "")), ((*of_output, ""),), padded=frozenset({"v"}))


@rule("position-embedding")
def position_embedding(op: Op, tensors: Tensors) -> Signature:
    """X [b, s, h], table [positions, h]."""
    return Signature((("b", "s", "h"), ("", "h")), (("b", "s", "h"),))


@rule("gather")
def gather(op: Op, tensors: Tensors) -> Signature:
    """X [b, p, f], indices [b, t] -> y [b, t, f]."""
    return Signature((("b", "", "f"), ("b", "t")), (("b", "t", "f"),))


@rule("loss")
def cross_entropy(op: Op, tensors: Tensors) -> Signature:
    """Divided by classes, the rows' maxima, sums and target logits are summed over the devices.

    Shoeybi et al., Megatron-LM, 2019, arXiv:1909.08053, Section 3.
    """
    logits, labels = tensors[op.inputs[0]], tensors[op.inputs[1]]
    axis = int(dict(op.attrs).get("axis", -1)) % len(logits.shape)
    dims = tuple("v" if i == axis else f"d{i}" for i in range(len(logits.shape)))
    rest = tuple(label for label in dims if label != "v")
    sums = Inner("all-reduce", replace(logits, shape=labels.shape).bytes, repeat=3)
    return Signature((dims, rest), ((), dims), padded=frozenset({"v"}), inner={"v": (sums,)})


@rule("bce-loss", "mse-loss", "smooth-l1-loss")
def pointwise_loss(op: Op, tensors: Tensors) -> Signature:
    """Take a mean over all elements."""
    labels = _dims(len(tensors[op.inputs[0]].shape))
    return Signature((labels, labels), ((),))


def _tokens(count: int) -> Labels:
    """Labels of the dimensions before the features: of these, positions can be divided."""
    return tuple("p" if i == 1 else "" for i in range(count - 1))


@rule("dispatch")
def dispatch(op: Op, tensors: Tensors) -> Signature:
    """Copy x [b, p, f], choices [b, p, k] -> rows [e, p, f] and places [p, k]."""
    (x, chosen), (_, places) = _shapes(op, tensors)
    return Signature(
        ((*_tokens(len(x)), "f"), (*_tokens(len(chosen)), "")),
        ((EXPERTS, "p", "f"), ("p", *("" for _ in places[1:]))),
        {"p": x[1]} if len(x) > 2 else {},
    )


@rule("combine")
def combine(op: Op, tensors: Tensors) -> Signature:
    """Rows [e, p, f], weights [b, p, k], places -> y [b, p, f]: a sum over the experts."""
    (_, weights, places), (y,) = _shapes(op, tensors)
    return Signature(
        ((EXPERTS, "p", "f"), (*_tokens(len(weights)), ""), ("p", *("" for _ in places[1:]))),
        ((*_tokens(len(y)), "f"),),
        {"p": y[1]} if len(y) > 2 else {},
    )


@rule("concat", "split")
def concat(op: Op, tensors: Tensors) -> Signature:
    """Side by side; divided along that axis, every device has its part of every tensor."""
    inputs, outputs = _shapes(op, tensors)
    attrs = dict(op.attrs)
    if int(attrs.get("features", 0)):
        return whole(op, tensors)
    labels = _dims(len(inputs[0]))
    of_axis = [shape[int(attrs["axis"])] for shape in (*inputs, *outputs)]
    units = {labels[int(attrs["axis"])]: _common_units(of_axis)}
    return Signature((labels,) * len(inputs), (labels,) * len(outputs), units)


@rule("all-reduce", "reduce-scatter", "all-gather", "all-to-all", "send-recv")
def moved(op: Op, tensors: Tensors) -> Signature:
    """Move along other dimensions of the plan; dimensions that stay as they are can be divided.

    So can samples that move on another level of "tensor": which of them a device has, is the same
    on both sides; and in a grid all dimensions, of whose parts there each has a part.
    """
    if len(op.inputs) != 1 or len(op.outputs) != 1:
        return whole(op, tensors)
    of, found = tensors[op.inputs[0]], cut(op, tensors)
    dimension = str(dict(op.attrs)["dimension"])
    if dimension == "expert":  # of the rows that each rank has, each of its devices moves a part
        rows = ("", EXPERT_ROWS, "f")
        return Signature((rows,), (rows,), padded=frozenset({EXPERT_ROWS}))
    if dimension in GRID:
        labels = _dims(len(of.shape))
        sizes = zip(labels, of.shape, tensors[op.outputs[0]].shape, strict=True)
        return Signature((labels,), (labels,), {d: math.gcd(a, b) for d, a, b in sizes if a != b})
    on_level = dimension.startswith("tensor.")
    if not on_level or found.inputs[0][:1] != ("",) or of.role in _WITHOUT_SAMPLES:
        return found
    labels = ("d0", *found.inputs[0][1:])
    few = math.gcd(of.shape[0], tensors[op.outputs[0]].shape[0])
    return Signature((labels,), (labels,), {"d0": few})


@rule(HALO)
def halo(op: Op, tensors: Tensors) -> Signature:
    """Fetch rows of neighbours, of one tensor or several: other dimensions can be divided."""
    inputs, outputs = _shapes(op, tensors)
    labels = tuple(
        tuple(f"d{i}" if a == b else "" for i, (a, b) in enumerate(zip(x, y, strict=True)))
        for x, y in zip(inputs, outputs, strict=True)
    )
    return Signature(labels, labels)


@rule("dot-interaction", "ctc-loss", "transducer-loss")
def by_sample(op: Op, tensors: Tensors) -> Signature:
    """Every output needs all of its sample."""
    inputs, outputs = (
        tuple(tuple("" if i else "b" for i in range(len(shape))) for shape in shapes)
        for shapes in _shapes(op, tensors)
    )
    products = {"b": ("batch",)} if isinstance(op.loops, Gemm) else {}
    return Signature(inputs, outputs, loops=products)


@rule("fill")
def indivisible(op: Op, tensors: Tensors) -> Signature:
    """Every device has all of it."""
    return whole(op, tensors)


@rule("lstm", "gru", "rnn-tanh", "rnn-relu")
def recurrent(op: Op, tensors: Tensors) -> Signature:
    """Gates [b, t, u] weight [u, h] -> states [b, t, u]; all states are gathered at each step."""
    states = tensors[op.outputs[0]]
    time = states.shape[1]
    step = Inner("all-gather", states.bytes // time, time)
    labels = ("b", "", "u")
    return Signature(
        (labels, ("u", ""), *((("u",),) * (len(op.inputs) - 2))),
        (labels,) * len(op.outputs),
        {"u": states.shape[2]},
        {"b": ("m",), "u": ("n",)},
        inner={"u": (step,)},
    )


def _recurrent_gradient(op: Op, tensors: Tensors, forward: Op, sig: Signature) -> Signature:
    """Read the states of the step before whole for the recurrent weights' gradient."""
    if op.pass_ is not Pass.WEIGHT_GRADIENT:
        return replace(sig, loops={"b": ("m",), "u": ("k",)})
    inputs = tuple(
        ("b", "", "") if name == forward.outputs[0] else labels
        for name, labels in zip(op.inputs, sig.inputs, strict=True)
    )
    return replace(sig, inputs=inputs, loops={"b": ("k",), "u": ("m",)}, inner={})


for _kind in ("lstm", "gru", "rnn-tanh", "rnn-relu"):
    ADJUSTMENTS[_kind] = _recurrent_gradient
