"""The optimizer of a plan: the network's own or another, its state in the plan's format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline.workload import optimizers
from ridgeline.workload.optimizers import Optimizer

if TYPE_CHECKING:
    from ridgeline.parallel.plan.plan import Plan
    from ridgeline.workload.model import Model


def update_rule(plan: Plan, model: Model) -> Optimizer | None:
    """Return the optimizer that a plan says; None: it says nothing of it."""
    if plan.optimizer is None and plan.optimizer_state is None:
        return None
    rule = model.default_optimizer if plan.optimizer is None else optimizers.find(plan.optimizer)
    if plan.optimizer_state is None:
        return rule
    return optimizers.with_state_format(rule, plan.optimizer_state)
