"""Writes a trace as a forward graph, in the vocabulary of the zoo."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from ridgeline.errors import RidgelineError
from ridgeline.workload.builder import ADD, GraphBuilder
from ridgeline.workload.graph import Passes, Role
from ridgeline.workload.kinds import OpKind
from ridgeline.workload.numerics import MASTER, widest
from ridgeline.workload.ops.attention import ROTARY, SOFTMAX
from ridgeline.workload.ops.contraction import BIAS
from ridgeline.workload.ops.elementwise import (
    DROPOUT,
    GEGLU,
    GELU,
    MULTIPLY,
    RELU,
    SIGMOID,
    SILU,
    SWIGLU,
    TANH,
)
from ridgeline.workload.ops.embedding import EMBEDDING
from ridgeline.workload.ops.functions import FUNCTIONS, function
from ridgeline.workload.ops.losses import BCE_LOSS, LOSS, MSE_LOSS, SMOOTH_L1_LOSS
from ridgeline.workload.ops.pooling import ADAPTIVE_AVG_POOL, AVG_POOL, MAX_POOL
from ridgeline.workload.ops.recurrent import recurrence
from ridgeline.workload.ops.shape import BILINEAR, CONCAT, CUT, NEAREST, PAD, SPLIT
from ridgeline.workload.ops.step import FILL, SCALE
from ridgeline.workload.trace.ir import Capture, Step
from ridgeline.workload.trace.patterns import trained

_HELD = frozenset({Role.WEIGHT, Role.BUFFER, Role.WEIGHT_COPY})


def emit(b: GraphBuilder, capture: Capture, attention: str = "separate") -> str:
    """Write all steps of a trace to a builder; return the name of the loss tensor."""
    writer = Writer(b, capture, attention)
    for step in capture.steps:
        writer.write(step)
    for value in capture.values.values():
        if value.origin in {"weight", "frozen"}:
            writer.read(value.name)  # one that nothing reads takes memory all the same
    return writer.read(capture.loss)


class Writer:
    """Writes steps one after the other; `read` and `put` are what the kinds are written with."""

    def __init__(self, b: GraphBuilder, capture: Capture, attention: str) -> None:
        self.b, self.capture, self.attention = b, capture, attention
        self.values, self.trained = capture.values, trained(capture)
        self.names: dict[str, str] = {}
        self._turned = {
            step.inputs[1]: (step.attrs["n"], step.attrs["k"])
            for step in capture.steps
            if step.kind == "matmul"
            and self.values[step.inputs[1]].shape == (step.attrs["k"], step.attrs["n"])
            and self.values[step.inputs[1]].origin in {"weight", "frozen"}
        }  # matrices [k, n], which are [n, k] in all other graphs
        self._taken: set[str] = set()
        layers = {step.layer for step in capture.steps}
        self._parents = {layer[:i] for layer in layers for i, c in enumerate(layer) if c == "."} | {
            ""
        }
        self.layer = self.name = ""

    def write(self, step: Step) -> None:
        """Write one step."""
        self._open(step)
        writer = WRITERS.get(step.kind)
        if writer is not None:
            writer(self, step)
        elif step.kind in FUNCTIONS:
            self.function(step, step.kind)
        else:
            raise RidgelineError(f"{step.layer}: steps of kind {step.kind!r} cannot be written")

    def _open(self, step: Step) -> None:
        """Choose the op's name and layer: a leaf module is a layer, other ops are their own."""
        if step.layer in self._parents:
            self.name = self._free(f"{step.layer}.{step.kind}".lstrip("."))
            self.layer = self.name
        else:
            taken = step.layer in self._taken
            self.name = self._free(f"{step.layer}.{step.kind}" if taken else step.layer)
            self.layer = step.layer

    def _free(self, name: str) -> str:
        number, free = 1, name
        while free in self._taken:
            number += 1
            free = f"{name}.{number}"
        self._taken.add(free)
        return free

    def read(self, name: str) -> str:
        """Name of the tensor behind a value; what the step does not make is declared now."""
        if name not in self.names:
            value, b = self.values[name], self.b
            if value.origin == "weight":
                made = b.weight(name, self._turned.get(name, value.shape))
            elif value.origin == "input":
                made = b.input(name, value.shape, None if value.kind == "real" else value.kind)
            elif value.origin in {"frozen", "buffer", "constant"}:
                format_ = MASTER if value.kind == "real" else value.kind
                shape = self._turned.get(name, value.shape)
                while len(shape) > 2 and shape[0] == 1:
                    shape = shape[1:]
                made = b.tensor(name, shape, format_, Role.BUFFER)
            else:
                raise RidgelineError(f"the value {name!r} is read before it is made")
            self.names[name] = made
        return self.names[name]

    def reads(self, step: Step) -> list[str]:
        """Names of all inputs; known numbers are part of the op."""
        return [self.read(x) for x in step.inputs if not self._number(x)]

    def _number(self, name: str) -> bool:
        value = self.values[name]
        return value.origin in {"constant", "buffer"} and value.elements == 1

    def compute(self, name: str) -> str:
        """Tensor behind a value in the format of matrix products."""
        return self.b.cast(self.read(name), self.b.numerics.compute, self.layer)

    def is_weight(self, name: str) -> bool:
        """Tell whether a value is held rather than made in the step."""
        return self.values[name].origin in {"weight", "frozen", "buffer", "constant"}

    def put(
        self,
        kind: OpKind,
        step: Step,
        inputs: Sequence[str],
        format_: str,
        *,
        kept: Sequence[tuple[str, tuple[int, ...], str]] = (),
        buffers: Sequence[str] = (),
        flops: int | None = None,
        passes: Passes = (),
        attrs: Sequence[tuple[str, Any]] = (),
        in_place: bool = False,
        loops: Any = None,
        shape: tuple[int, ...] | None = None,
    ) -> str:
        """Append an op for a step: its outputs, and tensors that it keeps for its gradient.

        `flops` None: by the kind's cost an output element.
        """
        b = self.b
        ys = []
        for i, made in enumerate(step.outputs):
            of = self.values[made]
            suffix = "y" if i == 0 and len(step.outputs) == 1 else f"y{i}"
            form = format_ if of.kind == "real" else of.kind
            size = of.shape if shape is None or i else shape
            ys.append(b.activation(f"{self.name}.{suffix}", size, form))
            self.names[made] = ys[-1]
        more = [b.activation(f"{self.name}.{n}", shape_, form) for n, shape_, form in kept]
        b.emit(
            kind, self.layer, inputs, (*ys, *more, *buffers), name=self.name, loops=loops,
            flops=kind.forward.of(b.elements(ys[0])) if flops is None else flops,
            passes=passes, in_place=in_place, attrs=tuple(attrs),
        )  # fmt: skip
        return ys[0]

    def function(self, step: Step, kind: str) -> None:
        """Write a function of the table."""
        inputs = self.reads(step)
        first, *rest = (self.values[name] for name in step.outputs)
        made = self.format_of(inputs)
        formats = [made if v.kind == "real" else v.kind for v in (first, *rest)]
        if kind in {"sum", "mean"} and first.elements == 1 and formats[0] == made:
            formats[0] = MASTER  # losses
        rows = step.attrs.get("rows")
        kept = [(v.shape, f) for v, f in zip(rest, formats[1:], strict=True)]
        if rows is not None:
            kept += [((rows,), MASTER), ((rows,), MASTER)]
        elif kind in {"peak", "order"} and not rest:
            kept.append((first.shape, "int64"))
        attrs = (("op", step.source),) if kind == "unknown" else ()
        made_names = function(
            self.b, self.layer, kind, inputs, first.shape, name=self.name, format_=formats[0],
            kept=kept, attrs=attrs,
        )  # fmt: skip
        for value, name in zip((first, *rest), made_names, strict=False):
            self.names[value.name] = name

    def format_of(self, inputs: Sequence[str]) -> str:
        """Format of a result: the widest of the activations that are real, or else of the rest."""
        b = self.b
        real = [x for x in inputs if not b.format(x).startswith("int")]
        made = [b.format(x) for x in real if b.tensors[x].role not in _HELD]
        return widest(tuple(made or [b.format(x) for x in real] or [b.numerics.compute]))

    def whole(self, name: str, elements: int) -> str:
        """Tensor of a value that was broadcast by a view, with all its elements."""
        x = self.read(name)
        if self.b.elements(x) == elements:
            return x
        y, *_ = function(self.b, self.layer, "rearrange", [x], (elements,),
                         name=self._free(f"{self.name}.repeat"))  # fmt: skip
        return y


