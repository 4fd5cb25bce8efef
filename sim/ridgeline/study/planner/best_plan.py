"""The best plan for a step on a number of devices, as ``ridgeline plan`` looks for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ridgeline.hardware.cluster import Cluster
from ridgeline.software.stack import Stack
from ridgeline.study.planner.frontier import search
from ridgeline.study.planner.objectives import Objective, Prices
from ridgeline.study.planner.result import SearchProgress, SearchResult
from ridgeline.workload.model import Model

PLAYED, ALTERNATIVES = 4, 3


def plan(
    model: Model | str,
    cluster: Cluster | str,
    *,
    devices: int,
    batch: int,
    objective: Objective = "time",
    precision: str | None = None,
    software: Stack | str | None = None,
    fix: Mapping[str, Any] | None = None,
    memory_margin: float = 0.0,
    context: bool | None = None,
    grids: bool = False,
    spatial: bool = False,
    limit: int | None = PLAYED,
    gap: float = 0.0,
    time_limit_s: float | None = None,
    alternatives: int = ALTERNATIVES,
    prices: Prices | None = None,
    progress: Callable[[SearchProgress], None] = lambda told: None,
) -> SearchResult:
    """Find the best plan: screen all by a lower bound, play the candidates on the engine.

    Parameters
    ----------
    devices
        Number of devices that the plan uses.
    batch
        Samples of one step over all devices.
    objective
        What is minimised: "time" or "energy" of a step; "cost", price of the devices times time;
        "tokens-per-joule"; "cost-per-token", rent of the devices and price of the energy.
    fix
        Fields of the plan that must have a value, one of some, or one of a range: ``{"tensor": 8,
        "pipeline": "4..16"}``.
    memory_margin
        Share of each device's memory that a plan leaves free.
    context, grids, spatial
        Also try context parallelism (None: for sequences of 16,384 and more), tensor parallelism on
        grids, and spatial parallelism.
    limit
        Simulate at most so many plans that fit; None: as many as a proof of the best one needs.
    gap
        End when no other plan can be better by a greater share.
    time_limit_s
        End after so many seconds, with the best so far and what is open.
    alternatives
        Play so many plans of other shapes, too.
    progress
        Called with how far the search is.

    Raises
    ------
    RidgelineError
        If the cluster has too few devices, a fix is no field of a plan, or the software cannot run
        the model there. Where no plan fits, `SearchResult.best` raises.
    """
    return search(
        model, cluster, devices, batch,
        objective=objective, precision=precision, limit=limit, gap=gap, time_limit_s=time_limit_s,
        alternatives=alternatives, progress=progress, context=context, grids=grids,
        spatial=spatial, software=software, fix=fix, memory_margin=memory_margin, prices=prices,
    )  # fmt: skip
