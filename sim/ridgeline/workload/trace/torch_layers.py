"""What PyTorch's operators with weights mean: products, norms, recurrences, losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ridgeline.errors import RidgelineError
from ridgeline.workload.trace import windows
from ridgeline.workload.trace.torch_capture import Handler, OperatorCall, kind_of, shape_of


def _linear(c: OperatorCall) -> None:
    x, w = tuple(c.args["input"].shape), tuple(c.args["weight"].shape)
    names = [str(c.tensor("input")), str(c.tensor("weight"))]
    _product(c, names, (1, math.prod(x[:-1]), w[0] if len(w) > 1 else 1, x[-1]), "bias")


def _product(
    c: OperatorCall, names: Sequence[str], loops: tuple[int, int, int, int], bias: str = ""
) -> None:
    batch, m, n, k = loops
    if c.out.dtype.is_complex:  # [Re, Im] with [[Re, Im], [-Im, Re]]: eight FLOP for each of m n k
        n, k = 2 * n, 2 * k
    attrs = {"m": m, "n": n, "k": k, "batch": batch}
    if kind_of(c.out) != "real":
        c.emit("integer", names)
    elif bias and c.tensor(bias) is not None:
        inner = c.emit_inner("matmul", names, shape_of(c.out), **attrs)
        c.emit("add", [inner, str(c.tensor(bias))])
    else:
        c.emit("matmul", names, **attrs)


def _matmul(first: str = "self", second: str = "other", bias: str = "") -> Handler:
    def handle(c: OperatorCall) -> None:
        a, b, out = (tuple(x.shape) for x in (c.args[first], c.args[second], c.out))
        names = [str(c.tensor(first)), str(c.tensor(second))]
        rows, k = (a[-2] if len(a) > 1 else 1), a[-1]
        columns = b[-1] if len(b) > 1 else 1
        lead = math.prod(out) // max(rows * columns, 1)
        if math.prod(b[:-2]) == 1 or len(b) < 3:
            loops = (1, lead * rows, columns, k)
        elif math.prod(a[:-2]) == 1 and lead > 1:  # a weight times many matrices
            loops = (1, rows, lead * columns, k)
        else:
            loops = (lead, rows, columns, k)
        _product(c, names, loops, bias)

    return handle


def _grouped(c: OperatorCall) -> None:
    """Products of groups of rows with a matrix each, as experts have: every row meets one."""
    rows, k = c.shape("self")[-2:]
    names = [str(c.tensor("self")), str(c.tensor("mat2"))]
    c.emit("matmul", names, m=rows, n=shape_of(c.out)[-1], k=k, batch=1)


def _distances(c: OperatorCall) -> None:
    """Euclidean distances of all pairs of rows: a product and the lengths of the rows."""
    names, (m, k), n = c.tensors(), c.shape("x1")[-2:], c.shape("x2")[-2]
    batch = math.prod(c.shape("x1")[:-2])
    inner = c.emit_inner("matmul", names, shape_of(c.out), m=m, n=n, k=k, batch=batch)
    c.emit("sqrt", [inner])


def _bilinear(c: OperatorCall) -> None:
    """All products of two vectors, times a matrix [outputs, products]."""
    a, b, (n, i, j) = c.shape("input1"), c.shape("input2"), c.shape("weight")
    rows = math.prod(a[:-1])
    pairs = c.emit_inner(
        "multiply", [str(c.tensor("input1")), str(c.tensor("input2"))], (*a[:-1], i, b[-1])
    )
    _product(c, [pairs, str(c.tensor("weight"))], (1, rows, n, i * j), "bias")


def _weight_norm(c: OperatorCall) -> None:
    """Directions of unit length, times their lengths."""
    c.out = c.out[0] if isinstance(c.out, list | tuple) else c.out
    lengths = str(c.tensor("g"))
    rows = c.tape.values[lengths].elements
    unit = c.emit_inner("normalize", [str(c.tensor("v"))], c.shape("v"), rows=rows)
    c.emit("multiply", [unit, lengths])


def _outer(c: OperatorCall) -> None:
    c.emit("multiply", c.tensors())


def _conv(c: OperatorCall) -> None:
    x, w, out = c.shape("input"), c.shape("weight"), shape_of(c.out)
    if c.get("transposed", False):
        return _conv_transpose(c)
    axes = len(w) - 2
    if len(x) == axes + 1:  # one image without a batch
        x, out = (1, *x), (1, *out)
    dilation = windows.spread(c.get("dilation", 1), axes)
    loops = windows.conv_loops(
        x, w, out, windows.spread(c.get("stride", 1), axes),
        _padding(c.get("padding", 0), w[2:], dilation), dilation, int(c.get("groups", 1)),
    )  # fmt: skip
    return _with_channel_bias(c, "conv", loops)


def _padding(value: Any, kernel: Sequence[int], dilation: Sequence[int]) -> list[tuple[int, int]]:
    """Return the padding before and after on each axis; "same" keeps the size at stride 1."""
    if value == "valid":
        return [(0, 0) for _ in kernel]
    if value == "same":
        total = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        return [(t // 2, t - t // 2) for t in total]
    return [(p, p) for p in windows.spread(value, len(kernel))]


def _conv_transpose(c: OperatorCall) -> None:
    x, w = c.shape("input"), c.shape("weight")
    groups = int(c.get("groups", 1))
    batch = 1 if len(x) == len(w) - 1 else x[0]
    pixels = batch * math.prod(x[-(len(w) - 2) :])
    attrs = {"m": pixels, "n": math.prod(w[1:]), "k": w[0] // groups, "batch": groups}
    _with_channel_bias(c, "conv-transpose", attrs)


def _conv_backward(c: OperatorCall) -> None:
    """Gradients of a convolution's input, weight and bias, which code has asked for."""
    if c.get("transposed", False):
        raise RidgelineError(f"{c.layer}: gradients of transposed convolutions within a step")
    dy, x, w = (str(c.tensor(name)) for name in ("grad_output", "input", "weight"))
    out, filters, groups = c.shape("grad_output"), c.shape("weight"), int(c.get("groups", 1))
    loops = {"m": out[0] * math.prod(out[2:]), "n": math.prod(filters[1:]),
             "k": filters[0] // groups, "batch": groups}  # fmt: skip
    kinds: list[tuple[str, list[str], dict[str, int]]] = [
        ("conv-transpose", [dy, w], loops),
        ("matmul", [dy, x], {**loops, "m": loops["k"], "k": loops["m"]}),
        ("sum", [dy], {}),
    ]
    for tensor, (kind, inputs, attrs) in zip(c.out, kinds, strict=True):
        if tensor is not None:
            c.tape.step(kind, c.layer, inputs, (c.tape.made(tensor),), c.source, **attrs)


def _with_channel_bias(c: OperatorCall, kind: str, attrs: dict[str, Any]) -> None:
    names = [str(c.tensor("input")), str(c.tensor("weight"))]
    bias = c.tensor("bias")
    if bias is None:
        c.emit(kind, names, **attrs)
    else:
        inner = c.emit_inner(kind, names, shape_of(c.out), **attrs)
        c.emit("bias", [inner, bias])


def _batch_norm(c: OperatorCall) -> None:
    x = str(c.tensor("input"))
    weights = [c.tensor(name) for name in ("weight", "bias")]
    running = [c.tensor(name) for name in ("running_mean", "running_var")]
    channels = c.shape("input")[1]
    if not c.get("training", True) and running[0] is not None:
        given = [name for name in (*weights, *running) if name is not None]
        c.emit("fixed-norm", [x, *given])
    elif None in weights:
        c.emit("normalize", [x, *(w for w in weights if w)], rows=channels)
    else:
        given = [name for name in (*weights, *running) if name is not None]
        c.emit("batch-norm", [x, *given], channels=channels, running=running[0] is not None)


def _rows_norm(kind: str) -> Handler:
    """Layer norm and RMS norm over the last axes."""

    def handle(c: OperatorCall) -> None:
        x = c.shape("input")
        rows = math.prod(x[: len(x) - len(c.args["normalized_shape"])])
        weights = [w for w in (c.tensor("weight"), c.tensor("bias")) if w is not None]
        c.emit(kind if weights else "normalize", [str(c.tensor("input")), *weights], rows=rows)

    return handle


def _group_norm(c: OperatorCall) -> None:
    x = c.shape("input")
    groups = int(c.get("num_groups", c.get("group", x[1])))
    weights = [w for w in (c.tensor("weight"), c.tensor("bias")) if w is not None]
    rows = x[0] * groups
    c.emit("group-norm" if weights else "normalize", [str(c.tensor("input")), *weights], rows=rows)


_CELLS = {"lstm": "lstm", "gru": "gru", "rnn_tanh": "rnn-tanh", "rnn_relu": "rnn-relu"}


def _recurrent(c: OperatorCall) -> None:
    """Write a stack: for each layer and direction a product of the inputs, and the recurrence."""
    cell = _CELLS[c.source.rpartition(".")[2]]
    tape, packed = c.tape, "batch_sizes" in c.args
    weights = [tape.name(w) for w in c.args["params"]]
    x = c.args["data" if packed else "input"]
    *lead, _ = shape_of(x)
    time_first = packed or not c.get("batch_first", False)
    n, time = (1, 1) if len(lead) < 2 else (lead[1], lead[0]) if time_first else (lead[0], lead[1])
    if packed:  # rows of all timesteps, as many sequences in each
        time = shape_of(c.args["batch_sizes"])[0]
        n = lead[0] // time
    elif len(lead) == 1:
        n, time = 1, lead[0]
    name = tape.name(x)
    layers, both = int(c.args["num_layers"]), bool(c.args["bidirectional"])
    directions = 2 if both else 1
    per = len(weights) // (layers * directions)
    width = x.shape[-1]
    for layer in range(layers):
        parts = []
        for direction in range(directions):
            at = (layer * directions + direction) * per
            parts.append(_one_layer(c, name, weights[at : at + per], (n, time, width), cell,
                                    direction))  # fmt: skip
        name, width = parts[0], tape.values[parts[0]].shape[-1]
        if both:
            shape = (n, time, 2 * width)
            name = c.emit_inner("concat", parts, shape, axis=2, sizes=(width, width))
            width *= 2
        if layer < layers - 1 and c.get("dropout", 0.0) and c.get("train", True):
            p = float(c.args["dropout"])
            name = c.emit_inner("dropout", [name], (n, time, width), probability=p)
    outputs, states = c.out[0], c.out[1:]
    tape.step("view", c.layer, (name,), (tape.made(outputs),), c.source)
    for state in states:  # taken from the last timestep: a part of the outputs
        tape.step("rearrange", c.layer, (name,), (tape.made(state),), c.source)


def _one_layer(
    c: OperatorCall,
    x: str,
    weights: Sequence[str],
    sizes: tuple[int, int, int],
    cell: str,
    reverse: int,
) -> str:
    n, time, width = sizes
    of_input, of_state, *biases = weights
    gates, hidden = c.tape.values[of_state].shape
    if c.tape.values[of_input].shape[1] != width or len(biases) not in {0, 2}:
        hidden = c.tape.values[of_state].shape[1]  # a projected state: the product is what is left
    shape = (n, time, gates)
    y = c.emit_inner("matmul", [x, of_input], shape, m=n * time, n=gates, k=width, batch=1)
    if biases:
        y = c.emit_inner("bias", [y, biases[0]], shape)
    inputs = [y, of_state, *biases[1:2]]
    return c.emit_inner(
        "recurrent", inputs, (n, time, hidden), cell=cell, reverse=reverse, n=n, time=time
    )


def _cross_entropy(c: OperatorCall) -> None:
    """Softmax and negative log-likelihood over the classes, as one op."""
    x, target = str(c.tensor("self")), str(c.tensor("target"))
    logits = c.shape("self")
    if c.get("reduction", 1) == 0:
        inner = c.emit_inner("log-softmax", [x], logits, axis=min(1, len(logits) - 1))
        c.emit("negative-log-likelihood", [inner, target])
    else:
        c.emit("loss", [x, target], which="cross-entropy", axis=min(1, len(logits) - 1))


def _mean_of(which: str) -> Handler:
    """Return the handler of a loss of two tensors of one shape."""

    def handle(c: OperatorCall) -> None:
        names = c.tensors()[:2]
        if c.get("reduction", 1) == 0 or which == "":
            inner = names if c.get("reduction", 1) == 0 else None
            if inner is not None:
                c.emit("pointwise-loss", names)
            else:
                y = c.emit_inner("pointwise-loss", names, c.shape("self"))
                c.emit("mean", [y])
        else:
            c.emit("loss", names, which=which)

    return handle


def _nll(c: OperatorCall) -> None:
    names = [str(c.tensor("self")), str(c.tensor("target"))]
    if c.get("reduction", 1) == 0:
        c.emit("negative-log-likelihood", names)
    else:
        shape = shape_of(c.args["target"])
        c.emit("mean", [c.emit_inner("negative-log-likelihood", names, shape)])


def _ctc(c: OperatorCall) -> None:
    c.emit("mean", [c.emit_inner("unknown", c.tensors()[:2], c.shape("log_probs"))])


LAYERS: dict[str, Handler] = {
    "linear": _linear,
    "matmul": _matmul(),
    "mm": _matmul(second="mat2"),
    "bmm": _matmul(second="mat2"),
    "mv": _matmul(second="vec"),
    "dot": _matmul(second="tensor"),
    "addmm": _matmul("mat1", "mat2", "self"),
    "baddbmm": _matmul("batch1", "batch2", "self"),
    "_grouped_mm": _grouped,
    "_euclidean_dist": _distances,
    "vdot": _matmul(second="other"),
    "bilinear": _bilinear,
    "_weight_norm_interface": _weight_norm,
    "outer": _outer,
    "ger": _outer,
    **dict.fromkeys(["conv1d", "conv2d", "conv3d", "convolution", "_convolution"], _conv),
    "convolution_backward": _conv_backward,
    **dict.fromkeys(["conv_transpose1d", "conv_transpose2d", "conv_transpose3d"], _conv_transpose),
    "batch_norm": _batch_norm,
    "native_batch_norm": _batch_norm,
    "layer_norm": _rows_norm("layer-norm"),
    "native_layer_norm": _rows_norm("layer-norm"),
    "rms_norm": _rows_norm("rms-norm"),
    "_fused_rms_norm": _rows_norm("rms-norm"),
    "group_norm": _group_norm,
    "native_group_norm": _group_norm,
    "instance_norm": _group_norm,
    **dict.fromkeys(_CELLS, _recurrent),
    "cross_entropy_loss": _cross_entropy,
    **dict.fromkeys(["nll_loss", "nll_loss2d", "nll_loss_nd"], _nll),
    "mse_loss": _mean_of("mse"),
    "binary_cross_entropy_with_logits": _mean_of("bce"),
    "smooth_l1_loss": _mean_of("smooth-l1"),
    "huber_loss": _mean_of("smooth-l1"),
    **dict.fromkeys(["l1_loss", "binary_cross_entropy", "kl_div", "soft_margin_loss"],
                    _mean_of("")),
    "ctc_loss": _ctc,
    "_ctc_loss": _ctc,
}  # fmt: skip
