"""The register of op kinds: what each counts as arithmetic and how its gradient is formed.

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
from ridgeline.workload.graph import Op

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
    """

    name: str
    gradient_rule: GradientRule | None
    forward: Cost = FREE
    gradient: Cost = FREE


_KINDS: dict[str, OpKind] = {}


def register(kind: OpKind) -> OpKind:
    """Enter a kind in the register; a second kind of the same name is an error."""
    if kind.name in _KINDS:
        raise ValueError(f"op kind {kind.name!r} is registered twice")
    _KINDS[kind.name] = kind
    return kind


def registered() -> list[OpKind]:
    """Return all kinds, by name."""
    return [kind for _, kind in sorted(_KINDS.items())]


def find(name: str) -> OpKind:
    """Return a kind by name.

    Raises
    ------
    RidgelineError
        If no kind of that name is registered.
    """
    if name not in _KINDS:
        raise RidgelineError(f"no gradient is known for ops of kind {name!r}")
    return _KINDS[name]
