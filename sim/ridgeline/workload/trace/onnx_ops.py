"""What ONNX operators mean: their names to the steps of a trace."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ridgeline.workload.trace.ir import Origin, Recorder
from ridgeline.workload.trace.windows import pool_attrs

Handler = Callable[["OnnxNode"], None]


class OnnxNode:
    """One node as a handler sees it."""

    def __init__(
        self, node: Any, recorder: Recorder, known: Mapping[str, Any], weights: Any
    ) -> None:
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
        """Return what a value holds."""
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

    def weight(self, name: str, shape: Sequence[int], origin: Origin = "weight") -> str:
        """Return a weight of that name; declare it if the file has none."""
        if name not in self.recorder.values:
            self.recorder.value(shape, "real", origin, name)
        return name


def _attribute(attribute: Any) -> Any:
    from onnx import helper

    value = helper.get_attribute_value(attribute)
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


_VIEWS = [
    "Reshape",
    "Flatten",
    "Squeeze",
    "Unsqueeze",
    "Transpose",
    "Identity",
    "Expand",
    "Cast",
    "CastLike",
    "DepthToSpace",
    "SpaceToDepth",
]
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
    "DFT": "fourier", "STFT": "fourier",
}  # fmt: skip


def _view(n: OnnxNode) -> None:
    x = n.inputs[0]
    n.emit("view" if n.kind(x) == n.kind(n.node.output[0]) else "integer", [x])


def _function(kind: str) -> Handler:
    def handle(n: OnnxNode) -> None:
        keep = n.real() or kind in {"position", "compare"}
        attrs = {"rows": math.prod(n.shape()[:-1])} if kind == "normalize" else {}
        n.emit(kind if keep else "integer", _arrays(n, kind), **attrs)

    return handle


_SEVERAL = frozenset(
    {
        "extremum", "broadcast-add", "subtract", "select", "compare", "prelu", "gather-elements",
        "scatter", "sample-grid", "negative-log-likelihood",
    }
)  # fmt: skip


def _arrays(n: OnnxNode, kind: str) -> list[str]:
    """Return the inputs that are data, not axes and sizes."""
    return n.inputs if kind in _SEVERAL else n.inputs[:1]


def _binary(kind: str, with_number: str) -> Handler:
    """Arithmetic of two tensors, or of a tensor and a known number."""

    def handle(n: OnnxNode) -> None:
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


def _power(n: OnnxNode) -> None:
    exponent = n.constant(1)
    if exponent is None or len(exponent) != 1:
        n.emit("power-of", n.inputs)
        return
    known = {2.0: "square", 0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal", 1.0: "view"}
    n.emit(known.get(float(exponent[0]), "power"), n.inputs[:1], exponent=float(exponent[0]))


def pads_of(
    n: OnnxNode, axes: int, out: Sequence[int], loops: Sequence[Sequence[int]]
) -> list[tuple[int, int]]:
    """Return the padding before and after, explicit or as auto_pad asks for."""
    pads = n.attrs.get("pads", [0] * (2 * axes))
    if str(n.attrs.get("auto_pad", "NOTSET")).startswith("SAME"):
        sizes, kernel, stride, dilation = loops
        total = [
            max((o - 1) * u + d * (k - 1) + 1 - s, 0)
            for o, u, d, k, s in zip(out, stride, dilation, kernel, sizes, strict=True)
        ]
        return [(t // 2, t - t // 2) for t in total]
    return [(int(pads[i]), int(pads[axes + i])) for i in range(axes)]


def _pool(kind: str) -> Handler:
    def handle(n: OnnxNode) -> None:
        kernel, one = n.attrs["kernel_shape"], [1] * len(n.attrs["kernel_shape"])
        stride, dilation = n.attrs.get("strides", one), n.attrs.get("dilations", one)
        sizes = n.shape(n.inputs[0])[2:]
        pads = pads_of(n, len(kernel), n.shape()[2:], (sizes, kernel, stride, dilation))
        padding = [before for before, _ in pads]
        touched = math.prod(n.shape()) * math.prod(kernel)
        of_rows = pool_attrs(kernel, stride, padding, dilation)
        n.emit(kind, n.inputs[:1], touched=touched, windows=of_rows)

    return handle


def _global_pool(kind: str) -> Handler:
    def handle(n: OnnxNode) -> None:
        n.emit(kind, n.inputs, touched=math.prod(n.shape(n.inputs[0])))

    return handle


def _dropout(n: OnnxNode) -> None:
    ratio = float((n.constant(1) or [n.attrs.get("ratio", 0.5)])[0])
    kind = "dropout" if ratio > 0 else "view"
    attrs = {"probability": ratio} if ratio > 0 else {}
    n.recorder.step(kind, n.layer, n.inputs[:1], n.node.output[:1], "Dropout", **attrs)


def _gather(n: OnnxNode) -> None:
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
        n.emit(
            kind,
            [table],
            **({"axis": axis, "start": start, "length": 1} if shape[axis] > 1 else {}),
        )
    else:
        n.emit("gather-elements", n.inputs)


def _slice(n: OnnxNode) -> None:
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


def _split(n: OnnxNode) -> None:
    x = n.inputs[0]
    several = len([o for o in n.node.output if o]) > 1
    n.emit("split" if several else "view", [x], axis=int(n.attrs.get("axis", 0)) % len(n.shape(x)))


def _concat(n: OnnxNode) -> None:
    axis = int(n.attrs["axis"]) % len(n.shape())
    parts = [x for x in n.inputs if math.prod(n.shape(x))]
    if not n.real():
        n.emit("integer", n.inputs)
    elif len(parts) == 1:
        n.emit("view", parts)
    else:
        n.emit("concat", parts, axis=axis, sizes=tuple(n.shape(x)[axis] for x in parts))


def _pad(n: OnnxNode) -> None:
    constant = n.attrs.get("mode", "constant") == "constant"
    n.emit("pad" if constant else "rearrange", n.inputs[:1])


def _resize(n: OnnxNode) -> None:
    mode = n.attrs.get("mode", "nearest")
    kinds = {"nearest": "nearest-upsample", "linear": "bilinear-upsample"}
    n.emit(kinds.get(mode, "resample"), n.inputs[:1])


def _softmax(kind: str) -> Handler:
    def handle(n: OnnxNode) -> None:
        n.emit(kind, n.inputs[:1], axis=int(n.attrs.get("axis", -1)) % len(n.shape()))

    return handle


SIMPLE: dict[str, Handler] = {
    **{name: _function(kind) for name, kind in _FUNCTIONS.items()},
    **dict.fromkeys(_VIEWS, _view),
    "Add": _binary("add", "shift"),
    "Sub": _binary("subtract", "shift"),
    "Mul": _binary("multiply", "scale"),
    "Div": _binary("divide", "scale"),
    "Pow": _power,
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
}
