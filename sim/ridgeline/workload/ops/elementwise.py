"""Elementwise functions, sums, products and dropout.

The gradients of relu, sigmoid and tanh read the function's output, not its input, as PyTorch's do:
the input may be overwritten. Those of gelu, silu and relu-squared need the input and form the
function again.
"""

from __future__ import annotations

from typing import Literal

from ridgeline.errors import RidgelineError
from ridgeline.workload.builder import ADD, GradientBuilder, GraphBuilder
from ridgeline.workload.graph import Op, Role
from ridgeline.workload.kinds import Cost, op_kind
from ridgeline.workload.numerics import widest
from ridgeline.workload.sharding_rules import elementwise_sharding

Activation = Literal["relu", "sigmoid", "tanh", "gelu", "silu", "relu-squared"]
Gate = Literal["swiglu", "geglu"]


def activation(b: GraphBuilder, layer: str, x: str, function: Activation) -> str:
    """Apply an activation function, in place where nothing else needs `x`.

    gelu is the tanh form (Hendrycks and Gimpel, 2016, arXiv:1606.08415, Section 2); relu-squared is
    max(x, 0)^2 (So et al., Primer, NeurIPS 2021, arXiv:2109.08668, Section 4).
    """
    kind = _FUNCTIONS[function]
    y = b.activation(f"{layer}.y", b.shape(x), b.format(x))
    b.emit(kind, layer, (x,), (y,), flops=kind.forward.of(b.elements(y)), in_place=True)
    return y


def relu(b: GraphBuilder, layer: str, x: str) -> str:
    """Return max(x, 0), in place where nothing else needs `x`."""
    return activation(b, layer, x, "relu")


def add(b: GraphBuilder, layer: str, x: str, other: str) -> str:
    """Return the sum of two tensors of one shape, in place of `x` where nothing else needs it."""
    x, other, y = _pair(b, layer, x, other, "adds", casts=not b.numerics.widens)
    b.emit(ADD, layer, (x, other), (y,), flops=ADD.forward.of(b.elements(y)), in_place=True)
    return y


def multiply(b: GraphBuilder, layer: str, x: str, other: str) -> str:
    """Return the elementwise product of two tensors of one shape."""
    x, other, y = _pair(b, layer, x, other, "multiplies")
    b.emit(MULTIPLY, layer, (x, other), (y,), flops=MULTIPLY.forward.of(b.elements(y)))
    return y


def gated(b: GraphBuilder, layer: str, gate: str, up: str, function: Gate) -> str:
    """Return silu(gate) up or gelu(gate) up by one op, which keeps only its two inputs.

    Shazeer, GLU variants improve transformer, 2020, arXiv:2002.05202.
    """
    gate, up, y = _pair(b, layer, gate, up, "multiplies")
    kind = {"swiglu": SWIGLU, "geglu": GEGLU}[function]
    b.emit(kind, layer, (gate, up), (y,), flops=kind.forward.of(b.elements(y)))
    return y


def dropout(b: GraphBuilder, layer: str, x: str, probability: float) -> str:
    """Zero elements at random and scale the others; the mask is kept at one byte an element."""
    y = b.activation(f"{layer}.y", b.shape(x), b.format(x))
    mask = b.tensor(f"{layer}.mask", b.shape(x), "int8", Role.ACTIVATION)
    flops = DROPOUT.forward.of(b.elements(y))
    b.emit(DROPOUT, layer, (x,), (y, mask), flops=flops, attrs=(("probability", probability),))
    return y


def _pair(
    b: GraphBuilder, layer: str, x: str, other: str, does: str, *, casts: bool = True
) -> tuple[str, str, str]:
    """Return two tensors of one shape, cast to one format or not, and a new tensor for both."""
    if b.shape(x) != b.shape(other):
        raise RidgelineError(
            f"layer {layer!r} {does} shapes {list(b.shape(x))} and {list(b.shape(other))}"
        )
    format_ = widest((b.format(x), b.format(other)))
    y = b.activation(f"{layer}.y", b.shape(x), format_)
    if not casts:
        return x, other, y
    return b.cast(x, format_, layer), b.cast(other, format_, layer), y


def _from_output(g: GradientBuilder, op: Op) -> None:
    (x,), (y,) = op.inputs, op.outputs
    kind = _FUNCTIONS[op.kind]
    if g.wants(x):
        g.derive(kind, op, (x,), (g.gradient(y), y), flops=kind.gradient.of(g.elements(y)))


