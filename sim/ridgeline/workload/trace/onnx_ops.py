"""What ONNX operators mean: their names to the steps of a trace."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ridgeline.errors import RidgelineError
from ridgeline.workload.trace import windows
from ridgeline.workload.trace.ir import Recorder

Handler = Callable[["Node"], None]


class Node:
    """One node as a handler sees it."""

    def __init__(self, node: Any, recorder: Recorder, known: Mapping[str, Any], weights: Any) -> None:
        self.node, self.recorder, self.known, self.weights = node, recorder, known, weights
        self.layer, self.own = weights.layer(node), weights.own(node)
        self.attrs = {a.name: _attribute(a) for a in node.attribute}
        self.all = [self.own.get(name, name) for name in node.input]

    @property
    def inputs(self) -> list[str]:
        """Names of the inputs that are there."""
        return [name for name in self.all if name]

    def has(self, position: int) -> bool:
        """Tell whether an optional input is given."""
        return len(self.node.input) > position and bool(self.node.input[position])

    def shape(self, name: str | None = None) -> tuple[int, ...]:
        """Shape of an input, or of the first output."""
        values = self.recorder.values
        return values[name if name is not None else self.node.output[0]].shape

    def kind(self, name: str) -> str:
        """What a value holds."""
        return self.recorder.values[name].kind

    def real(self) -> bool:
        """Tell whether the first output holds real numbers."""
        return self.kind(self.node.output[0]) == "real"

    def constant(self, position: int, default: Any = None) -> Any:
        """Value of an input that is known, as a list; else the default."""
        if self.has(position) and self.node.input[position] in self.known:
            return self.known[self.node.input[position]].reshape(-1).tolist()
        return default

    def emit(self, kind: str, inputs: Sequence[str], /, **attrs: Any) -> None:
        """Append the step that makes the outputs."""
        outputs = [name for name in self.node.output if name]
        self.recorder.step(kind, self.layer, inputs, outputs, self.node.op_type, **attrs)

    def inner(self, kind: str, inputs: Sequence[str], shape: Sequence[int], /, **attrs: Any) -> str:
        """Append a step whose result only this node uses."""
        made = self.recorder.value(shape, "real", name=f"{self.node.output[0]}.{kind}")
        self.recorder.step(kind, self.layer, inputs, (made,), self.node.op_type, **attrs)
        return made


def _attribute(attribute: Any) -> Any:
    from onnx import helper

    value = helper.get_attribute_value(attribute)
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


_VIEWS = """Reshape Flatten Squeeze Unsqueeze Transpose Identity Expand Cast CastLike DepthToSpace
    SpaceToDepth""".split()
_FUNCTIONS = {
    "Exp": "exp", "Log": "log", "Sqrt": "sqrt", "Reciprocal": "reciprocal", "Abs": "absolute",
    "Neg": "negate", "Sin": "sine", "Cos": "cosine", "Tan": "tangent", "Sinh": "hyperbolic",
    "Cosh": "hyperbolic", "Asin": "arc", "Acos": "arc", "Atan": "arc", "Asinh": "arc",
    "Acosh": "arc", "Atanh": "arc", "Erf": "erf", "Softplus": "softplus", "Softsign": "softsign",
    "Elu": "elu", "Selu": "elu", "Celu": "elu", "LeakyRelu": "leaky-relu", "Clip": "clamp",
    "ThresholdedRelu": "clamp", "Shrink": "clamp", "HardSigmoid": "hard-sigmoid",
    "HardSwish": "hard-swish", "Mish": "mish", "PRelu": "prelu", "Relu": "relu",
    "Sigmoid": "sigmoid", "Tanh": "tanh", "Gelu": "gelu", "Swish": "silu", "Floor": "step",
    "Ceil": "step", "Round": "step", "Sign": "step", "Max": "extremum", "Min": "extremum",
    "Sum": "broadcast-add", "Mean": "broadcast-add", "Mod": "subtract", "Where": "select",
    "ReduceMean": "mean", "ReduceSum": "sum", "ReduceMax": "peaks", "ReduceMin": "peaks",
    "ReduceProd": "product-of", "ReduceL1": "length", "ReduceL2": "length",
    "ReduceSumSquare": "length", "ReduceLogSum": "log-sum-exp", "ReduceLogSumExp": "log-sum-exp",
    "Equal": "compare", "Greater": "compare", "Less": "compare", "GreaterOrEqual": "compare",
    "LessOrEqual": "compare", "And": "compare", "Or": "compare", "Not": "compare",
    "Xor": "compare", "IsNaN": "compare", "IsInf": "compare", "ArgMax": "position",
    "ArgMin": "position", "NonZero": "position", "TopK": "order", "CumSum": "running-sum",
    "Tile": "rearrange", "GatherElements": "gather-elements", "GatherND": "gather-elements",
    "Compress": "gather-elements", "ReverseSequence": "rearrange", "ScatterElements": "scatter",
    "ScatterND": "scatter", "Scatter": "scatter", "Trilu": "triangle", "GridSample": "sample-grid",
    "OneHot": "integer", "EyeLike": "integer", "LpNormalization": "normalize",
    "MeanVarianceNormalization": "normalize", "LRN": "normalize", "RandomNormalLike": "random",
    "RandomUniformLike": "random", "Bernoulli": "random", "ConstantOfShape": "fill",
    "Range": "fill", "RandomNormal": "fill", "RandomUniform": "fill", "Col2Im": "scatter",
    "NegativeLogLikelihoodLoss": "negative-log-likelihood", "SequenceAt": "rearrange",
}  # fmt: skip


def _view(n: Node) -> None:
    x = n.inputs[0]
    n.emit("view" if n.kind(x) == n.kind(n.node.output[0]) else "integer", [x])


def _function(kind: str) -> Handler:
    def handle(n: Node) -> None:
        keep = n.real() or kind in {"position", "compare"}
        attrs = {"rows": math.prod(n.shape()[:-1])} if kind == "normalize" else {}
        n.emit(kind if keep else "integer", _arrays(n, kind), **attrs)

    return handle


def _arrays(n: Node, kind: str) -> list[str]:
    """Inputs that are data, not axes and sizes."""
    several = kind in {"extremum", "broadcast-add", "subtract", "select", "compare", "prelu",
                       "gather-elements", "scatter", "sample-grid", "negative-log-likelihood"}  # fmt: skip
    return n.inputs if several else n.inputs[:1]


def _binary(kind: str, with_number: str) -> Handler:
    """Arithmetic of two tensors, or of a tensor and a known number."""

    def handle(n: Node) -> None:
        values = [n.recorder.values[x] for x in n.inputs]
        numbers = [v.number for v in values]
        free = [v.name for v, number in zip(values, numbers, strict=True) if number is None]
        if not n.real():
            n.emit("integer", n.inputs)
        elif len(free) == 1 and not (kind == "divide" and numbers[0] is not None):
            number = next(x for x in numbers if x is not None)
            number = 1 / number if kind == "divide" and number else number
            n.emit(with_number, free, number=number)
        elif kind == "divide" and len(free) == 1:
            n.emit("reciprocal", free)
        else:
            n.emit(kind, n.inputs)

    return handle


def _power(n: Node) -> None:
    exponent = n.constant(1)
    if exponent is None or len(exponent) != 1:
        n.emit("power-of", n.inputs)
        return
    known = {2.0: "square", 0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal", 1.0: "view"}
    n.emit(known.get(float(exponent[0]), "power"), n.inputs[:1], exponent=float(exponent[0]))


def _matmul(n: Node) -> None:
    a, b = n.inputs[:2]
    x, y, out = n.shape(a), n.shape(b), n.shape()
    rows, columns = (x[-2] if len(x) > 1 else 1), (y[-1] if len(y) > 1 else 1)
    lead = math.prod(out) // max(rows * columns, 1)
    if math.prod(y[:-2]) == 1:
        n.emit("matmul", [a, b], m=lead * rows, n=columns, k=x[-1], batch=1)
    else:
        n.emit("matmul", [a, b], m=rows, n=columns, k=x[-1], batch=lead)


def _gemm(n: Node) -> None:
    a, b = n.inputs[:2]
    rows, columns = n.shape()
    k = n.shape(a)[0 if n.attrs.get("transA", 0) else 1]
    loops = {"m": rows, "n": columns, "k": k, "batch": 1}
    if n.has(2):
        n.emit("add", [n.inner("matmul", [a, b], (rows, columns), **loops), n.all[2]])
    else:
        n.emit("matmul", [a, b], **loops)


def _einsum(n: Node) -> None:
    left, _, right = n.attrs["equation"].replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != 2 or "." in left or not right and "->" not in n.attrs["equation"]:
        n.emit("unknown", n.inputs)
        return
    sizes = {c: s for t, x in zip(terms, n.inputs, strict=True) for c, s in zip(t, n.shape(x), strict=True)}
    a, b = (set(t) for t in terms)
    out = set(right)

    def extent(letters: set[str]) -> int:
        return math.prod(sizes[c] for c in letters)

    n.emit("matmul", n.inputs, m=extent(a & out - b), n=extent(b & out - a),
           k=extent((a | b) - out), batch=extent(a & b & out))  # fmt: skip


def _pads(n: Node, axes: int, out: Sequence[int], loops: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Padding before and after, explicit or as auto_pad asks for."""
    pads = n.attrs.get("pads", [0] * (2 * axes))
    if str(n.attrs.get("auto_pad", "NOTSET")).startswith("SAME"):
        sizes, kernel, stride, dilation = loops
        total = [
            max((o - 1) * u + d * (k - 1) + 1 - s, 0)
            for o, u, d, k, s in zip(out, stride, dilation, kernel, sizes, strict=True)
        ]
        return [(t // 2, t - t // 2) for t in total]
    return [(int(pads[i]), int(pads[axes + i])) for i in range(axes)]


def _conv(n: Node) -> None:
    x, w = n.shape(n.inputs[0]), n.shape(n.inputs[1])
    out, axes = n.shape(), len(w) - 2
    stride = n.attrs.get("strides", [1] * axes)
    dilation = n.attrs.get("dilations", [1] * axes)
    padding = _pads(n, axes, out[2:], (x[2:], w[2:], stride, dilation))
    group = int(n.attrs.get("group", 1))
    _biased(n, "conv", windows.conv_loops(x, w, out, stride, padding, dilation, group))


def _conv_transpose(n: Node) -> None:
    x, w = n.shape(n.inputs[0]), n.shape(n.inputs[1])
    group = int(n.attrs.get("group", 1))
    pixels = x[0] * math.prod(x[2:])
    loops = {"m": pixels, "n": math.prod(w[1:]), "k": w[0] // group, "batch": group}
    _biased(n, "conv-transpose", loops)


def _biased(n: Node, kind: str, loops: Mapping[str, Any]) -> None:
    if n.has(2):
        inner = n.inner(kind, n.inputs[:2], n.shape(), **loops)
        n.emit("bias", [inner, n.all[2]])
    else:
        n.emit(kind, n.inputs[:2], **loops)


def _batch_norm(n: Node) -> None:
    """Also an exported inference node is batch normalisation in training: statistics of the batch."""
    made = n.node.output[0]
    n.recorder.step("batch-norm", n.layer, n.inputs[:5], (made,), "BatchNormalization",
                    channels=n.shape(n.inputs[0])[1], running=True)  # fmt: skip


def _rows_norm(kind: str) -> Handler:
    def handle(n: Node) -> None:
        x = n.shape(n.inputs[0])
        axis = int(n.attrs.get("axis", -1)) % len(x)
        n.recorder.step(kind, n.layer, n.inputs[:3], n.node.output[:1], n.node.op_type,
                        rows=math.prod(x[:axis]))  # fmt: skip

    return handle


def _group_norm(n: Node) -> None:
    x = n.shape(n.inputs[0])
    n.emit("group-norm", n.inputs[:3], rows=x[0] * int(n.attrs.get("num_groups", x[1])))


def _pool(kind: str) -> Handler:
    def handle(n: Node) -> None:
        kernel = n.attrs["kernel_shape"]
        n.emit(kind, n.inputs[:1], touched=math.prod(n.shape()) * math.prod(kernel))

    return handle


def _global_pool(kind: str) -> Handler:
    def handle(n: Node) -> None:
        n.emit(kind, n.inputs, touched=math.prod(n.shape(n.inputs[0])))

    return handle


def _dropout(n: Node) -> None:
    ratio = float((n.constant(1) or [n.attrs.get("ratio", 0.5)])[0])
    kind = "dropout" if ratio > 0 else "view"
    attrs = {"probability": ratio} if ratio > 0 else {}
    n.recorder.step(kind, n.layer, n.inputs[:1], n.node.output[:1], "Dropout", **attrs)


def _gather(n: Node) -> None:
    table, indices = n.inputs
    origin, shape = n.recorder.values[table].origin, n.shape(table)
    axis = int(n.attrs.get("axis", 0)) % len(shape)
    known = n.constant(1)
    if not n.real():
        n.emit("integer", n.inputs)
    elif origin == "weight" and axis == 0 and len(shape) == 2:
        n.emit("embedding", [indices, table], sparse=0)
    elif known is not None and len(known) == 1:
        start = int(known[0]) % shape[axis]
        kind = "slice" if shape[axis] > 1 else "view"
        n.emit(kind, [table], **({"axis": axis, "start": start, "length": 1} if shape[axis] > 1 else {}))
    else:
        n.emit("gather-elements", n.inputs)


def _slice(n: Node) -> None:
    x, shape, out = n.inputs[0], n.shape(n.inputs[0]), n.shape()
    cut = [i for i, (s, o) in enumerate(zip(shape, out, strict=True)) if s != o]
    starts = n.constant(1, n.attrs.get("starts"))
    axes = n.constant(3, n.attrs.get("axes", list(range(len(starts or ())))))
    steps = n.constant(4, [1])
    if not n.real():
        n.emit("integer", [x])
    elif not cut and set(steps) == {1}:
        n.emit("view", [x])
    elif len(cut) == 1 and set(steps) == {1} and starts is not None:
        (axis,) = cut
        begin = {a % len(shape): s for a, s in zip(axes, starts, strict=False)}.get(axis, 0)
        begin = min(begin + shape[axis] if begin < 0 else begin, shape[axis])
        n.emit("slice", [x], axis=axis, start=int(begin), length=out[axis])
    else:
        n.emit("rearrange", [x])


def _split(n: Node) -> None:
    x = n.inputs[0]
    several = len([o for o in n.node.output if o]) > 1
    n.emit("split" if several else "view", [x], axis=int(n.attrs.get("axis", 0)) % len(n.shape(x)))


def _concat(n: Node) -> None:
    axis = int(n.attrs["axis"]) % len(n.shape())
    parts = [x for x in n.inputs if math.prod(n.shape(x))]
    if not n.real():
        n.emit("integer", n.inputs)
    elif len(parts) == 1:
        n.emit("view", parts)
    else:
        n.emit("concat", parts, axis=axis, sizes=tuple(n.shape(x)[axis] for x in parts))


def _pad(n: Node) -> None:
    constant = n.attrs.get("mode", "constant") == "constant"
    n.emit("pad" if constant else "rearrange", n.inputs[:1])


def _resize(n: Node) -> None:
    mode = n.attrs.get("mode", "nearest")
    kinds = {"nearest": "nearest-upsample", "linear": "bilinear-upsample"}
    n.emit(kinds.get(mode, "resample"), n.inputs[:1])


def _softmax(kind: str) -> Handler:
    def handle(n: Node) -> None:
        n.emit(kind, n.inputs[:1], axis=int(n.attrs.get("axis", -1)) % len(n.shape()))

    return handle


_CELLS = {"LSTM": ("lstm", 4), "GRU": ("gru", 3), "RNN": ("rnn-tanh", 1)}


def _recurrent(n: Node) -> None:
    """One layer, in one or both directions; its weights are stacked by direction."""
    cell, gates = _CELLS[n.node.op_type]
    x, w, r = n.inputs[:3]
    time, batch, width = n.shape(x)
    if n.attrs.get("layout", 0):
        time, batch = batch, time
    directions, _, hidden = n.shape(r)
    bias = n.all[3] if n.has(3) else ""
    wide = gates * hidden
    inputs = _pieces(n, w, directions, (wide, width))
    states = _pieces(n, r, directions, (wide, hidden))
    biases = _pieces(n, bias, 2 * directions, (wide,)) if bias else []
    parts = []
    for d in range(directions):
        shape = (batch, time, wide)
        y, more = _input_product(n, x, inputs[d], shape), []
        if biases:
            biased = n.recorder.value(shape, "real")
            n.recorder.step("bias", n.layer, (y, biases[2 * d]), (biased,), n.node.op_type)
            y, more = biased, [biases[2 * d + 1]]
        made = n.recorder.value((batch, time, hidden), "real")
        reverse = int(d == 1 or n.attrs.get("direction") == "reverse")
        n.recorder.step("recurrent", n.layer, (y, states[d], *more), (made,), n.node.op_type,
                        cell=cell, reverse=reverse, n=batch, time=time)  # fmt: skip
        parts.append(made)
    whole = parts[0]
    if directions > 1:
        whole = n.recorder.value((batch, time, directions * hidden), "real")
        n.recorder.step("concat", n.layer, parts, (whole,), n.node.op_type, axis=2,
                        sizes=(hidden,) * directions)  # fmt: skip
    for i, name in enumerate(n.node.output):
        if name:
            kind = "view" if i == 0 else "rearrange"
            n.recorder.step(kind, n.layer, (whole,), (name,), n.node.op_type)


def _input_product(n: Node, x: str, weight: str, shape: Sequence[int]) -> str:
    made = n.recorder.value(shape, "real")
    n.recorder.step("matmul", n.layer, (x, weight), (made,), n.node.op_type,
                    m=shape[0] * shape[1], n=shape[2], k=n.shape(x)[-1], batch=1)  # fmt: skip
    return made


def _pieces(n: Node, name: str, count: int, shape: Sequence[int]) -> list[str]:
    """Return the weights that are stacked in one tensor, each by itself.

    An exporter that does not fold constants stacks and reorders them by nodes: then they are the
    initializers behind these; a folded tensor is taken apart, and its pieces are the weights.
    """
    leaves = n.weights.leaves.get(name, (name,))
    sizes = [math.prod(n.shape(leaf)) for leaf in leaves]
    if len(leaves) == count and all(size == math.prod(shape) for size in sizes):
        return list(leaves)
    if len(leaves) > 1 or sizes[0] != count * math.prod(shape):
        raise RidgelineError(f"the weights {name!r} of {n.node.op_type} cannot be told apart")
    origin = n.recorder.values.pop(leaves[0]).origin
    return [n.recorder.value(shape, "real", origin, f"{leaves[0]}.{i}") for i in range(count)]


def _attention(n: Node) -> None:
    """The Attention operator of opset 23, on [batch, heads, positions, size] or three axes."""
    q, k, v = (n.shape(x) for x in n.inputs[:3])
    heads = q[1] if len(q) == 4 else int(n.attrs["q_num_heads"])
    kv = k[1] if len(k) == 4 else int(n.attrs["kv_num_heads"])
    size = q[3] if len(q) == 4 else q[2] // heads
    of_value = v[3] if len(v) == 4 else v[2] // kv
    mask = [n.all[3]] if n.has(3) else []
    n.emit(
        "attention", [*n.inputs[:3], *mask], n=q[0], heads=heads, kv=kv, rows=q[-2],
        columns=k[-2], size=size, of_value=of_value, causal=int(n.attrs.get("is_causal", 0)),
        scale=float(n.attrs.get("scale", 1 / math.sqrt(size))), dropout=0.0,
    )  # fmt: skip


def _loss(n: Node) -> None:
    n.recorder.step("loss", n.layer, n.inputs[:2], n.node.output[:1], n.node.op_type,
                    which="cross-entropy", axis=1)  # fmt: skip


HANDLERS: dict[str, Handler] = {
    **{name: _function(kind) for name, kind in _FUNCTIONS.items()},
    **dict.fromkeys(_VIEWS, _view),
    "Add": _binary("add", "shift"),
    "Sub": _binary("subtract", "shift"),
    "Mul": _binary("multiply", "scale"),
    "Div": _binary("divide", "scale"),
    "Pow": _power,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Einsum": _einsum,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _rows_norm("layer-norm"),
    "RMSNormalization": _rows_norm("rms-norm"),
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _group_norm,
    "MaxPool": _pool("max-pool"),
    "AveragePool": _pool("avg-pool"),
    "LpPool": _pool("avg-pool"),
    "GlobalAveragePool": _global_pool("adaptive-avg-pool"),
    "GlobalMaxPool": _global_pool("max-pool"),
    "Dropout": _dropout,
    "Gather": _gather,
    "Slice": _slice,
    "Split": _split,
    "Concat": _concat,
    "Pad": _pad,
    "Resize": _resize,
    "Upsample": _resize,
    "Softmax": _softmax("softmax"),
    "LogSoftmax": _softmax("log-softmax"),
    **dict.fromkeys(_CELLS, _recurrent),
    "Attention": _attention,
    "SoftmaxCrossEntropyLoss": _loss,
}