def _in_place(kind: OpKind) -> Callable[[Writer, Step], None]:
    """Return the writer of a function of one tensor, in its format."""

    def write(w: Writer, step: Step) -> None:
        x = w.read(step.inputs[0])
        w.put(kind, step, (x,), w.b.format(x), in_place=True, shape=w.b.shape(x))

    return write


def _add(w: Writer, step: Step) -> None:
    x, other = step.inputs
    if w.values[x].elements < w.values[other].elements or (
        w.is_weight(x) and not w.is_weight(other)
    ):
        x, other = other, x
    b, out = w.b, w.values[step.outputs[0]].elements
    a, c = w.read(x), w.read(other)
    same = b.elements(a) == b.elements(c) == out
    if w.values[other].kind != "real" or w.values[x].kind != "real" or w.is_weight(x):
        w.function(step, "broadcast-add")
    elif w.values[other].origin in {"weight", "frozen"} and b.elements(a) == out:
        vector = b.cast(c, b.format(a), w.layer)
        axis = _axis_of(b.shape(a), b.shape(vector))
        w.put(BIAS, step, (a, vector), b.format(a), in_place=True, shape=b.shape(a),
              attrs=(("axis", axis),))  # fmt: skip
    elif same and not w.is_weight(other):
        form = widest((b.format(a), b.format(c)))
        pair = (b.cast(a, form, w.layer), b.cast(c, form, w.layer))
        w.put(ADD, step, pair, form, in_place=True, shape=b.shape(a))
    else:
        w.function(step, "broadcast-add")


