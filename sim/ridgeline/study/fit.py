"""What would make a plan fit into memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline.report.result import Result
from ridgeline.study.point import Point

if TYPE_CHECKING:
    from rich.console import Console


def largest_fitting_micro_batch(point: Point, rank_batch: int) -> int | None:
    """Return the largest micro-batch that divides a rank's share and fits, or None.

    Memory grows with the micro-batch, so the divisors are searched by bisection, each by simulating
    the plan with it.
    """
    divisors = [m for m in range(1, rank_batch + 1) if rank_batch % m == 0]
    fitting = 0  # so many of the smallest divisors fit
    beyond = len(divisors)
    while fitting < beyond:
        middle = (fitting + beyond) // 2
        if point.with_values({"plan.micro_batch": divisors[middle]}).simulate().fits:
            fitting = middle + 1
        else:
            beyond = middle
    return divisors[fitting - 1] if fitting else None


def fitting_changes(point: Point, result: Result) -> dict[str, str | int] | None:
    """Return changes of the plan with which the step fits, the cheapest in time first, or None.

    Tried are recomputation and the sharing of state among the data-parallel ranks, alone and
    together, each with micro-batches of one sample.
    """
    plan = result.manifest["plan"]
    recompute = [{}, {"recompute": "selective"}, {"recompute": "full"}]
    shared = [{"sharding": stage} for stage in (1, 2, 3) if stage > plan["sharding"]]
    shares = [{}, *(shared if plan["data"] > 1 and plan["expert"] == 1 else [])]
    if plan["recompute"] != "none":
        recompute = [{}, {"recompute": "full"}]
    for sharing in shares:
        for again in recompute:
            changes: dict[str, str | int] = {"micro_batch": 1, **again, **sharing}
            values = {f"plan.{name}": value for name, value in changes.items()}
            if len(changes) > 1 and point.with_values(values).simulate().fits:
                return changes
    return None


def print_fitting_plan(point: Point, result: Result, screen: Console) -> None:
    """Say which micro-batch would fit, or what else would, or that nothing tried does."""
    micro_batch = largest_fitting_micro_batch(point, result.manifest["plan"]["rank_batch"])
    if micro_batch is not None:
        screen.print(f"would fit: the same plan with micro_batch={micro_batch} (accumulating)")
        return
    changes = fitting_changes(point, result)
    if changes is None:
        screen.print(
            "not even micro_batch=1, recompute=full and shared state would fit: it takes more "
            "devices for a model (tensor, pipeline), or devices with more memory"
        )
        return
    words = ",".join(f"{name}={value}" for name, value in changes.items())
    screen.print(f"would fit: the same plan with {words}")
