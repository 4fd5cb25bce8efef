"""From a forward graph to the graph of a whole training step, for any network."""

from __future__ import annotations

from ridgeline.errors import RidgelineError
from ridgeline.workload import kinds, ops, optimizers
from ridgeline.workload.builder import TRAINED_BEFORE, GradientBuilder
from ridgeline.workload.graph import Graph, Pass, Role
from ridgeline.workload.optimizers import Optimizer


def training_graph(forward: Graph, optimizer: Optimizer) -> Graph:
    """Return the forward pass, the backward pass and the updates as one graph.

    Reverse accumulation: the ops are walked from the loss back; the rule of each op's kind emits
    the ops that form the gradients of its inputs, none for inputs that depend on no weight; where
    a tensor was read by several ops their gradients are added. What the gradient ops read of the
    forward pass is thereby what must be kept for them. Weights that are not frozen are updated at
    the end.

    Raises
    ------
    RidgelineError
        If a weight has no path to the loss and the graph is not `partial`, or the gradient of an op
        kind is unknown.
    """
    g = GradientBuilder(forward)
    loss, factor = forward.loss, g.numerics.loss_scale
    if factor is not None:
        loss = ops.scale(g, "loss-scale", loss, factor)
    walked = tuple(reversed(g.ops))
    ops.seed(g, next(op.layer for op in walked if loss in op.outputs), loss)
    for op in walked:
        wanted = TRAINED_BEFORE in op.attrs or any(map(g.wants, op.inputs))
        if wanted and any(map(g.has_gradient, op.outputs)):
            rule = kinds.find(op.kind).gradient_rule
            if rule is None:
                raise RidgelineError(f"{op.name}: ops of kind {op.kind!r} have no gradient")
            rule(g, op)
    layers = {name: op.layer for op in walked for name in op.inputs}
    matrices = ops.matrices_of(forward) if optimizer.products else {}
    elementwise = optimizers.otherwise(optimizer)
    weights = [t.name for t in forward.tensors.values() if t.role is Role.WEIGHT]
    for weight in [name for name in weights if name not in forward.frozen]:
        if not g.has_gradient(weight):
            if forward.partial:
                continue
            raise RidgelineError(f"{forward.name}: the weight {weight!r} does not reach the loss")
        gradient = g.gradient(weight)
        if factor is not None:
            gradient = ops.unscale(g, layers[weight], gradient, factor)
        if weight in matrices and g.shape(weight) == g.shape(gradient):
            stacked = matrices[weight]
            ops.matrix_update(g, layers[weight], weight, gradient, optimizer, stacked=stacked)
        else:
            ops.update(g, layers[weight], weight, gradient, elementwise)
    return g.graph(forward.loss, partial=forward.partial, notes=forward.notes)


def weight_gradients(graph: Graph) -> dict[str, str]:
    """Return, for each weight, the gradient that the backward pass hands to its update.

    This is what is summed over data-parallel ranks: before loss scaling is undone.
    """
    before: dict[str, str] = {}
    gradients: dict[str, str] = {}
    for op in graph.ops:
        if op.pass_ is Pass.UPDATE and op.kind == "optimizer":
            weight, gradient, *_ = op.inputs
            gradients[weight] = before.get(gradient, gradient)
        elif op.pass_ is Pass.UPDATE and op.outputs:
            before[op.outputs[0]] = before.get(op.inputs[0], op.inputs[0])
    return gradients


def gradient_parts(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Return, for each weight, the tensors that its gradient is the sum of: it, or several.

    A weight that several layers read gets a part of its gradient of each, and sums of them.
    """
    writer = {name: op for op in graph.ops for name in op.outputs}
    found = {}
    for weight, gradient in weight_gradients(graph).items():
        open_, parts = [gradient], list[str]()
        while open_:
            name = open_.pop()
            op = writer.get(name)
            if op is not None and op.kind == "add" and op.pass_ is Pass.WEIGHT_GRADIENT:
                open_ += op.inputs
            elif op is not None:
                parts.append(name)
        found[weight] = tuple(parts)
    return found
