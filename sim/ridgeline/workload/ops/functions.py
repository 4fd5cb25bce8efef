"""Functions of tensors that families do not need but users' own networks do, as one table.

A row says how much arithmetic a function does an element (of the largest tensor that it touches),
and what its gradient reads. All rows share one forward op and one gradient rule: one op reads the
output's gradient and what the row names, and writes the gradients of all inputs that want one; an
input that was broadcast gets the sum. Convention for arithmetic: `ridgeline.workload.kinds`.

What a gradient reads is what PyTorch's formulas save (tools/autograd/derivatives.yaml of PyTorch
2.13), since that is what stays in memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from ridgeline.workload.builder import Attrs, GradientBuilder, GraphBuilder
from ridgeline.workload.graph import Op, Passes, Role
from ridgeline.workload.kinds import Cost, OpKind, op_kind
from ridgeline.workload.numerics import is_discrete, widest
from ridgeline.workload.sharding_axes import OpAxes, ShardingRule, Tensors
from ridgeline.workload.sharding_rules import (
    broadcast_sharding,
    elementwise_sharding,
    image_labels,
    last_axis_sharding,
)

Reads = Literal["nothing", "inputs", "output", "both", "others", "extra"]
"""What a gradient reads besides dy: nothing; all real inputs; the output; inputs and output; for
each wanted input the other inputs; only what is not a real number (a condition, an index) or was
saved for it."""


class ElementwiseFunction(NamedTuple):
    """A row of the table: FLOPs an element, forward and backward; None: it has no gradient."""

    forward: int
    gradient: int | None
    reads: Reads
    sharding: ShardingRule | None = None


def _prelu_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """X [b, c, ...], slopes [c] -> y of the shape of x."""
    x = tensors[op.inputs[0]].shape
    labels = image_labels(x, "c") if len(x) > 2 else ("b", "c")
    return OpAxes((labels, ("c",)), (labels,))


FUNCTIONS: dict[str, ElementwiseFunction] = {
    # of one tensor, element by element
    "exp": ElementwiseFunction(1, 1, "output", elementwise_sharding),
    "expm1": ElementwiseFunction(2, 2, "output", elementwise_sharding),
    "log": ElementwiseFunction(1, 1, "inputs", elementwise_sharding),
    "log1p": ElementwiseFunction(2, 2, "inputs", elementwise_sharding),
    "sqrt": ElementwiseFunction(1, 2, "output", elementwise_sharding),
    "rsqrt": ElementwiseFunction(2, 3, "output", elementwise_sharding),
    "reciprocal": ElementwiseFunction(1, 3, "output", elementwise_sharding),
    "square": ElementwiseFunction(1, 2, "inputs", elementwise_sharding),
    "power": ElementwiseFunction(1, 3, "inputs", elementwise_sharding),
    "absolute": ElementwiseFunction(1, 2, "inputs", elementwise_sharding),
    "negate": ElementwiseFunction(1, 1, "nothing", elementwise_sharding),
    "shift": ElementwiseFunction(1, 0, "nothing", elementwise_sharding),  # x + constant
    "sine": ElementwiseFunction(1, 2, "inputs", elementwise_sharding),
    "cosine": ElementwiseFunction(1, 2, "inputs", elementwise_sharding),
    "tangent": ElementwiseFunction(1, 3, "output", elementwise_sharding),
    "hyperbolic": ElementwiseFunction(3, 3, "inputs", elementwise_sharding),  # sinh, cosh
    "arc": ElementwiseFunction(
        2, 4, "inputs", elementwise_sharding
    ),  # asin, acos, atan and their hyperbolic forms
    "erf": ElementwiseFunction(1, 4, "inputs", elementwise_sharding),
    "softplus": ElementwiseFunction(3, 4, "inputs", elementwise_sharding),
    "softsign": ElementwiseFunction(3, 4, "inputs", elementwise_sharding),
    "log-sigmoid": ElementwiseFunction(4, 5, "inputs", elementwise_sharding),
    "elu": ElementwiseFunction(3, 3, "inputs", elementwise_sharding),
    "leaky-relu": ElementwiseFunction(2, 2, "inputs", elementwise_sharding),
    "clamp": ElementwiseFunction(2, 2, "inputs", elementwise_sharding),
    "hard-sigmoid": ElementwiseFunction(4, 2, "inputs", elementwise_sharding),
    "hard-swish": ElementwiseFunction(5, 5, "inputs", elementwise_sharding),
    "mish": ElementwiseFunction(6, 12, "inputs", elementwise_sharding),
    "prelu": ElementwiseFunction(2, 4, "inputs", _prelu_sharding),
    "step": ElementwiseFunction(
        1, None, "nothing", elementwise_sharding
    ),  # floor, round, sign: its gradient is zero
    # of several tensors, element by element, broadcast
    "broadcast-add": ElementwiseFunction(1, 1, "nothing", broadcast_sharding),
    "pairwise-add": ElementwiseFunction(
        1, 1, "nothing"
    ),  # every row of one, every row of the other
    "subtract": ElementwiseFunction(1, 1, "nothing", broadcast_sharding),
    "broadcast-multiply": ElementwiseFunction(1, 2, "others", broadcast_sharding),
    "divide": ElementwiseFunction(1, 4, "inputs", broadcast_sharding),
    "extremum": ElementwiseFunction(1, 2, "inputs", broadcast_sharding),  # maximum, minimum of two
    "power-of": ElementwiseFunction(1, 6, "both", broadcast_sharding),  # x ** y
    "atan2": ElementwiseFunction(2, 6, "inputs", broadcast_sharding),
    "select": ElementwiseFunction(1, 1, "extra", broadcast_sharding),  # where, masked_fill
    "interpolate-between": ElementwiseFunction(3, 3, "inputs", broadcast_sharding),  # lerp
    "compare": ElementwiseFunction(1, None, "nothing", broadcast_sharding),
    "stop": ElementwiseFunction(0, None, "nothing", elementwise_sharding),  # detach
    "integer": ElementwiseFunction(1, None, "nothing"),  # arithmetic on indices and masks
    "random": ElementwiseFunction(1, None, "nothing"),
    # along an axis
    "sum": ElementwiseFunction(1, 0, "nothing"),
    "mean": ElementwiseFunction(1, 1, "nothing"),
    "weighted-sum": ElementwiseFunction(2, 4, "inputs"),  # of features, with trained weights
    "product-of": ElementwiseFunction(1, 2, "both"),
    "peak": ElementwiseFunction(1, 1, "extra"),  # maximum or minimum of an axis, with its position
    "peaks": ElementwiseFunction(1, 3, "both"),  # of several axes, or the median
    "variance": ElementwiseFunction(4, 3, "inputs"),
    "length": ElementwiseFunction(2, 3, "both", last_axis_sharding),  # a norm
    "log-sum-exp": ElementwiseFunction(4, 3, "both"),
    "log-softmax": ElementwiseFunction(5, 3, "output"),
    "running-sum": ElementwiseFunction(1, 1, "nothing"),
    "running-product": ElementwiseFunction(1, 4, "both"),
    "position": ElementwiseFunction(1, None, "nothing"),  # argmax, argsort, nonzero
    "order": ElementwiseFunction(8, 1, "extra"),  # sort, top-k: positions are kept
    "glu": ElementwiseFunction(5, 9, "inputs"),
    # normalisation without weights of its own, or with running statistics that are fixed
    "normalize": ElementwiseFunction(5, 8, "inputs"),
    "fixed-norm": ElementwiseFunction(2, 4, "inputs"),
    # copies
    "rearrange": ElementwiseFunction(0, 0, "nothing"),  # roll, flip, repeat, unfold, strided slices
    "gather-elements": ElementwiseFunction(0, 1, "extra"),
    "scatter": ElementwiseFunction(1, 1, "extra"),
    "triangle": ElementwiseFunction(1, 1, "nothing"),
    "resample": ElementwiseFunction(7, 8, "nothing"),  # interpolation between pixels
    # 5 n log2 n for n complex numbers (Cooley and Tukey, 1965), taken at n = 1,024
    "fourier": ElementwiseFunction(25, 25, "nothing"),
    "sample-grid": ElementwiseFunction(12, 20, "inputs"),
    # losses, without their reduction to a mean
    "pointwise-loss": ElementwiseFunction(5, 4, "inputs"),
    "negative-log-likelihood": ElementwiseFunction(1, 1, "extra"),
    # anything else: see `ridgeline.workload.trace`
    "unknown": ElementwiseFunction(1, 2, "both"),
}


def function(
    b: GraphBuilder,
    layer: str,
    kind: str,
    inputs: Sequence[str],
    shape: tuple[int, ...],
    *,
    name: str = "",
    format_: str | None = None,
    kept: Sequence[tuple[tuple[int, ...], str]] = (),
    passes: Passes = (),
    attrs: Attrs = (),
    role: Role = Role.ACTIVATION,
) -> tuple[str, ...]:
    """Apply a function of the table to tensors.

    Parameters
    ----------
    shape
        Of the output.
    format_
        Number format of the output; by default the widest of the real inputs.
    kept
        Shapes and formats of further outputs: positions, statistics.
    role
        Of the output: a weight copy, where weights are brought into another form, whose products
        then are those with weights.

    Returns
    -------
    The output and what is kept.
    """
    name = name or layer
    real = tuple(b.format(x) for x in inputs if not _discrete(b, x))
    y = b.tensor(f"{name}.y", shape, format_ or widest(real or ("int64",)), role)
    more = [
        b.tensor(f"{name}.kept{i}", of, form, Role.ACTIVATION) for i, (of, form) in enumerate(kept)
    ]
    largest = max([math.prod(shape), *map(b.elements, inputs)])
    b.emit(
        KINDS[kind],
        layer,
        inputs,
        (y, *more),
        name=name,
        flops=KINDS[kind].forward.of(largest),
        passes=passes,
        attrs=attrs,
        in_place=kind in _MAY_OVERWRITE and bool(inputs) and b.format(inputs[0]) == b.format(y),
    )
    return y, *more


_MAY_OVERWRITE = frozenset(
    [
        "exp",
        "sqrt",
        "rsqrt",
        "reciprocal",
        "negate",
        "shift",
        "tangent",
        "select",
        "broadcast-add",
        "subtract",
        "fixed-norm",
        "elu",
        "leaky-relu",
        "clamp",
    ]
)
"""Element by element, and written over its first input where nothing else needs that."""


def _discrete(b: GraphBuilder, tensor: str) -> bool:
    """Tell whether a tensor holds indices or truth values, which have no gradient."""
    return is_discrete(b.format(tensor), b.numerics)


def _gradient(g: GradientBuilder, op: Op) -> None:
    row, kind = FUNCTIONS[op.kind], KINDS[op.kind]
    wanted = tuple(dict.fromkeys(x for x in op.inputs if g.wants(x) and not _discrete(g, x)))
    dys = tuple(g.gradient(y) for y in op.outputs if g.has_gradient(y))
    if row.gradient is None or not wanted:
        return
    real = tuple(x for x in op.inputs if not _discrete(g, x))
    kept = tuple(y for y in op.outputs[1:] if not g.has_gradient(y))
    extra = tuple(x for x in op.inputs if _discrete(g, x)) + kept
    y = op.outputs[0]
    others = real if len(wanted) > 1 or len(real) > len(set(real)) else _without(real, wanted)
    read = {
        "nothing": (),
        "inputs": real,
        "output": (y,),
        "both": (*real, y),
        "others": others,
        "extra": (),
    }[row.reads]
    largest = max(g.elements(x) for x in (*op.inputs, y))
    sources = dict.fromkeys((*read, *(() if row.reads == "nothing" else extra)))
    g.derive(kind, op, wanted, (*dys, *sources), flops=kind.gradient.of(largest))


def _without(names: Sequence[str], left_out: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name not in left_out)


KINDS: dict[str, OpKind] = {
    name: op_kind(
        name,
        forward=Cost(row.forward, "element", "see ridgeline.workload.ops.functions"),
        gradient=Cost(row.gradient or 0, "element", f"reads of the forward pass: {row.reads}"),
        sharding=row.sharding,
    )(_gradient)
    for name, row in FUNCTIONS.items()
}
