"""Axis rules of images and volumes: b samples, c channels (see `axes`).

The last two dimensions are rows and columns. Where an op reads windows of them, its signature says
so, and only `spatial` divides them; elsewhere they are dimensions like any other.
"""

from __future__ import annotations

from dataclasses import replace

from ridgeline.parallel.sharding.axes import (
    ADJUSTMENTS,
    COLUMNS,
    ROWS,
    Inner,
    Labels,
    Signature,
    Tensors,
    rule,
    whole,
    without_halos,
)
from ridgeline.parallel.sharding.halo import Window
from ridgeline.workload.graph import Conv, Op

_AXES = {ROWS: "h", COLUMNS: "w"}


def _image(shape: tuple[int, ...], channels: str) -> Labels:
    """Labels of images or volumes: the first axis of a volume stays whole."""
    if len(shape) < 4:
        return ("b", channels, *("" for _ in shape[2:]))
    return ("b", channels, *("" for _ in shape[4:]), ROWS, COLUMNS)


def _filters(shape: tuple[int, ...], first: str, second: str) -> Labels:
    return (first, second, *("" for _ in shape[2:]))


@rule("conv2d")
def conv2d(op: Op, tensors: Tensors) -> Signature:
    """X [b, c, h, w] w [o, c, r, s] -> y [b, o, p, q], or volumes; groups go together."""
    assert isinstance(op.loops, Conv)
    x, w, y = (tensors[name].shape for name in (*op.inputs, *op.outputs))
    windows = _conv_windows(op.loops, x) if len(x) > 3 else {}
    if op.loops.groups > 1:
        return Signature(
            (_image(x, "g"), _filters(w, "g", "")),
            (_image(y, "g"),),
            {"g": op.loops.groups},
            {"b": ("batch",), "g": ("groups", "c_in", "c_out")},
            windows=windows,
        )
    return Signature(
        (_image(x, "c"), _filters(w, "o", "c")),
        (_image(y, "o"),),
        loops={"b": ("batch",), "o": ("c_out",), "c": ("c_in",)},
        windows=windows,
    )


def _conv_windows(loops: Conv, x: tuple[int, ...]) -> dict[str, Window]:
    """Windows of a convolution; unequal padding is part of the image that its loops read."""
    sizes = (loops.h_in, loops.w_in)
    found = {}
    for axis, label in enumerate((ROWS, COLUMNS)):
        before = loops.padding[axis] + (sizes[axis] - x[axis - 2]) // 2
        kernel = (loops.r, loops.s)[axis]
        found[label] = Window("slide", kernel, loops.stride[axis], before, loops.dilation[axis])
    return found


@rule("conv-transpose2d")
def conv_transpose2d(op: Op, tensors: Tensors) -> Signature:
    """X [b, c, h, w] w [c, o, r, s] -> y [b, o, p, q], or volumes."""
    x, w, y = (tensors[name].shape for name in (*op.inputs, *op.outputs))
    return Signature(
        (_image(x, "c"), _filters(w, "c", "o")),
        (_image(y, "o"),),
        loops={"b": ("m",), "o": ("n",), "c": ("k",), ROWS: ("m",), COLUMNS: ("m",)},
        windows={
            label: _spreading(w[axis], x[axis], y[axis])
            for axis, label in ((-2, ROWS), (-1, COLUMNS))
            if len(x) > 3
        },
    )


