"""Infeasible searches: what it would take for a plan to fit into memory."""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from ridgeline.errors import RidgelineError
from ridgeline.study.planner.plan_class import GroupKey
from ridgeline.study.planner.result import FeasibilityGap, SimulatedPlan
from ridgeline.study.planner.searcher import Searcher

_PRICED, _SHARPENED = 12, 400  # groups, plans: those of the least bounds
_PLAYED = 3
_MOST_TIMES = 6  # that the number of devices is doubled


def feasibility_gap(one: Searcher) -> FeasibilityGap | None:
    """Look for the plan that needs the least memory, and for how many devices some plan fits."""
    capacity = float(one.runs.capacity_bytes)
    least = _leanest(one, np.inf)
    if least is None:
        return None
    away = None
    with suppress(RidgelineError):  # where nothing links the devices to a host
        away = one.replay(least.plan.model_copy(update={"offload": "all"}))
    devices, most = None, one.devices
    for k in range(1, _MOST_TIMES + 1):
        n = one.devices * 2**k
        if n > one.cluster.max_devices:
            break
        most = n
        replay = _leanest(one.on(n), capacity)
        if replay is not None and replay.fits:
            devices = n
            break
    return FeasibilityGap(
        least, capacity, devices, most, away if away is not None and away.fits else None
    )


def _leanest(one: Searcher, most_bytes: float) -> SimulatedPlan | None:
    """Play the plans that hold the least by their bounds; None: none can be played.

    Those whose bound is above `most_bytes`, or above what one has held, are not played.
    """
    if not len(one.space):
        return None
    groups: set[GroupKey] = set()
    least: list[tuple[float, int]] = []
    for i in _by_bound(one):
        groups.add(key := one.key(i))
        if len(groups) > _PRICED or len(least) == _SHARPENED:
            break
        group = one.groups.group(key)
        if group is not None:
            least.append((one.memory_bytes(group, i), i))
    played: list[SimulatedPlan] = []
    for bound, i in sorted(least):
        if bound > min([most_bytes, *(replay.memory_bytes for replay in played)]):
            break
        try:
            played.append(one.replay(one.space.plan(i)))
        except RidgelineError:
            continue
        if len(played) == _PLAYED or played[-1].fits:
            break
    return min(played, key=lambda replay: replay.memory_bytes, default=None)


def _by_bound(one: Searcher) -> list[int]:
    """Return plans in the order of what they hold at least by the screen, nothing priced."""
    space, at = one.space, np.arange(len(one.space))
    keys = [one.key(i) for i in at.tolist()]
    number = {key: k for k, key in enumerate(dict.fromkeys(keys))}
    known = np.array([one.may_fit(key) for key in number])
    held = one.screened(at, np.array([number[key] for key in keys]), known)[:, 2]
    order: list[int] = np.lexsort((at, space.schedule, space.micro_batch, held)).tolist()
    return order