def _from_input(g: GradientBuilder, op: Op) -> None:
    (x,), (y,) = op.inputs, op.outputs
    kind = _FUNCTIONS[op.kind]
    if g.wants(x):
        g.derive(kind, op, (x,), (g.gradient(y), x), flops=kind.gradient.of(g.elements(y)))


def _multiply_gradient(g: GradientBuilder, op: Op) -> None:
    (x, other), dy = op.inputs, g.gradient(op.outputs[0])
    flops = MULTIPLY.gradient.of(g.elements(x))
    for tensor, factor in ((x, other), (other, x)):
        if g.wants(tensor):
            g.derive(MULTIPLY, op, (tensor,), (dy, factor), flops=flops)


def _gated_gradient(g: GradientBuilder, op: Op) -> None:
    (gate, up), dy = op.inputs, g.gradient(op.outputs[0])
    kind = {"swiglu": SWIGLU, "geglu": GEGLU}[op.kind]
    flops = kind.gradient.of(g.elements(gate))
    g.derive(kind, op, tuple(filter(g.wants, (gate, up))), (dy, gate, up), flops=flops)


def _dropout_gradient(g: GradientBuilder, op: Op) -> None:
    (x,), (y, mask) = op.inputs, op.outputs
    if g.wants(x):
        g.derive(DROPOUT, op, (x,), (g.gradient(y), mask), flops=DROPOUT.gradient.of(g.elements(y)))


RELU = op_kind(
    "relu",
    forward=Cost(1, "element", "max(x, 0)"),
    gradient=Cost(1, "element", "dy where y > 0"),
    sharding=elementwise_sharding,
)(_from_output)
SIGMOID = op_kind(
    "sigmoid",
    forward=Cost(4, "element", "1 / (1 + exp(-x))"),
    gradient=Cost(3, "element", "dy y (1 - y)"),
    sharding=elementwise_sharding,
)(_from_output)
TANH = op_kind(
    "tanh",
    forward=Cost(1, "element", "tanh x"),
    gradient=Cost(3, "element", "dy (1 - y y)"),
    sharding=elementwise_sharding,
)(_from_output)
GELU = op_kind(
    "gelu",
    forward=Cost(9, "element", "t = tanh(a x (1 + c x x)) (6); x (1 + t) / 2 (3)"),
    gradient=Cost(
        17, "element", "t again (6); dy ((1 + t) / 2 + x (1 - t t) (a + b x x) / 2) (11)"
    ),
    sharding=elementwise_sharding,
)(_from_input)
SILU = op_kind(
    "silu",
    forward=Cost(5, "element", "s = 1 / (1 + exp(-x)) (4); x s (1)"),
    gradient=Cost(9, "element", "s again (4); dy s (1 + x (1 - s)) (5)"),
    sharding=elementwise_sharding,
)(_from_input)
RELU_SQUARED = op_kind(
    "relu-squared",
    forward=Cost(2, "element", "max(x, 0) (1); squared (1)"),
    gradient=Cost(3, "element", "max(x, 0) again (1); dy times 2 of it (2)"),
    sharding=elementwise_sharding,
)(_from_input)
MULTIPLY = op_kind(
    "multiply",
    forward=Cost(1, "element", "a multiplication"),
    gradient=Cost(1, "element and wanted input", "dy times the other input"),
    sharding=elementwise_sharding,
)(_multiply_gradient)
SWIGLU = op_kind(
    "swiglu",
    forward=Cost(6, "element", "silu(gate) (5); times up (1)"),
    gradient=Cost(
        12, "element", "silu(gate) again (5); dy silu (1), up dy (1), its silu gradient (5)"
    ),
    sharding=elementwise_sharding,
)(_gated_gradient)
GEGLU = op_kind(
    "geglu",
    forward=Cost(10, "element", "gelu(gate) (9); times up (1)"),
    gradient=Cost(
        20, "element", "gelu(gate) again (9); dy gelu (1), up dy (1), its gelu gradient (9)"
    ),
    sharding=elementwise_sharding,
)(_gated_gradient)
DROPOUT = op_kind(
    "dropout",
    forward=Cost(2, "element", "compare a random number, scale"),
    gradient=Cost(2, "element", "dy mask scale"),
    sharding=elementwise_sharding,
)(_dropout_gradient)
_FUNCTIONS = {kind.name: kind for kind in (RELU, SIGMOID, TANH, GELU, SILU, RELU_SQUARED)}
