"""What makes a step of a network: the scaled loss, its seed, and the updates of the weights."""

from __future__ import annotations

from fractions import Fraction

from ridgeline.errors import RidgelineError
from ridgeline.workload.builder import GradientBuilder, GraphBuilder
from ridgeline.workload.graph import Op, Pass, Passes, Role
from ridgeline.workload.kinds import Cost, op_kind
from ridgeline.workload.optimizers import Optimizer
from ridgeline.workload.sharding_axes import Labels, OpAxes, Tensors, whole
from ridgeline.workload.sharding_rules import elementwise_sharding, plain_labels


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
    states = state_tensors(g, weight, rule)
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
        name=g.free_op_name(f"{weight}.update"),  # a step may update it more than once
        pass_=Pass.UPDATE,
        flops=rule.flops(touched),
        passes=passes,
        output_passes=output_passes,
        attrs=(("rule", rule.name),),
    )


def state_tensors(g: GradientBuilder, weight: str, rule: Optimizer) -> list[str]:
    """Declare what an optimizer keeps for a weight tensor, if that is not there yet."""
    format_ = rule.format_of(g.elements(weight), g.numerics.master)
    states = {f"{weight}.{name}": of for name, of in rule.state_shapes(g.shape(weight)).items()}
    return [
        name if name in g.tensors else g.tensor(name, shape, format_, Role.STATE)
        for name, shape in states.items()
    ]


def _scale_gradient(g: GradientBuilder, op: Op) -> None:
    (x,), (y,) = op.inputs, op.outputs
    if g.wants(x):
        g.derive(SCALE, op, (x,), (g.gradient(y),), flops=SCALE.gradient.of(g.elements(x)))


def update_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """Weight, gradient and states; a factored state has the sums of rows or columns."""
    shape = tensors[op.inputs[0]].shape
    labels = plain_labels(len(shape))

    def of(name: str) -> Labels:
        mine = tensors[name].shape
        if len(mine) == len(shape):
            return labels  # also a sparse gradient, which has rows of the weight
        if name.endswith(".rows"):
            return labels[:-1]
        if name.endswith(".columns"):
            return (*labels[:-2], labels[-1])
        return tuple("" for _ in mine)

    return OpAxes(tuple(map(of, op.inputs)), tuple(map(of, op.outputs)))


SCALE = op_kind(
    "scale",
    forward=Cost(1, "element", "a multiplication"),
    gradient=Cost(1, "element", "a multiplication"),
    sharding=elementwise_sharding,
)(_scale_gradient)
FILL = op_kind("fill", sharding=whole)(None)
UNSCALE = op_kind(
    "unscale",
    gradient=Cost(2, "weight", "a multiplication and a test for infinity"),
    sharding=elementwise_sharding,
)(None)
OPTIMIZER = op_kind("optimizer", sharding=update_sharding)(None)
