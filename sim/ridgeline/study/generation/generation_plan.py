"""Plans of generation from text: their batch is not read, so that none need be given."""

from __future__ import annotations

from ridgeline.parallel.plan.plan import Plan
from ridgeline.parallel.plan.text import make_plan, plan_fields


def generation_plan(text: str, precision: str | None = None) -> Plan:
    """Read ``tensor=8`` or ``data=32,expert=32`` as the plan of an engine.

    Raises
    ------
    ConfigError
        If a field is unknown, or has a value that is not allowed.
    """
    fields = plan_fields(text, {"precision": precision})
    return make_plan({"global_batch": fields.get("data", 1), **fields})
