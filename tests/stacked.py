"""Plans of tests with settings of a software stack beside the strategy."""

from __future__ import annotations

from typing import Any

from ridgeline.parallel.plan.plan import Plan
from ridgeline.parallel.plan.resolved import NEUTRAL, ResolvedPlan
from ridgeline.study.planner import SearchResult, search
from ridgeline.study.planner.searcher import Searcher, searcher

_NOISE = ("device_speed_std", "sequence_length_std", "expert_load_factor")


def stacked(**fields: Any) -> ResolvedPlan:
    """Return a plan run by a stack that costs nothing but for what `fields` say.

    Fields of `Plan` stand by their names, settings of a stack as ``gradients__bucket="1 MB"``.
    """
    settings = {name.replace("__", "."): fields.pop(name) for name in list(fields) if "__" in name}
    noise = {name: fields.pop(name) for name in _NOISE if name in fields}
    plan = Plan(**fields)
    own = {name: getattr(plan, name) for name in Plan.model_fields}
    return ResolvedPlan(**own, **noise, stack=NEUTRAL.with_settings(settings))


PLAIN = NEUTRAL.model_copy(update={"bound": True})
"""A program without any cost, whose devices are all as fast as a typical one."""


def plain_searcher(*case: Any, **more: Any) -> Searcher:
    """Prepare a search of plans that `PLAIN` runs."""
    return searcher(*case, software=PLAIN, **more)


def plain_search(*case: Any, **more: Any) -> SearchResult:
    """Search plans that `PLAIN` runs."""
    return search(*case, software=PLAIN, **more)


def changed(plan: ResolvedPlan, **fields: Any) -> ResolvedPlan:
    """Return a plan with fields replaced, its own or those of its stack, as `stacked` has them."""
    settings = {name.replace("__", "."): fields.pop(name) for name in list(fields) if "__" in name}
    return plan.model_copy(update={**fields, "stack": plan.stack.with_settings(settings)})
