"""Mixture of experts: which expert computes which token, and the copies there and back.

Shazeer et al., 2017, arXiv:1701.06538; Fedus, Zoph and Shazeer, Switch transformers, JMLR 23(120),
2022, arXiv:2101.03961, Section 2.2 (capacity). The shapes are those of evenly loaded experts: each
computes ``capacity`` rows, which is the capacity factor times tokens times choices, divided by the
number of experts and rounded up; what overflows is dropped, and empty rows are computed too. Where
products are narrow, programs fill up the rows of every expert to a multiple that such products
need, since none of them is narrow else (Transformer Engine, `Fp8Padding`; Megatron-Core,
`moe_router_padding_for_quantization`).
"""

from __future__ import annotations

import math

from ridgeline.errors import RidgelineError
from ridgeline.workload.builder import GradientBuilder, GraphBuilder
from ridgeline.workload.graph import Op, Role
from ridgeline.workload.kinds import Cost, op_kind
from ridgeline.workload.numerics import NARROW_MULTIPLE
from ridgeline.workload.sharding_axes import EXPERTS, Labels, OpAxes, Tensors
from ridgeline.workload.sharding_rules import elementwise_sharding, last_axis_sharding, shapes_of


def top_k(b: GraphBuilder, layer: str, scores: str, k: int) -> tuple[str, str]:
    """Return the `k` largest scores of the last axis and their positions."""
    *lead, choices = b.shape(scores)
    if not 1 <= k <= choices:
        raise RidgelineError(f"layer {layer!r}: {k} of {choices} experts")
    y = b.activation(f"{layer}.y", (*lead, k), b.format(scores))
    indices = b.tensor(f"{layer}.indices", (*lead, k), "int64", Role.ACTIVATION)
    flops = TOP_K.forward.of(b.elements(scores) * k)
    b.emit(TOP_K, layer, (scores,), (y, indices), flops=flops)
    return y, indices


def share(b: GraphBuilder, layer: str, x: str) -> str:
    """Divide by the sum over the last axis."""
    y = b.activation(f"{layer}.y", b.shape(x), b.format(x))
    b.emit(SHARE, layer, (x,), (y,), flops=SHARE.forward.of(b.elements(x)))
    return y


def dispatch(
    b: GraphBuilder, layer: str, x: str, indices: str, experts: int, capacity_factor: float
) -> tuple[str, str]:
    """Copy each token to the experts that were chosen for it.

    Returns the rows [experts, capacity, features] and, for each token and choice, its row there (-1
    where it was dropped).
    """
    features, choices = b.shape(x)[-1], b.shape(indices)[-1]
    tokens = b.elements(x) // features
    capacity = math.ceil(capacity_factor * tokens * choices / experts)
    if b.numerics.narrow is not None and not b.generation:
        capacity += -capacity % NARROW_MULTIPLE
    y = b.activation(f"{layer}.y", (experts, capacity, features), b.format(x))
    rows = b.tensor(f"{layer}.rows", (tokens, choices), "int32", Role.ACTIVATION)
    b.emit(DISPATCH, layer, (x, indices), (y, rows), passes=(choices, 1))
    return y, rows


def combine(b: GraphBuilder, layer: str, y: str, weights: str, rows: str) -> str:
    """Sum what the experts made of each token, weighted; in the weights' leading shape."""
    *lead, choices = b.shape(weights)
    out = b.activation(f"{layer}.y", (*lead, b.shape(y)[-1]), b.format(y))
    flops = COMBINE.forward.of(b.elements(out) * choices)
    b.emit(COMBINE, layer, (y, weights, rows), (out,), flops=flops)
    return out


def _top_k_gradient(g: GradientBuilder, op: Op) -> None:
    (scores,), (y, indices) = op.inputs, op.outputs
    if g.wants(scores):
        g.derive(TOP_K, op, (scores,), (g.gradient(y), indices))


def _share_gradient(g: GradientBuilder, op: Op) -> None:
    (x,), (y,) = op.inputs, op.outputs
    if g.wants(x):
        g.derive(SHARE, op, (x,), (g.gradient(y), x, y), flops=SHARE.gradient.of(g.elements(x)))


def _dispatch_gradient(g: GradientBuilder, op: Op) -> None:
    (x, _), (y, rows) = op.inputs, op.outputs
    if g.wants(x):
        flops = DISPATCH.gradient.of(g.elements(x) * g.shape(rows)[-1])
        g.derive(DISPATCH, op, (x,), (g.gradient(y), rows), flops=flops)


def _combine_gradient(g: GradientBuilder, op: Op) -> None:
    (y, weights, rows), dy = op.inputs, g.gradient(op.outputs[0])
    choices = g.shape(weights)[-1]
    g.derive(
        COMBINE,
        op,
        (y, weights),
        (dy, y, weights, rows),
        flops=COMBINE.gradient.of(g.elements(dy) * choices),
        passes=(choices, 1, 1, 1),
    )


def _dispatch_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """Copy x [b, p, f], choices [b, p, k] -> rows [e, p, f] and places [p, k]."""
    (x, chosen), (_, places) = shapes_of(op, tensors)
    return OpAxes(
        ((*_tokens(len(x)), "f"), (*_tokens(len(chosen)), "")),
        ((EXPERTS, "p", "f"), ("p", *("" for _ in places[1:]))),
        {"p": x[1]} if len(x) > 2 else {},
    )


def _combine_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """Rows [e, p, f], weights [b, p, k], places -> y [b, p, f]: a sum over the experts."""
    (_, weights, places), (y,) = shapes_of(op, tensors)
    return OpAxes(
        ((EXPERTS, "p", "f"), (*_tokens(len(weights)), ""), ("p", *("" for _ in places[1:]))),
        ((*_tokens(len(y)), "f"),),
        {"p": y[1]} if len(y) > 2 else {},
    )


def _tokens(count: int) -> Labels:
    """Labels of the dimensions before the features: of these, positions can be divided."""
    return tuple("p" if i == 1 else "" for i in range(count - 1))


TOP_K = op_kind(
    "top-k", forward=Cost(1, "score and choice", "a comparison"), sharding=last_axis_sharding
)(_top_k_gradient)
SHARE = op_kind(
    "share",
    forward=Cost(2, "element", "sum, divide"),
    gradient=Cost(5, "element", "dy y, its sum, subtract from dy, the sum of x, divide"),
    sharding=last_axis_sharding,
)(_share_gradient)
DISPATCH = op_kind(
    "dispatch",
    gradient=Cost(1, "token element and choice", "an addition"),
    sharding=_dispatch_sharding,
)(_dispatch_gradient)
COMBINE = op_kind(
    "combine",
    forward=Cost(2, "token element and choice", "weigh, add"),
    gradient=Cost(3, "token element and choice", "weigh dy; dy y and its sum"),
    sharding=_combine_sharding,
)(_combine_gradient)
IN_ORDER = op_kind("in-order", sharding=elementwise_sharding)(None)
"""Rows of experts that are put in order, which is written after autodiff."""
SCATTER_ADD = op_kind("scatter-add")(None)
"""Sums of rows by atomic additions, written after autodiff (`passes.atomic_scatter_add`)."""
