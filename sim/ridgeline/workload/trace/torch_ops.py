"""What PyTorch's operators mean: ATen names to the steps of a trace.

Simple operators are rows of tables; the others are small functions that read the arguments.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ridgeline.workload.trace import windows
from ridgeline.workload.trace.torch_capture import Handler, OperatorCall, kind_of, shape_of
from ridgeline.workload.trace.torch_names import FACTORIES, FUNCTIONS, VIEWS


def _view(c: OperatorCall) -> None:
    source = c.args["self"] if "self" in c.args else next(iter(c.args.values()))
    moved = kind_of(source) == kind_of(c.out)
    c.emit("view" if moved else "integer", [c.tape.name(source, c.layer)])


def _stop(c: OperatorCall) -> None:
    c.emit("stop", c.tensors())


def _function(kind: str) -> Handler:
    def handle(c: OperatorCall) -> None:
        if c.get("dtype") is None and not c.tensors():
            c.constant()
            return
        out = c.out[0] if isinstance(c.out, list | tuple) else c.out
        real = kind_of(out) == "real"
        whole = real or kind in {"position", "compare", "random"}
        c.emit(kind if whole else "integer", c.tensors())

    return handle


def unknown(c: OperatorCall) -> None:
    """Record an operator that nobody knows; `emit` prices it by its bytes, and says so."""
    if not c.tensors():
        c.constant()
    else:
        c.emit("unknown", c.tensors())


def _binary(kind: str, with_number: str) -> Handler:
    """Addition and the like: of two tensors, or of a tensor and a number."""

    def handle(c: OperatorCall) -> None:
        names, numbers = c.tensors(), [c.args.get("self"), c.args.get("other")]
        if kind_of(c.out) != "real":
            c.emit("integer", names)
        elif len(names) == 1:
            (number,) = (float(n.real) for n in numbers if isinstance(n, int | float | complex))
            c.emit(with_number, names, number=number)
        else:
            c.emit(kind, names)

    return handle


def _divide(c: OperatorCall) -> None:
    names, number = c.tensors(), c.args.get("other")
    if kind_of(c.out) != "real":
        c.emit("integer", names)
    elif isinstance(number, int | float):
        c.emit("scale", names, number=1 / number if number else math.inf)
    else:
        c.emit("divide" if len(names) == 2 else "reciprocal", names)


def _power(c: OperatorCall) -> None:
    names, exponent = c.tensors(), c.args.get("exponent")
    if len(names) == 2 or not isinstance(exponent, int | float):
        c.emit("power-of", names)
    else:
        known = {2.0: "square", 0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}
        c.emit(known.get(float(exponent), "power"), names, exponent=float(exponent))


def _addc(kind: str) -> Handler:
    def handle(c: OperatorCall) -> None:
        x, a, b = (str(c.tensor(name)) for name in ("self", "tensor1", "tensor2"))
        c.emit("add", [x, c.emit_inner(kind, [a, b], shape_of(c.out))])

    return handle


def _copy(c: OperatorCall) -> None:
    c.emit("view", [str(c.tensor("src"))])


def _max(c: OperatorCall) -> None:
    """Max and min: of all elements, of an axis with its position, or of two tensors."""
    if len(c.tensors()) == 2:
        c.emit("extremum", c.tensors())
    else:
        c.emit("peak" if isinstance(c.out, tuple | list) else "peaks", c.tensors()[:1])


def _slice(c: OperatorCall) -> None:
    axis = c.get("dim", 0) % len(c.shape("self"))
    size = c.shape("self")[axis]
    start = c.get("start", c.get("index", 0))
    start = min(start + size if start < 0 else start, size)
    stride = c.get("step", 1)
    length = shape_of(c.out)[axis] if len(shape_of(c.out)) == len(c.shape("self")) else 1
    x = [str(c.tensor("self"))]
    if length == size:
        c.emit("view", x)
    elif stride != 1:
        c.emit("rearrange", x)
    else:
        c.emit("slice", x, axis=axis, start=start, length=length)


def _split(c: OperatorCall) -> None:
    c.emit("split" if len(c.out) > 1 else "view", [str(c.tensor("self"))],
           axis=c.get("dim", 0) % len(c.shape("self")))  # fmt: skip


def _concat(c: OperatorCall) -> None:
    axis = c.get("dim", 0) % len(shape_of(c.out))
    parts = [t for t in c.args["tensors"] if t.numel()]
    stacked = c.source.endswith("stack")
    names = [c.tape.name(t, c.layer) for t in parts]
    if kind_of(c.out) != "real":
        c.emit("integer", names)
    elif len(parts) == 1:
        c.emit("view", names)
    else:
        sizes = [1 if stacked else shape_of(t)[axis] for t in parts]
        c.emit("concat", names, axis=axis, sizes=tuple(sizes))


def _pad(c: OperatorCall) -> None:
    out, x = shape_of(c.out), c.shape("self")
    mirrored = c.get("mode", "constant") != "constant" or "constant" not in c.source + "constant"
    if math.prod(out) < math.prod(x):
        c.emit("rearrange", [str(c.tensor("self"))])
    else:
        c.emit("rearrange" if mirrored else "pad", [str(c.tensor("self"))])


def _dropped(c: OperatorCall) -> str:
    """Return what dropout reads: ``input``, or ``self`` of the operators that work in place."""
    return str(c.tensor("input") or c.tensor("self"))


def _dropout(c: OperatorCall) -> None:
    x = _dropped(c)
    active = bool(c.get("train", True)) and float(c.get("p", 0.5)) > 0
    if active:
        c.emit("dropout", [x], probability=float(c.get("p", 0.5)))
    else:
        c.emit("view", [x])


def _channel_dropout(c: OperatorCall) -> None:
    """Drop whole channels: the mask has one element for each."""
    if not c.get("train", True) or not c.get("p", 0.5):
        c.emit("view", [_dropped(c)])
        return
    shape = shape_of(c.out)
    mask = c.tape.value((*shape[:2], *(1 for _ in shape[2:])), "real", "constant")
    c.emit("multiply", [_dropped(c), mask])


def _embedding(c: OperatorCall) -> None:
    table, indices = str(c.tensor("weight")), str(c.tensor("indices"))
    c.emit("embedding", [indices, table], sparse=int(bool(c.get("sparse", False))))


def _softmax(kind: str) -> Handler:
    def handle(c: OperatorCall) -> None:
        c.emit(kind, [str(c.tensor("self"))], axis=c.get("dim", -1) % max(len(c.shape("self")), 1))

    return handle


def _attention(c: OperatorCall, **more: float) -> None:
    q, k, v = (c.shape(name) for name in ("query", "key", "value"))
    *lead, rows, size = q
    heads = lead[-1] if lead else 1
    kv = k[-3] if len(k) > 2 else 1
    mask = c.tensor("attn_mask")
    c.emit(
        "attention",
        [str(c.tensor(name)) for name in ("query", "key", "value")]
        + ([mask] if mask is not None else []),
        n=math.prod(lead[:-1]), heads=heads, kv=kv, rows=rows, columns=k[-2], size=size,
        of_value=v[-1], causal=int(bool(c.get("is_causal", False))),
        scale=float(c.get("scale", 1 / math.sqrt(size))),
        dropout=float(c.get("dropout_p", 0.0)), **more,
    )  # fmt: skip


def _flex_attention(c: OperatorCall) -> None:
    """Attention whose scores a function changes: one kernel, of the blocks that a mask leaves."""
    c.args.setdefault("scale", None)
    (c.out, *_) = c.out
    _attention(c, met=c.args["met"])


def _packed(c: OperatorCall) -> None:
    """Rows of sequences by timestep: an order of the same elements."""
    x = str(c.tensor("input"))
    c.tape.step("view", c.layer, (x,), (c.tape.made(c.out[0]),), c.source)
    c.tape.declare(c.out[1], "constant")


def _unpacked(c: OperatorCall) -> None:
    x = str(c.tensor("data"))
    same = c.out[0].numel() == c.args["data"].numel()
    kind = "view" if same else "pad"
    c.tape.step(kind, c.layer, (x,), (c.tape.made(c.out[0]),), c.source)
    c.tape.declare(c.out[1], "constant")


_MORE_OF_WINDOWS = (("padding", 0), ("dilation", 1))


def _pool(kind: str) -> Handler:
    def handle(c: OperatorCall) -> None:
        out = shape_of(c.out[0] if isinstance(c.out, tuple) else c.out)
        x = c.shape("self")
        dims = sum(ch.isdigit() and int(ch) for ch in c.source.partition("pool")[2][:2]) or 1
        if "output_size" in c.args:
            adaptive = kind == "avg-pool"
            c.emit(
                "adaptive-avg-pool" if adaptive else kind,
                [str(c.tensor("self"))],
                touched=math.prod(out[:-dims]) * windows.adaptive(x[-dims:], out[-dims:]),
            )
            return
        kernel = windows.spread(c.args["kernel_size"], dims)
        stride = windows.spread(c.get("stride", None) or kernel, dims)
        padding, dilation = (windows.spread(c.get(*more), dims) for more in _MORE_OF_WINDOWS)
        touched = math.prod(out) * math.prod(kernel)
        of_rows = windows.pool_attrs(kernel, stride, padding, dilation)
        c.emit(kind, [str(c.tensor("self"))], touched=touched, windows=of_rows)

    return handle


def _resample(c: OperatorCall) -> None:
    nearest = "nearest" in c.source
    linear = "bilinear" in c.source
    kind = "nearest-upsample" if nearest else "bilinear-upsample" if linear else "resample"
    name = "input" if "input" in c.args else "self"
    c.emit(kind, [str(c.tensor(name))])


def _rows(kinds: dict[str, str]) -> dict[str, Handler]:
    return {name: _function(kind) for name, kind in kinds.items()}


def _all(names: Iterable[str], handler: Handler) -> dict[str, Handler]:
    return dict.fromkeys(names, handler)


def _constant(c: OperatorCall) -> None:
    c.constant()


SIMPLE: dict[str, Handler] = {
    **_rows(FUNCTIONS),
    **_all(VIEWS, _view),
    **_all(FACTORIES, _constant),
    "detach": _stop,
    "copy": _copy,
    "add": _binary("add", "shift"),
    "sub": _binary("subtract", "shift"),
    "rsub": _binary("subtract", "shift"),
    "mul": _binary("multiply", "scale"),
    "div": _divide,
    "pow": _power,
    "addcmul": _addc("multiply"),
    "addcdiv": _addc("divide"),
    "max": _max,
    "min": _max,
    **_all(["slice", "select", "narrow"], _slice),
    **_all(
        [
            "split",
            "split_with_sizes",
            "chunk",
            "unbind",
            "tensor_split",
            "unsafe_split",
            "unsafe_chunk",
        ],
        _split,
    ),
    **_all(["cat", "concat", "concatenate", "stack"], _concat),
    **_all(
        [
            "pad",
            "constant_pad_nd",
            "reflection_pad1d",
            "reflection_pad2d",
            "reflection_pad3d",
            "replication_pad1d",
            "replication_pad2d",
            "replication_pad3d",
        ],
        _pad,
    ),
    "dropout": _dropout,
    "feature_dropout": _channel_dropout,
    "embedding": _embedding,
    "softmax": _softmax("softmax"),
    "_softmax": _softmax("softmax"),
    "log_softmax": _softmax("log-softmax"),
    "_log_softmax": _softmax("log-softmax"),
    "scaled_dot_product_attention": _attention,
    "flex_attention": _flex_attention,
    "_pack_padded_sequence": _packed,
    "_pad_packed_sequence": _unpacked,
    **_all([f"max_pool{d}d{s}" for d in "123" for s in ("", "_with_indices")], _pool("max-pool")),
    **_all([f"adaptive_max_pool{d}d" for d in "123"], _pool("max-pool")),
    **_all([f"avg_pool{d}d" for d in "123"], _pool("avg-pool")),
    **_all([f"adaptive_avg_pool{d}d" for d in "123"] + ["_adaptive_avg_pool2d"], _pool("avg-pool")),
    **_all(
        [
            f"upsample_{m}"
            for m in (
                "nearest1d",
                "nearest2d",
                "nearest3d",
                "_nearest_exact2d",
                "linear1d",
                "bilinear2d",
                "trilinear3d",
                "bicubic2d",
                "_bilinear2d_aa",
                "_bicubic2d_aa",
            )
        ]
        + ["_upsample_nearest_exact2d"],
        _resample,
    ),
}
