"""What makes a step of a network: the loss, its scaling, and the updates of the weights."""

from __future__ import annotations

from ridgeline.errors import RidgelineError
from ridgeline.workload.builder import GradientBuilder, GraphBuilder
from ridgeline.workload.graph import Op, Pass, Role
from ridgeline.workload.kinds import Cost, OpKind, register
from ridgeline.workload.numerics import MASTER
from ridgeline.workload.optimizers import Optimizer


def cross_entropy(b: GraphBuilder, layer: str, logits: str, labels: str) -> str:
    """Mean cross entropy of softmax(logits) in fp32; the log-probabilities are kept."""
    if b.shape(logits)[:-1] != b.shape(labels):
        raise RidgelineError(
            f"layer {layer!r}: logits {list(b.shape(logits))} and labels {list(b.shape(labels))}"
            " do not belong together"
        )
    logits = b.cast(logits, MASTER, layer)
    loss = b.activation(f"{layer}.y", (), MASTER)
    kept = b.activation(f"{layer}.log-probabilities", b.shape(logits), MASTER)
    flops = LOSS.forward.of(b.elements(logits))
    b.emit(LOSS, layer, (logits, labels), (loss, kept), flops=flops)
    return loss


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
    """Update a weight tensor: reads (weight, gradient, states), writes (weight, states)."""
    of = g.tensors[weight]
    states = [g.tensor(f"{weight}.{s}", of.shape, MASTER, Role.STATE) for s in rule.states]
    g.emit(
        OPTIMIZER,
        layer,
        (weight, gradient, *states),
        (weight, *states),
        name=f"{weight}.update",
        pass_=Pass.UPDATE,
        flops=rule.flops_per_weight * of.elements,
        attrs=(("rule", rule.name),),
    )


def _loss_gradient(g: GradientBuilder, op: Op) -> None:
    (logits, labels), (loss, kept) = op.inputs, op.outputs
    if g.wants(logits):
        flops = LOSS.gradient.of(g.elements(logits))
        g.derive(LOSS, op, logits, (g.gradient(loss), kept, labels), flops=flops)


def _scale_gradient(g: GradientBuilder, op: Op) -> None:
    (x,), (y,) = op.inputs, op.outputs
    if g.wants(x):
        g.derive(SCALE, op, x, (g.gradient(y),), flops=SCALE.gradient.of(g.elements(x)))


LOSS = register(
    OpKind(
        "loss",
        _loss_gradient,
        Cost(5, "logit", "maximum, subtract, exp, sum, subtract the logarithm"),
        Cost(3, "logit", "exp, subtract the one-hot label, scale"),
    )
)
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
