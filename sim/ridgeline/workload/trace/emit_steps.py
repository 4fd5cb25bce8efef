"""How the steps of a trace are written that are no products and no norms."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

from ridgeline.workload.builder import ADD, STOP
from ridgeline.workload.graph import BackwardPass
from ridgeline.workload.kinds import KINDS, OpKind
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
from ridgeline.workload.ops.losses import BCE_LOSS, LOSS, MSE_LOSS, SMOOTH_L1_LOSS
from ridgeline.workload.ops.pooling import ADAPTIVE_AVG_POOL, AVG_POOL, MAX_POOL
from ridgeline.workload.ops.recurrent import recurrence
from ridgeline.workload.ops.shape import BILINEAR, CONCAT, CUT, NEAREST, PAD, SPLIT
from ridgeline.workload.ops.step import FILL, SCALE
from ridgeline.workload.trace.emit import HELD, WRITERS, TraceWriter
from ridgeline.workload.trace.ir import TraceStep


def _in_place(kind: OpKind) -> Callable[[TraceWriter, TraceStep], None]:
    """Return the writer of a function of one tensor, in its format."""

    def write(w: TraceWriter, step: TraceStep) -> None:
        x = w.read(step.inputs[0])
        w.put(kind, step, (x,), w.b.format(x), in_place=True, shape=w.b.shape(x))

    return write


def _add(w: TraceWriter, step: TraceStep) -> None:
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


def _multiply(w: TraceWriter, step: TraceStep) -> None:
    b, out = w.b, w.values[step.outputs[0]].elements
    inputs = w.reads(step)
    plain = all(b.tensors[x].role not in HELD and b.elements(x) == out for x in inputs)
    if len(inputs) == 2 and plain and all(w.values[x].kind == "real" for x in step.inputs):
        form = w.format_of(inputs)
        pair = [b.cast(x, form, w.layer) for x in inputs]
        w.put(MULTIPLY, step, pair, form, shape=b.shape(pair[0]))
    else:
        w.function(step, "broadcast-multiply")


def _scale(w: TraceWriter, step: TraceStep) -> None:
    x, number = w.read(step.inputs[0]), float(step.attrs["number"])
    w.put(SCALE, step, (x,), w.b.format(x), attrs=(("factor", number),), in_place=True,
          shape=w.b.shape(x))  # fmt: skip


def _gated(kind: OpKind) -> Callable[[TraceWriter, TraceStep], None]:
    def write(w: TraceWriter, step: TraceStep) -> None:
        form = w.format_of(w.reads(step))
        pair = [w.b.cast(w.read(x), form, w.layer) for x in step.inputs]
        w.put(kind, step, pair, form, shape=w.b.shape(pair[0]))

    return write


def _dropout(w: TraceWriter, step: TraceStep) -> None:
    x = w.read(step.inputs[0])
    mask = ("mask", w.b.shape(x), "int8")
    p = (("probability", float(step.attrs["probability"])),)
    w.put(DROPOUT, step, (x,), w.b.format(x), kept=(mask,), attrs=p, shape=w.b.shape(x))


def _softmax(w: TraceWriter, step: TraceStep) -> None:
    x = w.read(step.inputs[0])
    attrs = (("scale", float(step.attrs.get("scale", 1.0))), ("causal", 0))
    w.put(SOFTMAX, step, (x,), w.b.format(x), attrs=attrs, shape=w.b.shape(x))


def _rotary(w: TraceWriter, step: TraceStep) -> None:
    x, angles = w.reads(step)
    w.put(ROTARY, step, (x, angles), w.b.format(x), in_place=True, shape=w.b.shape(x))


def _embedding(w: TraceWriter, step: TraceStep) -> None:
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


def _pool(kind: OpKind, positions: bool = False) -> Callable[[TraceWriter, TraceStep], None]:
    def write(w: TraceWriter, step: TraceStep) -> None:
        x, shape = w.read(step.inputs[0]), w.values[step.outputs[0]].shape
        kept = (("indices", shape, "int64"),) if positions and len(step.outputs) == 1 else ()
        flops = kind.forward.of(step.attrs["touched"])
        attrs = step.attrs.get("windows", ())
        w.put(kind, step, (x,), w.b.format(x), kept=kept, flops=flops, attrs=attrs)

    return write


def _concat(w: TraceWriter, step: TraceStep) -> None:
    b, out = w.b, w.values[step.outputs[0]]
    sizes, axis = step.attrs["sizes"], step.attrs["axis"]
    row = out.elements // max(sum(sizes), 1)
    parts = [w.whole(x, row * size) for x, size in zip(step.inputs, sizes, strict=True)]
    form = w.format_of(parts)
    attrs = (("axis", axis), ("features", 0))
    w.put(CONCAT, step, [b.cast(x, form, w.layer) for x in parts], form, attrs=attrs)


def _cut(w: TraceWriter, step: TraceStep) -> None:
    x, y = w.read(step.inputs[0]), w.values[step.outputs[0]]
    passes = (Fraction(y.elements, max(w.b.elements(x), y.elements, 1)),)
    attrs = ((f"start{step.attrs['axis']}", step.attrs["start"]),)
    w.put(CUT, step, (x,), w.b.format(x), passes=passes, attrs=attrs)


def _copy(kind: OpKind) -> Callable[[TraceWriter, TraceStep], None]:
    def write(w: TraceWriter, step: TraceStep) -> None:
        x = w.read(step.inputs[0])
        axis = step.attrs.get("axis", 0)
        attrs = (("axis", axis), ("features", 0)) if kind is SPLIT else ()
        w.put(kind, step, (x,), w.b.format(x), attrs=attrs)

    return write


def _stop(w: TraceWriter, step: TraceStep) -> None:
    """Write an op that no gradient passes: its output lies where its input does."""
    x, b = w.read(step.inputs[0]), w.b
    if step.inputs[0] not in w.trained:
        w.names[step.outputs[0]] = x
        return
    y = b.activation(f"{w.name}.y", w.values[step.outputs[0]].shape, b.format(x))
    b.emit(KINDS[STOP], w.layer, (x,), (y,), name=w.name, passes=(0,), output_passes=(0,),
           in_place=True)  # fmt: skip
    w.names[step.outputs[0]] = y


def _backward(w: TraceWriter, step: TraceStep) -> None:
    """Note where a backward pass of a step begins, and what follows it; it is no op itself."""
    loss = w.names[step.outputs[0]] = w.read(step.inputs[0])
    attrs = step.attrs
    w.b.backwards.append(
        BackwardPass(
            loss,
            len(w.b.ops),
            tuple((rule, tuple(map(w.read, names))) for rule, names in attrs["updates"]),
            frozenset(map(w.read, attrs["frozen"])),
            frozenset(map(w.read, attrs["forgets"])),
        )
    )


def _step_end(w: TraceWriter, step: TraceStep) -> None:
    w.names[step.outputs[0]] = w.names[step.inputs[-1]]


def _recurrent(w: TraceWriter, step: TraceStep) -> None:
    gates, *weights = map(w.read, step.inputs)
    reverse = bool(step.attrs["reverse"])
    y = recurrence(w.b, w.name, gates, weights, step.attrs["cell"], reverse=reverse)
    w.names[step.outputs[0]] = y


_LOSSES = {"mse": MSE_LOSS, "bce": BCE_LOSS, "smooth-l1": SMOOTH_L1_LOSS}


def _loss(w: TraceWriter, step: TraceStep) -> None:
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


def _fill(w: TraceWriter, step: TraceStep) -> None:
    w.put(FILL, step, (), MASTER, flops=0)


WRITERS |= {
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
    "backward": _backward,
    "step-end": _step_end,
    "recurrent": _recurrent,
    "loss": _loss,
    "fill": _fill,
}
