"""What ONNX operators with weights mean: products, norms, recurrences, losses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ridgeline.errors import RidgelineError
from ridgeline.workload.trace import einsum, windows
from ridgeline.workload.trace.onnx_folded import has_norm
from ridgeline.workload.trace.onnx_ops import Handler, OnnxNode, pads_of


def _matmul(n: OnnxNode) -> None:
    a, b = n.inputs[:2]
    x, y, out = n.shape(a), n.shape(b), n.shape()
    rows, columns = (x[-2] if len(x) > 1 else 1), (y[-1] if len(y) > 1 else 1)
    lead = math.prod(out) // max(rows * columns, 1)
    if math.prod(y[:-2]) == 1:
        loops = {"m": lead * rows, "n": columns, "k": x[-1], "batch": 1}
    else:
        loops = {"m": rows, "n": columns, "k": x[-1], "batch": lead}
    _product(n, "matmul", loops, "add", -1)


def _gemm(n: OnnxNode) -> None:
    rows, columns = n.shape()
    k = n.shape(n.inputs[0])[0 if n.attrs.get("transA", 0) else 1]
    _product(n, "matmul", {"m": rows, "n": columns, "k": k, "batch": 1}, "add", -1)


def _product(n: OnnxNode, kind: str, loops: Mapping[str, Any], join: str, axis: int) -> None:
    """Write a product with what an exporter may have put into it or left out.

    Its bias along an axis is added by the step `join`, unless the exporter left out one of zeros;
    batch normalisation that was multiplied into it stands behind it.
    """
    channels = n.shape()[axis]
    norm = n.weights.norm(n.node)
    bias = n.weights.bias(n.node)
    folded = norm is None and n.has(2) and has_norm(*n.node.input[1:3])
    if bias is not None:
        bias = n.weight(bias, (channels,))
    elif n.has(2) and not folded and (norm is None or n.weights.is_trained(n.node.input[2])):
        bias = n.all[2]
    steps: list[tuple[str, list[str], dict[str, Any]]] = [(kind, n.inputs[:2], dict(loops))]
    if bias is not None:
        steps.append((join, [bias], {}))
    if norm is not None or folded:
        scale, shift = norm or (f"{n.all[2]}.scale", n.all[2])
        weights = [n.weight(x, (channels,)) for x in (scale, shift)]
        states = [n.weight(f"{shift}.{x}", (channels,), "buffer") for x in ("mean", "variance")]
        steps.append(("batch-norm", [*weights, *states], {"channels": channels, "running": True}))
    made: list[str] = []
    for step, inputs, attrs in steps[:-1]:
        made = [n.inner(step, [*made, *inputs], n.shape(), **attrs)]
    step, inputs, attrs = steps[-1]
    n.emit(step, [*made, *inputs], **attrs)


def _einsum(n: OnnxNode) -> None:
    """Write products of two operands from left to right, as PyTorch does it."""
    shapes = [n.shape(x) for x in n.inputs]
    terms = einsum.parsed(n.attrs["equation"], [len(shape) for shape in shapes])
    if terms is None:
        n.emit("unknown", n.inputs)
        return
    operands, result = terms
    sizes: dict[str, int] = {}
    for letters, shape in zip(operands, shapes, strict=True):
        sizes |= {c: max(s, sizes.get(c, 1)) for c, s in zip(letters, shape, strict=True)}
    made, letters = n.inputs[0], operands[0]
    if len(operands) == 1:
        moved = len(set(letters)) == len(letters) == len(result)
        n.emit("view" if moved else "sum", n.inputs)
    for i, other in enumerate(operands[1:], 1):
        keep = set(result).union(*operands[i + 1 :])
        product = einsum.pair(letters, other, keep, sizes)
        inputs, last = [made, n.inputs[i]], i == len(operands) - 1
        loops = {"m": product.m, "n": product.n, "k": product.k, "batch": product.batch}
        kind = "matmul" if product.k * max(product.m, product.n) > 1 else "multiply"
        attrs = loops if kind == "matmul" else {}
        letters = product.letters
        if last:
            n.emit(kind, inputs, **attrs)
        else:
            shape = tuple(sizes[c] for c in letters)
            name = n.recorder.value(shape, "real", name=f"{n.node.output[0]}.{i}")
            n.recorder.step(kind, n.layer, inputs, (name,), n.node.op_type, **attrs)
            made = name


def _conv(n: OnnxNode) -> None:
    x, w = n.shape(n.inputs[0]), n.shape(n.inputs[1])
    out, axes = n.shape(), len(w) - 2
    stride = n.attrs.get("strides", [1] * axes)
    dilation = n.attrs.get("dilations", [1] * axes)
    padding = pads_of(n, axes, out[2:], (x[2:], w[2:], stride, dilation))
    group = int(n.attrs.get("group", 1))
    loops = windows.conv_loops(x, w, out, stride, padding, dilation, group)
    _product(n, "conv", loops, "bias", 1)


def _conv_transpose(n: OnnxNode) -> None:
    x, w = n.shape(n.inputs[0]), n.shape(n.inputs[1])
    group = int(n.attrs.get("group", 1))
    pixels = x[0] * math.prod(x[2:])
    loops = {"m": pixels, "n": math.prod(w[1:]), "k": w[0] // group, "batch": group}
    _product(n, "conv-transpose", loops, "bias", 1)


def _batch_norm(n: OnnxNode) -> None:
    """Normalise by the statistics of the batch, also where inference was exported."""
    made = n.node.output[0]
    n.recorder.step("batch-norm", n.layer, n.inputs[:5], (made,), "BatchNormalization",
                    channels=n.shape(n.inputs[0])[1], running=True)  # fmt: skip


def _rows_norm(kind: str) -> Handler:
    def handle(n: OnnxNode) -> None:
        x = n.shape(n.inputs[0])
        axis = int(n.attrs.get("axis", -1)) % len(x)
        n.recorder.step(kind, n.layer, n.inputs[:3], n.node.output[:1], n.node.op_type,
                        rows=math.prod(x[:axis]))  # fmt: skip

    return handle


def _group_norm(n: OnnxNode) -> None:
    x = n.shape(n.inputs[0])
    n.emit("group-norm", n.inputs[:3], rows=x[0] * int(n.attrs.get("num_groups", x[1])))


_CELLS = {"LSTM": ("lstm", 4), "GRU": ("gru", 3), "RNN": ("rnn-tanh", 1)}


def _recurrent(n: OnnxNode) -> None:
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


def _input_product(n: OnnxNode, x: str, weight: str, shape: Sequence[int]) -> str:
    made = n.recorder.value(shape, "real")
    n.recorder.step("matmul", n.layer, (x, weight), (made,), n.node.op_type,
                    m=shape[0] * shape[1], n=shape[2], k=n.shape(x)[-1], batch=1)  # fmt: skip
    return made


def _pieces(n: OnnxNode, name: str, count: int, shape: Sequence[int]) -> list[str]:
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


def _attention(n: OnnxNode) -> None:
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


def _loss(n: OnnxNode) -> None:
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
