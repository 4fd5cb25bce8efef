"""How a step is distributed: the Plan, and the lowering of a graph to a Program."""

from ridgeline.parallel.plan.plan import Plan
from ridgeline.parallel.plan.text import make_plan, plan_fields

__all__ = ["Plan", "make_plan", "plan_fields"]
