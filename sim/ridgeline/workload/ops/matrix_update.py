"""Updates that are computed with whole matrices of weights: Muon, SOAP, Shampoo.

An update begins with what is done element by element (`ops.step`): momentum, in the format of
products. Products of the whole matrix follow (`MatrixProduct`), and what they make is applied to
the weights, element by element again. A device that has a part of a matrix gathers it, does all
products, and applies its part: Megatron-Core's tensor-parallel Muon does so ("duplicated"). Experts
lie in one tensor; each is a matrix of its own.
"""

from __future__ import annotations

import math

from ridgeline.workload.builder import GradientBuilder
from ridgeline.workload.graph import Gemm, Graph, Pass, Role
from ridgeline.workload.kinds import Cost, op_kind
from ridgeline.workload.ops.step import OPTIMIZER, state_tensors, update_sharding
from ridgeline.workload.optimizers import Optimizer
from ridgeline.workload.sharding_axes import whole

OF = "of"
"""Attribute of the ops of such an update: the weight."""
STEPS = "steps"
"""Attribute of the ops on matrices: how often each is multiplied."""
DIRECTION = ".direction"
"""How names of what an update goes on with begin, behind the weight's."""
_OF_MATRIX = 2
_WEIGHTS = frozenset({Role.WEIGHT, Role.WEIGHT_COPY})


def matrices_of(forward: Graph) -> dict[str, bool]:
    """Name the weights between embedding and classifier that are matrices, or stacks of them.

    These are weights that products and convolutions read, but for the products from which the loss
    follows without another one: classifiers. Tables that lookups read are none.

    Returns
    -------
    dict
        By name, whether it is a stack: whether products take it for several matrices, as experts'.
    """
    weight: dict[str, str] = {}
    for op in forward.ops:
        if len(op.outputs) == 1 and forward.tensors[op.outputs[0]].role is Role.WEIGHT_COPY:
            weight[op.outputs[0]] = weight.get(op.inputs[0], op.inputs[0])
    last = _classifiers(forward)
    found, other = dict[str, bool](), set[str]()
    for op in forward.ops:
        if op.outputs and forward.tensors[op.outputs[0]].role is Role.WEIGHT_COPY:
            continue
        read = [weight.get(n, n) for n in op.inputs if forward.tensors[n].role in _WEIGHTS]
        if op.loops is None or op.name in last:
            other.update(read)
            continue
        several = isinstance(op.loops, Gemm) and op.loops.batch > 1
        for name in read:
            deep = len(forward.tensors[name].shape) > _OF_MATRIX
            found[name] = found.get(name, False) or (several and deep)
    return {
        name: stacked
        for name, stacked in found.items()
        if name not in other and len(forward.tensors[name].shape) >= _OF_MATRIX
    }


def _classifiers(forward: Graph) -> frozenset[str]:
    """Name the products of weights that the loss follows from without another product."""
    wanted, found = {forward.loss}, set[str]()
    for op in reversed(forward.ops):
        if wanted.isdisjoint(op.outputs):
            continue
        if op.loops is not None and any(forward.tensors[n].role in _WEIGHTS for n in op.inputs):
            found.add(op.name)
        else:
            wanted.update(op.inputs)
    return frozenset(found)


def matrix_update(
    g: GradientBuilder, layer: str, weight: str, gradient: str, rule: Optimizer, *, stacked: bool
) -> None:
    """Update a matrix of weights [a, b], a filter [a, b, r, s], or if `stacked` [n, a, b]."""
    shape, size = g.shape(weight), g.elements(weight)
    count, rows, columns = _matrices(shape, stacked=stacked)
    states = state_tensors(g, weight, rule)
    lead = (count,) if len(shape) > _OF_MATRIX and count > 1 else ()
    sides = rule.sides(rows, columns)
    kept = {
        side: [
            g.tensor(f"{weight}.{name}.{side}", (*lead, s, s), g.numerics.master, Role.STATE)
            for name in rule.side_states
        ]
        for side, s in sides.items()
    }
    compute = g.numerics.compute
    x = g.tensor(f"{weight}{DIRECTION}", shape, compute, Role.ACTIVATION_GRADIENT)
    g.emit(
        OPTIMIZER,
        layer,
        (weight, gradient, *states),
        (x, *states),
        name=f"{weight}.update",  # of a matrix: once a step
        pass_=Pass.UPDATE,
        flops=rule.flops(size),
        passes=(0, rule.gradient_passes, *(1 for _ in states)),
        attrs=(("rule", rule.name),),
    )
    extents = {
        "rows": rows, "columns": columns, "small": min(rows, columns), "large": max(rows, columns)
    }  # fmt: skip
    made = x
    for number, product in enumerate(rule.products, 1):
        if product.side and product.side not in sides:
            continue
        m, n, k = (extents[side] for side in product[:3])
        shape_of = shape if m * n == rows * columns else (*lead, m, n)
        y = g.tensor(f"{weight}{DIRECTION}.{number}", shape_of, compute, Role.ACTIVATION_GRADIENT)
        held = kept.get(product.side, [])
        # a side's own product adds to its first state; others read its last
        square = product.side and m == n == extents[product.side] and product.inner != product.side
        beside = held[:1] if square else held[-1:]
        decomposed = math.ceil(rule.side_flops * m**3) if square else 0
        steps = count * product.times
        g.emit(
            ORTHOGONALISE,
            layer,
            (made, x, *beside),
            (y, *(held if square else ())),
            name=f"{weight}.update.{number}",
            pass_=Pass.UPDATE,
            loops=Gemm(m, n, k, steps),
            flops=2 * steps * m * n + count * decomposed,
            passes=(product.times, product.times, *(1 for _ in beside)),
            output_passes=(product.times, *(1 for _ in (held if square else ()))),
            attrs=(("sequential", 1), (OF, weight), (STEPS, product.times)),
        )
        made = made if square and rule.side_states else y
    g.emit(
        APPLY,
        layer,
        (weight, made),
        (weight,),
        name=f"{weight}.apply",
        pass_=Pass.UPDATE,
        flops=rule.update_flops * size,
        attrs=(("rule", rule.name), (OF, weight)),
    )


def _matrices(shape: tuple[int, ...], *, stacked: bool) -> tuple[int, int, int]:
    """Return how many matrices a weight is, and their rows and columns."""
    if stacked:
        *lead, rows, columns = shape
        return math.prod(lead), rows, columns
    return 1, shape[0], math.prod(shape[1:])


ORTHOGONALISE = op_kind(
    "orthogonalise",
    gradient=Cost(2, "element of each product", "a multiple of another matrix is added"),
    sharding=whole,
)(None)
APPLY = op_kind("apply-update", sharding=update_sharding)(None)
