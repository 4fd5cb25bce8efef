"""What makes a step of a network: the scaled loss, its seed, and the updates of the weights."""

from __future__ import annotations

from fractions import Fraction

from ridgeline.errors import RidgelineError
from ridgeline.workload.builder import GradientBuilder, GraphBuilder
from ridgeline.workload.graph import Op, Pass, Passes, Role
from ridgeline.workload.kinds import Cost, OpKind, register
from ridgeline.workload.optimizers import Optimizer


def scale(b: GraphBuilder, layer: str, x: str, factor: float) -> str:
    """Multiply by a constant."""
    y = b.activation(f"{layer}.y", b.shape(x), b.format(x))
    flops = SCALE.forward.of(b.elements(x))
    b.emit(SCALE, layer, (x,), (y,), flops=flops, attrs=(("factor", factor),))
    return y


def seed(g: GradientBuilder, layer: str, loss: str) -> None:
    """Start the backward pass: the gradient of the loss by itself is 1."""
    gradient = g.gradient_tensor(loss)
    g.emit(FILL, layer, (), (gradient,), name=f"{gradient}.fill", pass_=Pass.INPUT_GRADIENT)
    g.give(loss, gradient, layer)


def unscale(g: GradientBuilder, layer: str, gradient: str, factor: float) -> str:
    """Divide a weight gradient by the loss scale and look for overflow, in place."""
    of = g.tensors[gradient]
    y = g.tensor(f"{gradient}.unscaled", of.shape, of.format, of.role)
    g.emit(
        UNSCALE,
        layer,
        (gradient,),
        (y,),
        name=f"{gradient}.unscale",
        pass_=Pass.UPDATE,
        flops=UNSCALE.gradient.of(of.elements),
        in_place=True,
        attrs=(("factor", factor),),
    )
    return y


def update(g: GradientBuilder, layer: str, weight: str, gradient: str, rule: Optimizer) -> None:
    """Update a weight tensor: reads (weight, gradient, states), writes (weight, states).

    A sparse gradient updates only the rows that it has.
    """
    shape, touched = g.shape(weight), g.elements(gradient)
    states = [
        g.tensor(f"{weight}.{name}", of_state, g.numerics.master, Role.STATE)
        for name, of_state in rule.state_shapes(shape).items()
    ]
    passes: Passes = (rule.weight_passes, rule.gradient_passes, *(1 for _ in states))
    output_passes: Passes = (rule.weight_writes, *(1 for _ in states))
    if g.shape(gradient) != shape:
        if not rule.by_element:
            raise RidgelineError(
                f"{weight}: the optimizer {rule.name!r} needs the whole gradient, which is sparse"
            )
        part = Fraction(touched, g.elements(weight))
        passes = (part, 1, *(part for _ in states))
        output_passes = (part, *(part for _ in states))
    g.emit(
        OPTIMIZER,
        layer,
        (weight, gradient, *states),
        (weight, *states),
        name=f"{weight}.update",
        pass_=Pass.UPDATE,
        flops=rule.flops_per_weight * touched,
        passes=passes,
        output_passes=output_passes,
        attrs=(("rule", rule.name),),
    )


def _scale_gradient(g: GradientBuilder, op: Op) -> None:
    (x,), (y,) = op.inputs, op.outputs
    if g.wants(x):
        g.derive(SCALE, op, (x,), (g.gradient(y),), flops=SCALE.gradient.of(g.elements(x)))


SCALE = register(
    OpKind(
        "scale",
        _scale_gradient,
        Cost(1, "element", "a multiplication"),
        Cost(1, "element", "a multiplication"),
    )
)
FILL = register(OpKind("fill", None))
UNSCALE = register(
    OpKind("unscale", None, gradient=Cost(2, "weight", "a multiplication and a test for infinity"))
)
OPTIMIZER = register(
    OpKind("optimizer", None)  # FLOPs per weight: ridgeline.workload.optimizers
)
