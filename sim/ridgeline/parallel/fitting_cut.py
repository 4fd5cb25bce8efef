"""Cut a pipeline again where a device holds more, when the step is played, than its cut knew."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ridgeline.engine.timeline import Timeline
from ridgeline.hardware.device import Device
from ridgeline.parallel.lower import Lowered
from ridgeline.parallel.plan.mesh import Mesh
from ridgeline.parallel.plan.plan import Plan

Step = tuple[Lowered, Timeline]
_MOST_CUTS = 4


def that_fits(
    first: Step, plan: Plan, device: Device, played: Callable[[tuple[float, ...]], Step]
) -> Step:
    """Return a step whose pipeline is cut so that it fits, if that is found; else the first one.

    A cut knows what tensors hold (`part_memory`). What an allocator loses, and what has come and is
    not yet read, shows when it is played: the next cut counts on as much more for each stage.

    Parameters
    ----------
    device
        Of the first kind.
    played
        Plays the step that is cut as if each stage held so many times what is known.
    """
    step, fuller = first, np.ones(len(first[0].memory_shares))
    for _ in range(_MOST_CUTS):
        known = np.array(step[0].memory_shares)
        there = stage_shares(step, plan, device)
        if there.max() <= 1.0:
            return step
        if known.max() > 1.0:
            return first  # no cut fits
        fuller = fuller * np.maximum(there / known, 1.0)
        step = played(tuple(fuller.tolist()))
    return first


def stage_shares(step: Step, plan: Plan, device: Device) -> npt.NDArray[np.float64]:
    """Return what each stage's fullest device holds, over its capacity."""
    lowered, timeline = step
    stage_of = np.empty(plan.devices, np.int64)
    for stage, ranks in enumerate(Mesh.of(plan).stages):
        stage_of[ranks.ravel()] = stage
    found = np.zeros(plan.pipeline)
    for rank, (members, use) in enumerate(zip(lowered.classes, timeline.memory(), strict=True)):
        capacity = int(lowered.device_of_rank(rank, device).capacity_bytes)
        stage = stage_of[members[0]]
        found[stage] = max(found[stage], use.peak_bytes / capacity)
    return found
