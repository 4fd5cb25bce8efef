"""From a forward graph to the graph of a whole training step, for any network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ridgeline.errors import RidgelineError
from ridgeline.workload import kinds, ops, optimizers
from ridgeline.workload.builder import TRAINED_BEFORE, GradientBuilder
from ridgeline.workload.graph import BackwardPass, Graph, Op, Pass, Role
from ridgeline.workload.optimizers import Optimizer


def training_graph(forward: Graph, optimizer: Optimizer) -> Graph:
    """Return the forward pass, the backward pass and the updates as one graph.

    Reverse accumulation: the ops are walked from the loss back; the rule of each op's kind emits
    the ops that form the gradients of its inputs, none for inputs that depend on no weight; where
    a tensor was read by several ops their gradients are added. What the gradient ops read of the
    forward pass is thereby what must be kept for them. Weights that are not frozen are updated at
    the end. A step of several backward passes (`Graph.backwards`) is that one after the other: each
    pass walks back over all forward ops before it, gradients of weights add up until they are
    dropped, and an update stands where its gradient is dropped, or at the end.

    Raises
    ------
    RidgelineError
        If a weight has no path to the loss and the graph is not `partial`, or the gradient of an op
        kind is unknown.
    """
    g = GradientBuilder(forward)
    updates = _Updates(g, forward, optimizer)
    if not forward.backwards:
        g.ops += forward.ops
        _backward(g, forward.ops, forward.loss, frozenset())
        for weight in _trained(forward):
            if g.has_gradient(weight):
                updates.write(weight, g.gradient(weight), optimizer)
            elif not forward.partial:
                raise RidgelineError(
                    f"{forward.name}: the weight {weight!r} does not reach the loss"
                )
        return g.graph(forward.loss, partial=forward.partial, notes=forward.notes)
    done = 0
    for part in forward.backwards:
        g.ops += forward.ops[done : part.after]
        done = part.after
        updates.write_pending(part.forgets)
        for weight in part.forgets:
            g.forget(weight)
        _backward(g, forward.ops[:done], part.loss, part.frozen)
        updates.take(part)
    g.ops += forward.ops[done:]
    updates.write_pending(g.weights)
    return g.graph(forward.loss, partial=forward.partial, notes=forward.notes)


def _trained(forward: Graph) -> list[str]:
    """Weights that are trained, in the order in which they were declared."""
    weights = (t.name for t in forward.tensors.values() if t.role is Role.WEIGHT)
    return [name for name in weights if name not in forward.frozen]


def _backward(g: GradientBuilder, forward: Sequence[Op], loss: str, frozen: frozenset[str]) -> None:
    """Write the gradient ops of a loss."""
    scaled, walked = loss, list(forward)
    if g.numerics.loss_scale is not None:
        begun = len(g.ops)
        scaled = ops.scale(g, g.free_op_name("loss-scale"), loss, g.numerics.loss_scale)
        walked += g.ops[begun:]
    g.begin(walked, frozen)
    walked.reverse()
    ops.seed(g, next(op.layer for op in walked if scaled in op.outputs), scaled)
    for op in walked:
        wanted = TRAINED_BEFORE in op.attrs or any(map(g.wants, op.inputs))
        if wanted and any(map(g.has_gradient, op.outputs)):
            rule = kinds.find(op.kind).gradient_rule
            if rule is None:
                raise RidgelineError(f"{op.name}: ops of kind {op.kind!r} have no gradient")
            rule(g, op)


class _Updates:
    """Writes the updates of a step: each before the gradient that it reads is dropped."""

    def __init__(self, g: GradientBuilder, forward: Graph, optimizer: Optimizer) -> None:
        self.g, self.optimizer = g, optimizer
        self.forward = forward
        self.layers = {name: op.layer for op in reversed(forward.ops) for name in op.inputs}
        self._matrices: dict[str, bool] | None = None
        self._pending: dict[str, tuple[str, Optimizer]] = {}
        first = next((name for part in forward.backwards for name, _ in part.updates), "")
        self._own = optimizer.name == first
        """Whether every optimizer keeps its rule; a plan that names another gives it to all."""

    def take(self, part: BackwardPass) -> None:
        """Let the optimizers after a backward pass update what has gradients now."""
        for name, weights in part.updates:
            rule = self.optimizer
            if self._own and name != rule.name:
                rule = optimizers.find(name)
                if self.optimizer.state_format:
                    rule = optimizers.with_state_format(rule, self.optimizer.state_format)
            for weight in filter(self.g.has_gradient, weights):
                self.write_pending((weight,))
                self._pending[weight] = (self.g.gradient(weight), rule)

    def write_pending(self, weights: Iterable[str]) -> None:
        """Write the updates of weights that wait: their gradients are dropped now."""
        due = frozenset(weights)
        for weight in [name for name in self._pending if name in due]:
            self.write(weight, *self._pending.pop(weight))

    def write(self, weight: str, gradient: str, rule: Optimizer) -> None:
        """Write one update."""
        g, factor = self.g, self.g.numerics.loss_scale
        if factor is not None:
            gradient = ops.unscale(g, self.layers[weight], gradient, factor)
        stacked = self._stacked(weight) if rule.products else None
        if stacked is not None and g.shape(weight) == g.shape(gradient):
            ops.matrix_update(g, self.layers[weight], weight, gradient, rule, stacked=stacked)
        else:
            ops.update(g, self.layers[weight], weight, gradient, optimizers.otherwise(rule))

    def _stacked(self, weight: str) -> bool | None:
        """Whether a weight is a stack of matrices; None: it is no matrix for the optimizer."""
        if self._matrices is None:
            self._matrices = ops.matrices_of(self.forward)
        return self._matrices.get(weight)


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