def _axis_of(shape: tuple[int, ...], vector: tuple[int, ...]) -> int:
    """Axis along which a vector is added: the last of its size, the channels of images."""
    size = math.prod(vector)
    found = [i for i, extent in enumerate(shape) if extent == size]
    if not found:
        return len(shape) - 1
    return 1 if 1 in found and len(shape) > 3 else found[-1]


def _multiply(w: Writer, step: Step) -> None:
    b, out = w.b, w.values[step.outputs[0]].elements
    inputs = w.reads(step)
    plain = all(b.tensors[x].role not in _HELD and b.elements(x) == out for x in inputs)
    if len(inputs) == 2 and plain and all(w.values[x].kind == "real" for x in step.inputs):
        form = w.format_of(inputs)
        pair = [b.cast(x, form, w.layer) for x in inputs]
        w.put(MULTIPLY, step, pair, form, shape=b.shape(pair[0]))
    else:
        w.function(step, "broadcast-multiply")


def _scale(w: Writer, step: Step) -> None:
    x, number = w.read(step.inputs[0]), float(step.attrs["number"])
    w.put(SCALE, step, (x,), w.b.format(x), attrs=(("factor", number),), in_place=True,
          shape=w.b.shape(x))  # fmt: skip


def _gated(kind: OpKind) -> Callable[[Writer, Step], None]:
    def write(w: Writer, step: Step) -> None:
        form = w.format_of(w.reads(step))
        pair = [w.b.cast(w.read(x), form, w.layer) for x in step.inputs]
        w.put(kind, step, pair, form, shape=w.b.shape(pair[0]))

    return write


def _dropout(w: Writer, step: Step) -> None:
    x = w.read(step.inputs[0])
    mask = ("mask", w.b.shape(x), "int8")
    p = (("probability", float(step.attrs["probability"])),)
    w.put(DROPOUT, step, (x,), w.b.format(x), kept=(mask,), attrs=p, shape=w.b.shape(x))


def _softmax(w: Writer, step: Step) -> None:
    x = w.read(step.inputs[0])
    attrs = (("scale", float(step.attrs.get("scale", 1.0))), ("causal", 0))
    w.put(SOFTMAX, step, (x,), w.b.format(x), attrs=attrs, shape=w.b.shape(x))


def _rotary(w: Writer, step: Step) -> None:
    x, angles = w.reads(step)
    w.put(ROTARY, step, (x, angles), w.b.format(x), in_place=True, shape=w.b.shape(x))


def _embedding(w: Writer, step: Step) -> None:
    indices, table = step.inputs
    if w.values[table].origin not in {"weight", "frozen"}:
        return w.function(step, "gather-elements")
    rows = w.values[table].shape[0]
    taken = w.values[step.outputs[0]].elements // w.values[table].shape[1]
    attrs = (("sparse", step.attrs.get("sparse", 0)),)
    w.put(
        EMBEDDING, step, (w.read(indices), w.read(table)), w.b.numerics.compute,
        passes=(1, Fraction(taken, rows)), attrs=attrs, flops=0,
    )  # fmt: skip
    return None


