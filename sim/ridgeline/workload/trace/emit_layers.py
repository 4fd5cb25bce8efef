"""Writes the steps with products and norms: the second half of `emit`."""

from __future__ import annotations

import math

from ridgeline.workload.builder import Attrs
from ridgeline.workload.graph import MET, Conv, Gemm
from ridgeline.workload.kinds import OpKind
from ridgeline.workload.numerics import MASTER
from ridgeline.workload.ops.attention import CONTEXT, FLASH, PRODUCT, SCORES, SOFTMAX
from ridgeline.workload.ops.contraction import (
    CONV2D,
    CONV_TRANSPOSE2D,
    GEMM,
    adapted,
    adapted_image,
    operands,
)
from ridgeline.workload.ops.elementwise import DROPOUT
from ridgeline.workload.ops.functions import function
from ridgeline.workload.ops.normalization import BATCH_NORM, GROUP_NORM, LAYER_NORM, RMS_NORM
from ridgeline.workload.trace.emit import WRITERS, TraceWriter
from ridgeline.workload.trace.ir import TraceStep


def _matmul(w: TraceWriter, step: TraceStep) -> None:
    a, b = step.inputs
    m, n, k, batch = (step.attrs[name] for name in ("m", "n", "k", "batch"))
    if w.is_weight(a) and not w.is_weight(b):
        a, b, m, n = b, a, n, m
    form = w.b.numerics.compute
    if w.is_weight(b):
        loops = Gemm(m, n, k, batch)
        pair = operands(w.b, w.layer, GEMM, w.read(a), w.read(b), loops)
        y = w.put(GEMM, step, pair, form, loops=loops, flops=0)
        if w.values[b].origin == "weight":
            w.names[step.outputs[0]] = adapted(w.b, w.name, w.read(a), (y,), k, batch)[0]
        return
    pair = (w.compute(a), w.compute(b))
    part, heads = step.attrs.get("part"), step.attrs.get("heads", 1)
    kind = {"scores": SCORES, "context": CONTEXT}.get(part or "", PRODUCT)
    group = _sharing(w, pair[1], batch * n * k, heads)
    loops = Gemm(group * m, n, k, batch // group)
    attrs = (("heads", heads), ("kv-heads", heads // group), ("causal", 0)) if part else ()
    shape = None
    if part == "context" and batch % heads == 0:  # heads side by side, as families write it
        shape = (batch // heads, m, heads * n)
    w.put(kind, step, pair, form, loops=loops, attrs=attrs, flops=0, shape=shape)


def _sharing(w: TraceWriter, operand: str, elements: int, heads: int) -> int:
    """How many heads share one head of keys or values: by how much a view has repeated them."""
    group, rest = divmod(elements, max(w.b.elements(operand), 1))
    return group if group and not rest and heads % group == 0 else 1


def _attention(w: TraceWriter, step: TraceStep) -> None:
    """Scaled dot-product attention that was written as one function."""
    q, k, v, *mask = step.inputs
    a = step.attrs
    n, heads, rows, columns = (a[name] for name in ("n", "heads", "rows", "columns"))
    kv = heads // _sharing(w, w.read(k), n * heads * columns * a["size"], heads)
    parts = tuple(map(w.compute, (q, k, v)))
    biased = bool(mask) and mask[0] in w.trained
    blocks = a.get("met")  # of a kernel that leaves out blocks of scores; it never stores them
    if (w.attention == "separate" and blocks is None) or biased:
        _separate(w, step, parts, kv, mask if biased else ())
        return
    group = heads // kv
    scores = n * heads * rows * columns
    drops = bool(a["dropout"])
    w.put(
        FLASH, step, parts, w.b.numerics.compute,
        shape=(n, rows, heads * a["of-value"]), kept=(("log-sums", (n, heads, rows), MASTER),),
        loops=Gemm(group * rows, columns, a["size"] + a["of-value"], n * kv),
        flops=(FLASH.forward.flops + drops * DROPOUT.forward.flops) * scores,
        attrs=(("heads", heads), ("kv-heads", kv), ("causal", a["causal"]),
               ("scale", a["scale"]), ("probability", a["dropout"]),
               *(((MET, blocks),) if blocks is not None and blocks < 1 else ())),
    )  # fmt: skip


def _separate(
    w: TraceWriter,
    step: TraceStep,
    parts: tuple[str, ...],
    kv: int,
    mask: tuple[str, ...] | list[str],
) -> None:
    """Attention as the ops that store the scores."""
    b, a, q, k, v = w.b, step.attrs, *parts
    n, heads, rows, columns = (a[name] for name in ("n", "heads", "rows", "columns"))
    group, shape, form, base = heads // kv, (n, heads, rows, columns), b.numerics.compute, w.name
    attrs = (("heads", heads), ("kv-heads", kv), ("causal", a["causal"]))

    def put(kind: OpKind, part: str, inputs: tuple[str, ...], more: tuple[str, ...] = (),
            loops: Gemm | None = None, attrs: Attrs = attrs) -> str:  # fmt: skip
        y = b.activation(f"{base}.{part}.y", shape, form)
        extra = [b.activation(f"{base}.{part}.{name}", shape, "int8") for name in more]
        flops = kind.forward.of(b.elements(y))
        b.emit(kind, w.layer, inputs, (y, *extra), name=f"{base}.{part}", loops=loops,
               flops=flops, attrs=attrs)  # fmt: skip
        return y

    p = put(SCORES, "scores", (q, k), loops=Gemm(group * rows, columns, a["size"], n * kv))
    for name in mask:
        inputs = [p, w.read(name)]
        p, *_ = function(b, w.layer, "broadcast-add", inputs, shape, name=f"{base}.bias")
    p = put(SOFTMAX, "softmax", (p,), attrs=(("scale", a["scale"]), ("causal", a["causal"])))
    if a["dropout"]:
        p = put(DROPOUT, "dropout", (p,), ("mask",), attrs=(("probability", a["dropout"]),))
    w.name = f"{base}.context"
    loops = Gemm(group * rows, a["of-value"], columns, n * kv)
    joined = (n, rows, heads * a["of-value"])
    w.put(CONTEXT, step, (p, v), form, loops=loops, attrs=attrs, flops=0, shape=joined)


def _conv(w: TraceWriter, step: TraceStep) -> None:
    a = step.attrs
    loops = Conv(a["n"], a["c"], a["h"], a["w"], a["f"], a["r"], a["s"], a["stride"],
                 a["padding"], a["dilation"], a["groups"], a.get("taps", 1))  # fmt: skip
    parts = [w.compute(x) for x in step.inputs]
    y = w.put(CONV2D, step, parts, w.b.numerics.compute, loops=loops, flops=0)
    if w.values[step.inputs[1]].origin == "weight":
        w.names[step.outputs[0]] = adapted_image(w.b, w.name, parts[0], y, loops)


def _conv_transpose(w: TraceWriter, step: TraceStep) -> None:
    loops = Gemm(*(step.attrs[name] for name in ("m", "n", "k", "batch")))
    parts = [w.compute(x) for x in step.inputs]
    w.put(CONV_TRANSPOSE2D, step, parts, w.b.numerics.compute, loops=loops, flops=0)


def _batch_norm(w: TraceWriter, step: TraceStep) -> None:
    x, *rest = map(w.read, step.inputs)
    channels = (step.attrs["channels"],)
    running = rest[2:] if step.attrs["running"] else []
    w.put(
        BATCH_NORM, step, (x, *rest), w.b.format(x), buffers=running,
        kept=(("mean", channels, MASTER), ("inverse-deviation", channels, MASTER)),
        flops=BATCH_NORM.forward.of(w.b.elements(x)), shape=w.b.shape(x),
        passes=(2, *(1 for _ in rest)),
        attrs=(("axis", 1),),
    )  # fmt: skip


def _rows_norm(kind: OpKind, saved: tuple[str, ...]) -> None:
    def write(w: TraceWriter, step: TraceStep) -> None:
        x, *weights = map(w.read, step.inputs)
        count, lead = int(step.attrs["rows"]), w.b.shape(x)[:-1]
        rows = lead if math.prod(lead) == count else (count,)
        kept = tuple((name, rows, MASTER) for name in saved)
        w.put(kind, step, (x, *weights), w.b.format(x), kept=kept,
              flops=kind.forward.of(w.b.elements(x)), shape=w.b.shape(x))  # fmt: skip

    WRITERS[kind.name] = write


_rows_norm(LAYER_NORM, ("mean", "inverse-deviation"))
_rows_norm(GROUP_NORM, ("mean", "inverse-deviation"))
_rows_norm(RMS_NORM, ("inverse-deviation",))
WRITERS |= {
    "matmul": _matmul,
    "attention": _attention,
    "conv": _conv,
    "conv-transpose": _conv_transpose,
    "batch-norm": _batch_norm,
}