def _spreading(kernel: int, n_in: int, n_out: int) -> Window:
    """Window of a transposed convolution: of its stride and padding the sizes leave one choice.

    ``n_out = (n_in - 1) stride + kernel - 2 padding``, and the stride is how many times larger the
    output is.
    """
    stride = max(1, round(n_out / n_in))
    padding = max(0, ((n_in - 1) * stride + kernel - n_out) // 2)
    return Window("spread", kernel, stride, padding)


@rule("max-pool", "avg-pool", "adaptive-avg-pool", "nearest-upsample", "bilinear-upsample")
def by_channel(op: Op, tensors: Tensors) -> Signature:
    """Images, channel by channel; of one pixel for each, every device adds its part."""
    x, y = tensors[op.inputs[0]].shape, tensors[op.outputs[0]].shape
    labels, made = _image(x, "c"), _image(y, "c")
    windows: dict[str, Window] = {}
    for axis, label in ((-2, ROWS), (-1, COLUMNS)):
        window = _pool_window(op, label, x[axis], y[axis]) if len(x) > 3 else None
        if len(x) > 3 and y[axis] == 1 < x[axis]:
            made = tuple("" if name == label else name for name in made)
        elif window is None:
            labels = tuple("" if name == label else name for name in labels)
            made = tuple("" if name == label else name for name in made)
        else:
            windows[label] = window
    return Signature((labels,), (made,) * len(op.outputs), windows=windows)


def _pool_window(op: Op, label: str, n_in: int, n_out: int) -> Window | None:
    """Window of a pool or of an enlarged image; None if nothing says it."""
    kinds = {"nearest-upsample": "nearest", "bilinear-upsample": "bilinear"}
    if op.kind in kinds:
        return Window("nearest" if op.kind == "nearest-upsample" else "bilinear")
    if op.kind == "adaptive-avg-pool":
        return Window("adaptive")
    attrs, axis = dict(op.attrs), _AXES[label]
    if f"kernel_{axis}" in attrs:
        sizes = (attrs.get(f"{name}_{axis}") for name in ("kernel", "stride", "padding"))
        kernel, stride, padding = (int(size or 0) for size in sizes)
        return Window("slide", kernel, stride, padding, int(attrs.get(f"dilation_{axis}", 1)))
    if "kernel" in attrs:  # windows side by side
        return Window("slide", int(attrs["kernel"]), int(attrs["kernel"]))
    return None


@rule("prelu")
def prelu(op: Op, tensors: Tensors) -> Signature:
    """X [b, c, ...], slopes [c] -> y of the shape of x."""
    x = tensors[op.inputs[0]].shape
    labels = _image(x, "c") if len(x) > 2 else ("b", "c")
    return Signature((labels, ("c",)), (labels,))


@rule("batch-norm", "frozen-batch-norm")
def batch_norm(op: Op, tensors: Tensors) -> Signature:
    """Channels are independent of each other; every part of a batch has statistics of its own."""
    shape = tensors[op.inputs[0]].shape
    axis = int(dict(op.attrs).get("axis", 1))
    labels = ["c" if i == axis else "b" if i == 0 else "" for i in range(len(shape))]
    if len(shape) > 3 and axis < len(shape) - 2:
        labels[-2:] = [ROWS, COLUMNS]
    extra = (("c",),) * (len(op.inputs) - 1)
    sums = Inner("all-reduce", 2 * 4 * shape[axis])  # of x and of its squares, in fp32
    shared = dict(op.attrs).get(SHARED_STATISTICS) and op.kind == "batch-norm"
    return Signature(
        (tuple(labels), *extra),
        (tuple(labels), *(("c",),) * (len(op.outputs) - 1)),
        local=frozenset({"b", ROWS, COLUMNS}),
        inner={ROWS: (sums,), COLUMNS: (sums,)} if shared else {},
    )


SHARED_STATISTICS = "shared-statistics"
"""Attribute of a batch-norm whose devices add up the statistics of the images that they share."""


@rule("group-norm")
def group_norm(op: Op, tensors: Tensors) -> Signature:
    """Of each sample and group of channels the statistics of all pixels, which are summed up."""
    x = tensors[op.inputs[0]].shape
    labels = (*("" for _ in x[2:]), ROWS, COLUMNS) if len(x) > 3 else ("",) * len(x)
    kept = [tensors[name] for name in op.outputs[1:]]
    sums = Inner("all-reduce", sum(of.bytes for of in kept))
    return Signature(
        (labels, *(("",) * len(tensors[name].shape) for name in op.inputs[1:])),
        (labels, *(("",) * len(of.shape) for of in kept)),
        inner={ROWS: (sums,), COLUMNS: (sums,)},
    )


def _norm_gradient(op: Op, tensors: Tensors, forward: Op, sig: Signature) -> Signature:
    """Add up the sums over dy and dy x that the input's gradient needs, as many as forward."""
    rule_of = {"batch-norm": batch_norm, "group-norm": group_norm}[forward.kind]
    return replace(sig, inner=rule_of(without_halos(forward), tensors).inner)


ADJUSTMENTS |= {"batch-norm": _norm_gradient, "group-norm": _norm_gradient}


@rule("class-token")
def class_token(op: Op, tensors: Tensors) -> Signature:
    """X [b, f, h, w], token [f] -> y [b, 1 + h w, f]."""
    return Signature((("b", "f", "", ""), ("f",)), (("b", "", "f"),))


@rule("roi-align")
def roi_align(op: Op, tensors: Tensors) -> Signature:
    """Levels [b, c, h, w], boxes [b, n, 4] -> y [b n, c, s, s]."""
    labels = ("b", "c", "", "")
    return Signature((*(labels,) * (len(op.inputs) - 1), ("b", "", "")), (labels,))


@rule("columns")
def columns(op: Op, tensors: Tensors) -> Signature:
    """X [b, c, h, w] -> y [b, w, c x h]."""
    x = tensors[op.inputs[0]].shape
    return Signature((("b", "c", "", ""),), (("b", "", "c"),), {"c": x[1]})


@rule("local-response-norm")
def local_response_norm(op: Op, tensors: Tensors) -> Signature:
    """Every output needs all channels of its pixel."""
    labels = ("b", "", "d2", "d3")
    return Signature((labels,) * len(op.inputs), (labels,) * len(op.outputs))


@rule("cut", "pad", "slice")
def cut(op: Op, tensors: Tensors) -> Signature:
    """Dimensions that stay as they are, and rows of which some are left out or added."""
    x, y = tensors[op.inputs[0]].shape, tensors[op.outputs[0]].shape
    if len(x) != len(y) or len(op.inputs) > 1 or len(op.outputs) > 1:
        return whole(op, tensors)
    attrs = dict(op.attrs)
    labels: list[str] = []
    windows: dict[str, Window] = {}
    for i, (a, b) in enumerate(zip(x, y, strict=True)):
        start = int(attrs.get(f"start{i}", 0))
        labels.append(f"d{i}" if a == b else "")
        if a != b and i >= max(2, len(x) - 2) and f"start{i}" in attrs:
            labels[-1] = ROWS if i == len(x) - 2 else COLUMNS
            windows[labels[-1]] = Window("slide", padding=start if b > a else -start)
    return Signature((tuple(labels),), (tuple(labels),), windows=windows)
