"""Op kinds: what each counts as arithmetic, how its gradient is formed and how it is sharded.

A kind is written in one file of `ridgeline.workload.ops`: the function that emits it (its shapes),
its costs, its gradient rule and its sharding rule stand together.

Conventions for `Op.vector_flops`: additions, multiplications, divisions, comparisons, conversions
and transcendental functions (exp, log, tanh, square root) count as 1 FLOP an element; work per
channel or per op (finishing a mean, bias correction) and random numbers are not counted.
Contractions count as ``2 * loops.macs`` and have no vector FLOPs.
`ridgeline.workload.ops.flop_table` lists the cost of every kind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ridgeline.errors import RidgelineError
from ridgeline.registry import Registry, takes
from ridgeline.workload.graph import Op
from ridgeline.workload.sharding_axes import GradientShardingRule, ShardingRule

GradientRule = Callable[[Any, Op], None]
"""Adds to a `builder.GradientBuilder`, whose module emits kinds and so imports this one."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Arithmetic outside contractions: so many FLOPs `per` what, and `why` so many."""

    flops: int
    per: str
    why: str

    def of(self, count: int) -> int:
        """FLOPs for a number of the things that are counted."""
        return self.flops * count


FREE = Cost(0, "op", "no arithmetic, or counted as a contraction")


@dataclass(frozen=True, slots=True)
class OpKind:
    """One kind of op.

    Attributes
    ----------
    name
        `Op.kind`, in all passes.
    gradient_rule
        Adds to a `GradientBuilder` the ops that form the gradients of a forward op's inputs; None
        for kinds that stand outside the differentiated part (seeds, updates).
    forward, gradient
        FLOPs of a forward op and of its gradient ops together.
    sharding
        Returns the axes along which a forward op can be split (`sharding_axes`); None: devices that
        share a layer all do such an op whole, which `ridgeline run` says.
    gradient_sharding
        What is special about the axes of its gradient ops; None: they follow from the forward op.
    """

    name: str
    gradient_rule: GradientRule | None
    forward: Cost = FREE
    gradient: Cost = FREE
    sharding: ShardingRule | None = None
    gradient_sharding: GradientShardingRule | None = None


KINDS: Registry[str, OpKind] = Registry("op kind", "ridgeline.workload.ops", OpKind)
"""All op kinds by name."""


def op_kind(
    name: str,
    *,
    forward: Cost = FREE,
    gradient: Cost = FREE,
    sharding: ShardingRule | None = None,
    gradient_sharding: GradientShardingRule | None = None,
) -> Callable[[GradientRule | None], OpKind]:
    """Return a decorator that registers an op kind with the gradient rule below it.

    The decorated name then is the `OpKind`, which `GraphBuilder.emit` takes. A kind without a
    gradient is ``op_kind(name, ...)(None)``. Parameters are the attributes of `OpKind`.

    Raises
    ------
    RidgelineError
        If the name is taken or a rule takes other parameters; by the decorator.
    """

    def put(gradient_rule: GradientRule | None) -> OpKind:
        for rule, what, parameters in (
            (gradient_rule, "the gradient rule", ("g", "op")),
            (sharding, "sharding", ("op", "tensors")),
            (gradient_sharding, "gradient_sharding", ("op", "tensors", "forward", "labels")),
        ):
            if rule is not None:
                takes(rule, f"op kind {name!r}: {what}", *parameters)
        kind = OpKind(name, gradient_rule, forward, gradient, sharding, gradient_sharding)
        return KINDS.register(name)(kind)

    return put


def registered() -> list[OpKind]:
    """Return all kinds, by name."""
    return [KINDS[name] for name in sorted(KINDS)]


def find(name: str) -> OpKind:
    """Return a kind by name.

    Raises
    ------
    RidgelineError
        If no kind of that name is registered.
    """
    found = KINDS.find(name)
    if found is None:
        raise RidgelineError(f"no gradient is known for ops of kind {name!r}")
    return found
