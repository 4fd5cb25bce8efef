"""The labels of every op kind (see `labels`)."""

from __future__ import annotations

from dataclasses import replace

from ridgeline.parallel.labels import (
    ADJUSTMENTS,
    Grouped,
    Inner,
    Labels,
    Signature,
    Tensors,
    rule,
    whole,
)
from ridgeline.workload.graph import Conv, Gemm, Op, Pass


def _dims(count: int) -> Labels:
    """Labels that say nothing but which dimension it is."""
    return tuple(f"d{i}" for i in range(count))


def _shapes(op: Op, tensors: Tensors) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    return [tensors[n].shape for n in op.inputs], [tensors[n].shape for n in op.outputs]


@rule(
    *("add", "cast", "relu", "sigmoid", "tanh", "gelu", "silu", "multiply", "swiglu", "geglu"),
    *("dropout", "scale", "unscale", "quantise"),
)
def elementwise(op: Op, tensors: Tensors) -> Signature:
    """All tensors have one shape."""
    inputs, outputs = _shapes(op, tensors)
    if len({*inputs, *outputs}) > 1:
        return whole(op, tensors)
    labels = _dims(len(inputs[0]))
    return Signature((labels,) * len(inputs), (labels,) * len(outputs))


@rule("broadcast-add", "broadcast-multiply")
def broadcast(op: Op, tensors: Tensors) -> Signature:
    """Dimensions are matched from the last on; one that is broadcast stays whole."""
    inputs, (output,) = _shapes(op, tensors)
    labels = _dims(len(output))

    def of(shape: tuple[int, ...]) -> Labels:
        last = labels[len(output) - len(shape) :]
        alike = zip(shape, output[len(output) - len(shape) :], last, strict=True)
        return tuple(label if mine == whole_ else "" for mine, whole_, label in alike)

    return Signature(tuple(map(of, inputs)), (labels,))


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
            (("e", "t", "k"), ("e", "n", "k")),
            (("e", "t", "n"),) * len(ys),
            loops={"e": ("batch",), "t": ("m",), "n": ("n",), "k": ("k",)},
        )
    lead = _dims(len(ys[0]) - 1)
    features: Labels = ("k",) if len(x) == len(ys[0]) else ("k", *("" for _ in x[len(ys[0]) :]))
    units = {"k": x[len(lead)]} if len(features) > 1 else {}
    if len(ys) > 1:
        units["n"] = _common_units([y[-1] for y in ys])
    loops = {"n": ("n",), "k": ("k",), **dict.fromkeys(lead, ("m",))}
    return Signature(((*lead, *features), ("n", "k")), ((*lead, "n"),) * len(ys), units, loops)


def _common_units(widths: list[int]) -> int:
    """Parts into which all outputs of one product can be cut alike."""
    import math

    return math.gcd(*widths)


@rule("conv2d")
def conv2d(op: Op, tensors: Tensors) -> Signature:
    """X [b, c, h, w] w [o, c, r, s] -> y [b, o, p, q]; groups go together."""
    assert isinstance(op.loops, Conv)
    if op.loops.groups > 1:
        return Signature(
            (("", "g", "", ""), ("g", "", "", "")),
            (("", "g", "", ""),),
            {"g": op.loops.groups},
            {"g": ("groups", "c_in", "c_out")},
        )
    return Signature(
        (("", "c", "", ""), ("o", "c", "", "")),
        (("", "o", "", ""),),
        loops={"o": ("c_out",), "c": ("c_in",)},
    )


@rule("conv-transpose2d")
def conv_transpose2d(op: Op, tensors: Tensors) -> Signature:
    """X [b, c, h, w] w [c, o, r, s] -> y [b, o, p, q]."""
    return Signature(
        (("", "c", "", ""), ("c", "o", "", "")),
        (("", "o", "", ""),),
        loops={"o": ("n",), "c": ("k",)},
    )


@rule("bias")
def bias(op: Op, tensors: Tensors) -> Signature:
    """Add a vector along one axis."""
    labels = _dims(len(tensors[op.inputs[0]].shape))
    axis = int(dict(op.attrs)["axis"])
    return Signature((labels, (labels[axis],)), (labels,))


@rule("batch-norm", "frozen-batch-norm")
def batch_norm(op: Op, tensors: Tensors) -> Signature:
    """Channels are independent of each other; statistics are over all else."""
    shape = tensors[op.inputs[0]].shape
    axis = int(dict(op.attrs).get("axis", 1))
    labels = tuple("c" if i == axis else "" for i in range(len(shape)))
    extra = (("c",),) * (len(op.inputs) - 1)
    return Signature((labels, *extra), (labels, *(("c",),) * (len(op.outputs) - 1)))


