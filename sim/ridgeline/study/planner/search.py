"""Search for the plan of the least step time, energy or cost on so many devices."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ridgeline.hardware.cluster import Cluster
from ridgeline.software.stack import Stack
from ridgeline.study.planner.branch_and_bound import Frontier
from ridgeline.study.planner.infeasible import feasibility_gap
from ridgeline.study.planner.search_result import Objective, SearchResult
from ridgeline.study.planner.searcher import Searcher, searcher
from ridgeline.workload.model import Model


def search(
    model: Model | str, cluster: Cluster | str, devices: int, global_batch: int, *,
    objective: Objective = "time", precision: str | None = None, limit: int | None = None,
    progress: Callable[[str], None] = lambda text: None,
    alone: str | None = None, advise: bool = True, context: bool | None = None,
    processes: int | None = None, grids: bool = False, spatial: bool = False,
    software: Stack | str | None = None,
) -> SearchResult:  # fmt: skip
    """Find the plan of the least step time, energy or cost on exactly so many devices.

    Parameters
    ----------
    limit
        Replay at most so many plans that fit, and four times as many in all; None: until the best
        is proven.
    alone
        Consider only plans that divide the step by this dimension (`PlanSpace.only`).
    advise
        Where no plan fits, look for what it would take.
    context
        Whether devices may share the positions of a sequence. None: of long ones (`LONG`).
    processes
        2: a second process prices and plays, too, where one can be forked. 1: none does. None:
        where there is much to price. The answer is the same.
    grids, spatial
        Whether tensor-parallel devices may stand in rows and columns, and whether devices may share
        the rows and columns of images. What their replicas send is not in the bounds.
    software
        The program that runs the plans, as in `simulate`. Only plans that it supports are listed;
        fields that are not searched are as it has them.

    Raises
    ------
    RidgelineError
        As `searcher`. Where no plan fits, `SearchResult.best` raises.
    """
    began = time.perf_counter()
    one = searcher(
        model, cluster, devices, global_batch,
        objective=objective, precision=precision, context=context, grids=grids, spatial=spatial,
        software=software,
    )  # fmt: skip
    one_alone = one if alone is None else one.only(alone)
    found = found_by(one_alone, limit, progress, began=began, processes=processes)
    if advise and not found.replays and not np.isfinite(found.open_bound):
        found = replace(found, needs=feasibility_gap(one), seconds=time.perf_counter() - began)
    return found


def found_by(
    one: Searcher, limit: int | None, progress: Callable[[str], None] = lambda text: None, *,
    began: float | None = None, processes: int | None = None,
) -> SearchResult:  # fmt: skip
    """Search the plans of a searcher, which keeps what it has priced; others as in `search`."""
    began = time.perf_counter() if began is None else began
    return Frontier(one, limit, progress, processes).found(began)