def _pool(kind: OpKind, positions: bool = False) -> Callable[[Writer, Step], None]:
    def write(w: Writer, step: Step) -> None:
        x, shape = w.read(step.inputs[0]), w.values[step.outputs[0]].shape
        kept = (("indices", shape, "int64"),) if positions and len(step.outputs) == 1 else ()
        flops = kind.forward.of(step.attrs["touched"])
        w.put(kind, step, (x,), w.b.format(x), kept=kept, flops=flops)

    return write


def _concat(w: Writer, step: Step) -> None:
    b, out = w.b, w.values[step.outputs[0]]
    sizes, axis = step.attrs["sizes"], step.attrs["axis"]
    row = out.elements // max(sum(sizes), 1)
    parts = [w.whole(x, row * size) for x, size in zip(step.inputs, sizes, strict=True)]
    form = w.format_of(parts)
    attrs = (("axis", axis), ("features", 0))
    w.put(CONCAT, step, [b.cast(x, form, w.layer) for x in parts], form, attrs=attrs)


def _cut(w: Writer, step: Step) -> None:
    x, y = w.read(step.inputs[0]), w.values[step.outputs[0]]
    passes = (Fraction(y.elements, max(w.b.elements(x), y.elements, 1)),)
    attrs = ((f"start{step.attrs['axis']}", step.attrs["start"]),)
    w.put(CUT, step, (x,), w.b.format(x), passes=passes, attrs=attrs)


def _copy(kind: OpKind) -> Callable[[Writer, Step], None]:
    def write(w: Writer, step: Step) -> None:
        x = w.read(step.inputs[0])
        axis = step.attrs.get("axis", 0)
        attrs = (("axis", axis), ("features", 0)) if kind is SPLIT else ()
        w.put(kind, step, (x,), w.b.format(x), attrs=attrs)

    return write


def _stop(w: Writer, step: Step) -> None:
    if step.inputs[0] in w.trained:
        w.function(step, "stop")
    else:
        w.names[step.outputs[0]] = w.read(step.inputs[0])


def _recurrent(w: Writer, step: Step) -> None:
    gates, *weights = map(w.read, step.inputs)
    reverse = bool(step.attrs["reverse"])
    y = recurrence(w.b, w.name, gates, weights, step.attrs["cell"], reverse=reverse)
    w.names[step.outputs[0]] = y


_LOSSES = {"mse": MSE_LOSS, "bce": BCE_LOSS, "smooth-l1": SMOOTH_L1_LOSS}


def _loss(w: Writer, step: Step) -> None:
    logits, target = map(w.read, step.inputs)
    logits = w.b.cast(logits, MASTER, w.layer)
    size = w.b.elements(logits)
    if step.attrs["which"] == "cross-entropy":
        kept = (("log-probabilities", w.b.shape(logits), MASTER),)
        classes = size // max(w.b.elements(target), 1)
        last = w.b.shape(logits)[-1] == classes
        attrs = (("axis", -1 if last else step.attrs["axis"]),)
        w.put(LOSS, step, (logits, target), MASTER, kept=kept, flops=LOSS.forward.of(size),
              attrs=attrs)  # fmt: skip
    else:
        kind = _LOSSES[step.attrs["which"]]
        w.put(kind, step, (logits, target), MASTER, flops=kind.forward.of(size))


def _fill(w: Writer, step: Step) -> None:
    w.put(FILL, step, (), MASTER, flops=0)


WRITERS: dict[str, Callable[[Writer, Step], None]] = {
    "add": _add,
    "bias": _add,
    "multiply": _multiply,
    "scale": _scale,
    "relu": _in_place(RELU),
    "sigmoid": _in_place(SIGMOID),
    "tanh": _in_place(TANH),
    "gelu": _in_place(GELU),
    "silu": _in_place(SILU),
    "swiglu": _gated(SWIGLU),
    "geglu": _gated(GEGLU),
    "dropout": _dropout,
    "softmax": _softmax,
    "rotary": _rotary,
    "embedding": _embedding,
    "max-pool": _pool(MAX_POOL, positions=True),
    "avg-pool": _pool(AVG_POOL),
    "adaptive-avg-pool": _pool(ADAPTIVE_AVG_POOL),
    "nearest-upsample": _copy(NEAREST),
    "bilinear-upsample": _copy(BILINEAR),
    "concat": _concat,
    "slice": _cut,
    "split": _copy(SPLIT),
    "pad": _copy(PAD),
    "stop": _stop,
    "recurrent": _recurrent,
    "loss": _loss,
    "fill": _fill,
}
