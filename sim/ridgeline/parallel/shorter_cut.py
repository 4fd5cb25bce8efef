"""Cut a pipeline otherwise where its messages count and the step, as it is played, ends sooner.

A cut knows what each of its messages takes alone (`pace`). In the step they share links: what a
stage sends on and what it sends back leave by one port, and a skip connection sends from the stage
that makes a tensor to every one that reads it. So the cut of `stage_balance: even` is the shortest
only as far as messages matter little. Where they do, the cuts that a plan can name are played, too,
and the step is the shortest of them: no plan that names a cut is faster than one that does not.
"""

from __future__ import annotations

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
LEAST_MESSAGE_SHARE = 0.01
"""Share of a pipeline's seconds from which messages decide where it is cut: with less of them, no
order of theirs makes another cut as much faster as a note says (`report.manifest`)."""
NAMED: tuple[Cut, ...] = ("layers", "ends")
"""Cuts that a plan can name."""


def are_tried(message_share: float) -> bool:
    """Tell whether other cuts of a pipeline are played than the one that its messages tell of."""
    return message_share >= LEAST_MESSAGE_SHARE


def that_ends_sooner(
    first: Step, plan: Plan, device: Device, played: Callable[[Cut], Step]
) -> Step:
    """Return the step that ends first of the one that is cut evenly and those of named cuts.

    One that does not fit into memory counts only where the first one does not fit, either.

    Parameters
    ----------
    device
        Of the first kind.
    played
        Plays the step that is cut as a plan can name.
    """
    if not are_tried(first[0].message_share):
        return first
    best, fits = first, stage_shares(first, plan, device).max() <= 1.0
    for cut in NAMED:
        try:
            step = played(cut)
        except ConfigError:  # fewer layers than stages
            continue
        there = stage_shares(step, plan, device).max() <= 1.0
        if (there, -step[1].makespan_s) > (fits, -best[1].makespan_s * (1.0 - _EQUAL)):
            best, fits = (replace(step[0], shortest_cut=1.0, cut_as=cut), step[1]), there
    return best


_EQUAL = 1e-9
"""Share up to which two steps end at the same time."""
