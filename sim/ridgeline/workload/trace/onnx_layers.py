"""What ONNX operators with weights mean: products, norms, recurrences, losses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ridgeline.errors import RidgelineError
from ridgeline.workload.trace import windows
from ridgeline.workload.trace.ir import Origin
from ridgeline.workload.trace.onnx_folded import has_norm
from ridgeline.workload.trace.onnx_ops import Handler, Node


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
    if len(terms) != 2 or "." in left or (not right and "->" not in n.attrs["equation"]):
        n.emit("unknown", n.inputs)
        return
    sizes = {
        c: s
        for t, x in zip(terms, n.inputs, strict=True)
        for c, s in zip(t, n.shape(x), strict=True)
    }
    a, b = (set(t) for t in terms)
    out = set(right)

    def extent(letters: set[str]) -> int:
        return math.prod(sizes[c] for c in letters)

    n.emit("matmul", n.inputs, m=extent(a & out - b), n=extent(b & out - a),
           k=extent((a | b) - out), batch=extent(a & b & out))  # fmt: skip


def _pads(
    n: Node, axes: int, out: Sequence[int], loops: Sequence[Sequence[int]]
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


def _conv(n: Node) -> None:
    x, w = n.shape(n.inputs[0]), n.shape(n.inputs[1])
    out, axes = n.shape(), len(w) - 2
    stride = n.attrs.get("strides", [1] * axes)
    dilation = n.attrs.get("dilations", [1] * axes)
    padding = _pads(n, axes, out[2:], (x[2:], w[2:], stride, dilation))
    group = int(n.attrs.get("group", 1))
    loops = windows.conv_loops(x, w, out, stride, padding, dilation, group)
    if n.has(2) and has_norm(*n.node.input[1:3]):
        _normed(n, n.inner("conv", n.inputs[:2], out, **loops))
    else:
        _biased(n, "conv", loops)


def _normed(n: Node, made: str) -> None:
    """Put batch normalisation back behind a convolution: four vectors for the bias."""
    shift = n.all[2]
    channels = n.shape()[1]
    origins: dict[str, Origin] = {"scale": "weight", "mean": "buffer", "variance": "buffer"}
    rest = [
        n.recorder.value((channels,), "real", origin, f"{shift}.{what}")
        for what, origin in origins.items()
    ]
    inputs = [made, rest[0], shift, *rest[1:]]
    n.emit("batch-norm", inputs, channels=channels, running=True)


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
    """Normalise by the statistics of the batch, also where inference was exported."""
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
    """Write Attention of opset 23, on [batch, heads, positions, size] or three axes."""
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


LAYERS: dict[str, Handler] = {
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
    "Attention": _attention,
    "SoftmaxCrossEntropyLoss": _loss,
    **dict.fromkeys(_CELLS, _recurrent),
}
