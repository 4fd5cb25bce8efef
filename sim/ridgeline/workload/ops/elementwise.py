"""Elementwise functions, sums and dropout.

The gradients of relu, sigmoid and tanh read the function's output, not its input, as PyTorch's do:
the input may be overwritten.
"""

from __future__ import annotations

from typing import Literal

from ridgeline.errors import RidgelineError
from ridgeline.workload.builder import ADD, GradientBuilder, GraphBuilder
from ridgeline.workload.graph import Op, Role
from ridgeline.workload.kinds import Cost, OpKind, register
from ridgeline.workload.numerics import widest

Activation = Literal["relu", "sigmoid", "tanh"]


def activation(b: GraphBuilder, layer: str, x: str, function: Activation) -> str:
    """Apply an activation function, in place where nothing else needs `x`."""
    kind = {"relu": RELU, "sigmoid": SIGMOID, "tanh": TANH}[function]
    y = b.activation(f"{layer}.y", b.shape(x), b.format(x))
    b.emit(kind, layer, (x,), (y,), flops=kind.forward.of(b.elements(y)), in_place=True)
    return y


def relu(b: GraphBuilder, layer: str, x: str) -> str:
    """Return max(x, 0), in place where nothing else needs `x`."""
    return activation(b, layer, x, "relu")


def add(b: GraphBuilder, layer: str, x: str, other: str) -> str:
    """Return the sum of two tensors of one shape, in place of `x` where nothing else needs it."""
    if b.shape(x) != b.shape(other):
        raise RidgelineError(
            f"layer {layer!r} adds shapes {list(b.shape(x))} and {list(b.shape(other))}"
        )
    format_ = widest((b.format(x), b.format(other)))
    x, other = b.cast(x, format_, layer), b.cast(other, format_, layer)
    y = b.activation(f"{layer}.y", b.shape(x), format_)
    b.emit(ADD, layer, (x, other), (y,), flops=ADD.forward.of(b.elements(y)), in_place=True)
    return y


def dropout(b: GraphBuilder, layer: str, x: str, probability: float) -> str:
    """Zero elements at random and scale the others; the mask is kept at one byte an element."""
    y = b.activation(f"{layer}.y", b.shape(x), b.format(x))
    mask = b.tensor(f"{layer}.mask", b.shape(x), "int8", Role.ACTIVATION)
    flops = DROPOUT.forward.of(b.elements(y))
    b.emit(DROPOUT, layer, (x,), (y, mask), flops=flops, attrs=(("probability", probability),))
    return y


def _from_output(g: GradientBuilder, op: Op) -> None:
    (x,), (y,) = op.inputs, op.outputs
    kind = {"relu": RELU, "sigmoid": SIGMOID, "tanh": TANH}[op.kind]
    if g.wants(x):
        g.derive(kind, op, x, (g.gradient(y), y), flops=kind.gradient.of(g.elements(y)))


def _dropout_gradient(g: GradientBuilder, op: Op) -> None:
    (x,), (y, mask) = op.inputs, op.outputs
    if g.wants(x):
        g.derive(DROPOUT, op, x, (g.gradient(y), mask), flops=DROPOUT.gradient.of(g.elements(y)))


RELU = register(
    OpKind(
        "relu",
        _from_output,
        Cost(1, "element", "max(x, 0)"),
        Cost(1, "element", "dy where y > 0"),
    )
)
SIGMOID = register(
    OpKind(
        "sigmoid",
        _from_output,
        Cost(4, "element", "1 / (1 + exp(-x))"),
        Cost(3, "element", "dy y (1 - y)"),
    )
)
TANH = register(
    OpKind(
        "tanh",
        _from_output,
        Cost(1, "element", "tanh x"),
        Cost(3, "element", "dy (1 - y y)"),
    )
)
DROPOUT = register(
    OpKind(
        "dropout",
        _dropout_gradient,
        Cost(2, "element", "compare a random number, scale"),
        Cost(2, "element", "dy mask scale"),
    )
)
