"""Cut a pipeline otherwise where links count and the step, as it is played, ends sooner.

A cut knows what each message, sum and gather takes alone (`pace`). In the step they share links:
what a stage sends on and what it sends back leave by one port, a skip connection sends from the
stage that makes a tensor to every one that reads it, and gradients are summed on links that
messages take. So the cut of `stage_balance: even` is the shortest only as far as links matter
little. Where they do, the cuts that a plan can name are played, too, and the step is the shortest
of them: no plan that names a cut is faster than one that does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from ridgeline.engine.timeline import Timeline
from ridgeline.errors import ConfigError
from ridgeline.hardware.device import Device
from ridgeline.parallel.fitting_cut import stage_shares
from ridgeline.parallel.lower import Lowered
from ridgeline.parallel.partition.pipeline_partition import Cut
from ridgeline.parallel.plan.plan import Plan

Step = tuple[Lowered, Timeline]
LEAST_CROWDED_SHARE = 0.02
"""From which on links that are shared decide where a pipeline is cut: by what share it is longer if
all that it sends takes twice as long."""
NAMED: tuple[Cut, ...] = ("layers", "ends")
"""Cuts that a plan can name."""


def are_tried(crowded_share: float) -> bool:
    """Tell whether other cuts of a pipeline are played than the one that is judged by itself."""
    return crowded_share >= LEAST_CROWDED_SHARE


def that_ends_sooner(
    first: Step, plan: Plan, device: Device, played: Callable[[Cut, float], Step]
) -> Step:
    """Return the step that ends first of the one that is cut evenly and those of named cuts.

    One that does not fit into memory counts only where the first one does not fit, either.

    Parameters
    ----------
    device
        Of the first kind.
    played
        Plays the step that is cut as a plan can name. What runs beside its tasks need not slow
        them if it takes this many seconds anyhow: then it is not chosen.
    """
    if not are_tried(first[0].crowded_share):
        return first
    best, fits = first, stage_shares(first, plan, device).max() <= 1.0
    for cut in NAMED:
        try:
            step = played(cut, best[1].makespan_s if fits else math.inf)
        except ConfigError:  # fewer layers than stages
            continue
        there = stage_shares(step, plan, device).max() <= 1.0
        if (there, -step[1].makespan_s) > (fits, -best[1].makespan_s * (1.0 - _EQUAL)):
            best, fits = (replace(step[0], shortest_cut=1.0, cut_as=cut), step[1]), there
    return best


_EQUAL = 1e-9
"""Share up to which two steps end at the same time."""
