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


def print_fitting_plan(point: Point, result: Result, screen: Console) -> None:
    """Say which micro-batch would fit, or that none does."""
    micro_batch = largest_fitting_micro_batch(point, result.manifest["plan"]["rank_batch"])
    if micro_batch is None:
        screen.print("not even micro_batch=1 would fit: it takes devices with more memory")
    else:
        screen.print(f"would fit: the same plan with micro_batch={micro_batch} (accumulating)")