@rule("layer-norm", "rms-norm")
def row_norm(op: Op, tensors: Tensors) -> Signature:
    """Rows are independent of each other; the normalised axis stays whole."""
    count = len(tensors[op.inputs[0]].shape)
    axis = int(dict(op.attrs).get("axis", -1)) % count
    labels = tuple("" if i == axis else f"d{i}" for i in range(count))
    rows = tuple(label for label in labels if label)
    weights = (("",),) * (len(op.inputs) - 1)
    return Signature((labels, *weights), (labels, *(rows,) * (len(op.outputs) - 1)))


@rule("softmax", "share", "top-k")
def last_axis(op: Op, tensors: Tensors) -> Signature:
    """Rows are independent of each other; the last axis stays whole."""
    count = len(tensors[op.inputs[0]].shape)
    labels = (*_dims(count - 1), "")
    return Signature((labels,), (labels,) * len(op.outputs))


@rule("attention-scores")
def scores(op: Op, tensors: Tensors) -> Signature:
    """Q [b, s, H] k [b, t, H] -> y [b, H, s, t]; a unit of H is a head of keys."""
    return Signature(
        (("", "s", "H"), ("", "t", "H")),
        (("", "H", "s", "t"),),
        {"H": int(dict(op.attrs)["kv-heads"])},
        {"H": ("batch",), "s": ("m",), "t": ("n",)},
        strict=frozenset({"H"}),
        grouped=Grouped("H", int(dict(op.attrs)["heads"]), (1,), "s"),
    )


@rule("attention-context")
def context(op: Op, tensors: Tensors) -> Signature:
    """P [b, H, s, t] v [b, t, H] -> y [b, s, H]."""
    return Signature(
        (("", "H", "s", "t"), ("", "t", "H")),
        (("", "s", "H"),),
        {"H": int(dict(op.attrs)["kv-heads"])},
        {"H": ("batch",), "s": ("m",), "t": ("k",)},
        strict=frozenset({"H"}),
        grouped=Grouped("H", int(dict(op.attrs)["heads"]), (1,), "s"),
    )


@rule("flash-attention")
def flash(op: Op, tensors: Tensors) -> Signature:
    """Q [b, s, H] k [b, t, H] v [b, t, H] -> y [b, s, H], sums [b, H, s]; keys stay whole."""
    return Signature(
        (("", "s", "H"), ("", "", "H"), ("", "", "H")),
        (("", "s", "H"), ("", "H", "s")),
        {"H": int(dict(op.attrs)["kv-heads"])},
        {"H": ("batch",), "s": ("m",)},
        strict=frozenset({"H"}),
        grouped=Grouped("H", int(dict(op.attrs)["heads"]), (1, 2), "s"),
    )


