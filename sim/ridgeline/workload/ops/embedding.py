"""Tables of trained vectors, and rows taken by index.

A lookup reads the rows that it needs from the fp32 table, writes them in the compute format and
moves no other bytes. Its gradient is either as large as the table (torch.nn.Embedding: zeros, to
which the rows' gradients are added), or sparse: one row for each lookup (``sparse=True`` there and
in recommenders); then the update, too, touches only those rows. A row that is looked up twice
counts twice.
"""

from __future__ import annotations

from fractions import Fraction

from ridgeline.errors import RidgelineError
from ridgeline.workload.builder import GradientBuilder, GraphBuilder
from ridgeline.workload.graph import Op
from ridgeline.workload.kinds import Cost, op_kind
from ridgeline.workload.ops.window import image
from ridgeline.workload.sharding_axes import OpAxes, Tensors
from ridgeline.workload.sharding_rules import plain_labels


def embedding(
    b: GraphBuilder,
    layer: str,
    indices: str,
    table: str,
    *,
    sparse: bool = False,
    pooled: bool = False,
) -> str:
    """Look up rows of a table [rows, features]; `indices` of any shape.

    `pooled`: the rows of the last axis of `indices` are added up (torch.nn.EmbeddingBag), and only
    their sums written.
    """
    rows, features = b.shape(table)
    format_ = b.numerics.master if b.numerics.widens else b.numerics.compute
    lead = b.shape(indices)[:-1] if pooled else b.shape(indices)
    y = b.activation(f"{layer}.y", (*lead, features), format_)
    b.emit(
        EMBEDDING,
        layer,
        (indices, table),
        (y,),
        flops=EMBEDDING.forward.of(b.elements(indices) * features - b.elements(y)),
        passes=(1, Fraction(b.elements(indices), rows)),
        attrs=(("sparse", int(sparse)),),
    )
    return y


def position_embedding(b: GraphBuilder, layer: str, x: str, table: str) -> str:
    """Add the row of its position, of a table [positions, features], to each vector, in place."""
    (_, positions, features), (rows, width) = b.shape(x), b.shape(table)
    if positions > rows or features != width:
        raise RidgelineError(
            f"layer {layer!r}: {positions} positions of {features} features need more than a table"
            f" of {rows} x {width}"
        )
    y = b.activation(f"{layer}.y", b.shape(x), b.format(x))
    b.emit(
        POSITION,
        layer,
        (x, table),
        (y,),
        flops=POSITION.forward.of(b.elements(x)),
        passes=(1, Fraction(positions, rows)),
        in_place=True,
    )
    return y


def class_token(b: GraphBuilder, layer: str, x: str) -> str:
    """Put a trained vector before the pixels of `x` [batch, features, height, width].

    Returns [batch, 1 + pixels, features]. Dosovitskiy et al., arXiv:2010.11929, equation 1.
    """
    n, features, h, w = image(layer, b.shape(x))
    token = b.weight(f"{layer}.weight", (features,))
    y = b.activation(f"{layer}.y", (n, 1 + h * w, features), b.format(x))
    b.emit(CLASS_TOKEN, layer, (x, token), (y,))
    return y


def gather(b: GraphBuilder, layer: str, x: str, indices: str) -> str:
    """Take from each sample of `x` [batch, positions, features] the `indices` [batch, taken]."""
    (n, positions, features), (_, taken) = b.shape(x), b.shape(indices)
    y = b.activation(f"{layer}.y", (n, taken, features), b.format(x))
    b.emit(GATHER, layer, (x, indices), (y,), passes=(Fraction(taken, positions), 1))
    return y


def _embedding_gradient(g: GradientBuilder, op: Op) -> None:
    (indices, table), dy = op.inputs, g.gradient(op.outputs[0])
    taken = g.elements(indices)
    rows, features = g.shape(table)
    if ("sparse", 1) in op.attrs:
        g.derive(EMBEDDING, op, (table,), (dy, indices), shape=(taken, features))
        return
    g.derive(
        EMBEDDING,
        op,
        (table,),
        (dy, indices),
        flops=EMBEDDING.gradient.of(taken * features),
        output_passes=(1 + Fraction(2 * taken, rows),),  # zeros; then rows read and written
    )


def _position_gradient(g: GradientBuilder, op: Op) -> None:
    (x, table), dy = op.inputs, g.gradient(op.outputs[0])
    if g.wants(x):
        g.give(x, dy, op.layer)
    if g.wants(table):
        g.derive(POSITION, op, (table,), (dy,), flops=POSITION.gradient.of(g.elements(dy)))


def _class_token_gradient(g: GradientBuilder, op: Op) -> None:
    (x, token), dy = op.inputs, g.gradient(op.outputs[0])
    flops = CLASS_TOKEN.gradient.of(g.shape(x)[0] * g.elements(token))
    g.derive(CLASS_TOKEN, op, (x, token) if g.wants(x) else (token,), (dy,), flops=flops)


def _gather_gradient(g: GradientBuilder, op: Op) -> None:
    (x, indices), dy = op.inputs, g.gradient(op.outputs[0])
    if g.wants(x):
        g.derive(
            GATHER,
            op,
            (x,),
            (dy, indices),
            flops=GATHER.gradient.of(g.elements(dy)),
            output_passes=(1 + Fraction(2 * g.elements(dy), g.elements(x)),),
        )


_SCATTER = Cost(1, "looked-up element", "an addition into its row; none where sparse")


def _embedding_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """Look up [...] in a table [v, h] -> y [..., h]: what a device has not counts as zeros.

    Tables with sparse gradients are divided by columns, so that a device sends its part of each row
    to where it is needed, and no sums (Mudigere et al., Software-hardware co-design for fast and
    scalable training of deep learning recommendation models, ISCA 2022, arXiv:2104.05158).
    """
    lead = plain_labels(len(tensors[op.inputs[0]].shape))
    of_output = lead[: len(tensors[op.outputs[0]].shape) - 1]  # fewer where rows are added up
    lead = tuple(label if label in of_output else "" for label in lead)
    if int(dict(op.attrs).get("sparse", 0)):
        return OpAxes((lead, ("", "h")), ((*of_output, "h"),), padded=frozenset({"h"}))
    return OpAxes((lead, ("v", "")), ((*of_output, ""),), padded=frozenset({"v"}))


def _position_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """X [b, s, h], table [positions, h]."""
    return OpAxes((("b", "s", "h"), ("", "h")), (("b", "s", "h"),))


def _gather_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """X [b, p, f], indices [b, t] -> y [b, t, f]."""
    return OpAxes((("b", "", "f"), ("b", "t")), (("b", "t", "f"),))


def _class_token_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """X [b, f, h, w], token [f] -> y [b, 1 + h w, f]."""
    return OpAxes((("b", "f", "", ""), ("f",)), (("b", "", "f"),))


EMBEDDING = op_kind(
    "embedding",
    forward=Cost(1, "looked-up element", "an addition where rows are added up"),
    gradient=_SCATTER,
    sharding=_embedding_sharding,
)(_embedding_gradient)
GATHER = op_kind("gather", gradient=_SCATTER, sharding=_gather_sharding)(_gather_gradient)
CLASS_TOKEN = op_kind(
    "class-token",
    gradient=Cost(1, "element of a token", "an addition into the sum over the batch"),
    sharding=_class_token_sharding,
)(_class_token_gradient)
POSITION = op_kind(
    "position-embedding",
    forward=Cost(1, "element", "an addition"),
    gradient=Cost(1, "element", "an addition into the sum over the batch"),
    sharding=_position_sharding,
)(_position_gradient)