@rule("rotary")
def rotary(op: Op, tensors: Tensors) -> Signature:
    """X [b, s, heads x size], angles [s, size]."""
    (x, angles), _ = _shapes(op, tensors)
    labels = ("", "s", "H")
    return Signature((labels, ("s", "")), (labels,), {"H": x[2] // angles[1]})


@rule("relative-bias")
def relative_bias(op: Op, tensors: Tensors) -> Signature:
    """Scores [b, H, s, t], table [ranges, H]."""
    labels = ("", "H", "s", "t")
    return Signature((labels, ("", "H")), (labels,))


@rule("join-heads")
def join_heads(op: Op, tensors: Tensors) -> Signature:
    """X [b, s, H], other [b, s, H] or of one head, which all need."""
    (x, other), (y,) = _shapes(op, tensors)
    heads = int(dict(op.attrs)["heads"])
    of_other = "H" if heads * other[2] // heads == y[2] - x[2] else ""
    return Signature((("", "s", "H"), ("", "s", of_other)), (("", "s", "H"),), {"H": heads})


@rule("additive-attention")
def additive(op: Op, tensors: Tensors) -> Signature:
    """Q [b, s, f] k [b, t, f] v [f] length [1] -> y [b, 1, s, t]: a sum over features."""
    return Signature((("", "s", "f"), ("", "t", "f"), ("f",), ("",)), (("", "", "s", "t"),))


@rule("embedding")
def embedding(op: Op, tensors: Tensors) -> Signature:
    """Look up [...] in a table [v, h] -> y [..., h]: what a device has not counts as zeros."""
    lead = _dims(len(tensors[op.inputs[0]].shape))
    return Signature((lead, ("v", "")), ((*lead, ""),), padded=frozenset({"v"}))


@rule("position-embedding")
def position_embedding(op: Op, tensors: Tensors) -> Signature:
    """X [b, s, h], table [positions, h]."""
    return Signature((("", "s", "h"), ("", "h")), (("", "s", "h"),))


@rule("class-token")
def class_token(op: Op, tensors: Tensors) -> Signature:
    """X [b, f, h, w], token [f] -> y [b, 1 + h w, f]."""
    return Signature((("", "f", "", ""), ("f",)), (("", "", "f"),))


@rule("gather")
def gather(op: Op, tensors: Tensors) -> Signature:
    """X [b, p, f], indices [b, t] -> y [b, t, f]."""
    return Signature((("", "", "f"), ("", "t")), (("", "t", "f"),))


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
        (("e", "p", "f"), ("p", *("" for _ in places[1:]))),
        {"p": x[1]} if len(x) > 2 else {},
    )


@rule("combine")
def combine(op: Op, tensors: Tensors) -> Signature:
    """Rows [e, p, f], weights [b, p, k], places -> y [b, p, f]: a sum over the experts."""
    (_, weights, places), (y,) = _shapes(op, tensors)
    return Signature(
        (("e", "p", "f"), (*_tokens(len(weights)), ""), ("p", *("" for _ in places[1:]))),
        ((*_tokens(len(y)), "f"),),
        {"p": y[1]} if len(y) > 2 else {},
    )


@rule("max-pool", "avg-pool", "adaptive-avg-pool", "nearest-upsample", "bilinear-upsample")
def by_channel(op: Op, tensors: Tensors) -> Signature:
    """Images, channel by channel."""
    labels = ("", "c", "", "")
    return Signature((labels,), (labels,) * len(op.outputs))


@rule("roi-align")
def roi_align(op: Op, tensors: Tensors) -> Signature:
    """Levels [b, c, h, w], boxes -> y [regions, c, s, s]."""
    labels = ("", "c", "", "")
    return Signature((*(labels,) * (len(op.inputs) - 1), ("", "", "")), (labels,))


@rule("columns")
def columns(op: Op, tensors: Tensors) -> Signature:
    """X [b, c, h, w] -> y [b, w, c x h]."""
    return Signature((("", "c", "", ""),), (("", "", "c"),), {"c": tensors[op.inputs[0]].shape[1]})


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


@rule("cut", "pad", "slice")
def cut(op: Op, tensors: Tensors) -> Signature:
    """Dimensions that stay as they are."""
    (x, *more), (y, *others) = _shapes(op, tensors)
    if len(x) != len(y) or more or others:
        return whole(op, tensors)
    labels = tuple(f"d{i}" if a == b else "" for i, (a, b) in enumerate(zip(x, y, strict=True)))
    return Signature((labels,), (labels,))


@rule("all-reduce", "reduce-scatter", "all-gather", "all-to-all")
def moved(op: Op, tensors: Tensors) -> Signature:
    """Move along other dimensions of the plan; dimensions that stay as they are can be divided."""
    return cut(op, tensors) if op.outputs else whole(op, tensors)


@rule("local-response-norm", "fill", "ctc-loss", "dot-interaction")
def indivisible(op: Op, tensors: Tensors) -> Signature:
    """Every output needs all of its sample."""
    return whole(op, tensors)


@rule("lstm", "gru", "rnn-tanh", "rnn-relu")
def recurrent(op: Op, tensors: Tensors) -> Signature:
    """Gates [b, t, u] weight [u, h] -> states [b, t, u]; all states are gathered at each step."""
    states = tensors[op.outputs[0]]
    time = states.shape[1]
    step = Inner("all-gather", states.bytes // time, time)
    labels = ("", "", "u")
    return Signature(
        (labels, ("u", ""), *((("u",),) * (len(op.inputs) - 2))),
        (labels,) * len(op.outputs),
        {"u": states.shape[2]},
        {"u": ("n",)},
        inner={"u": (step,)},
    )


def _recurrent_gradient(op: Op, tensors: Tensors, forward: Op, sig: Signature) -> Signature:
    """Read the states of the step before whole for the recurrent weights' gradient."""
    if op.pass_ is not Pass.WEIGHT_GRADIENT:
        return replace(sig, loops={"u": ("k",)})
    inputs = tuple(
        ("", "", "") if name == forward.outputs[0] else labels
        for name, labels in zip(op.inputs, sig.inputs, strict=True)
    )
    return replace(sig, inputs=inputs, loops={"u": ("m",)}, inner={})


for _kind in ("lstm", "gru", "rnn-tanh", "rnn-relu"):
    ADJUSTMENTS[_kind] = _recurrent_gradient
