"""Lower bounds of step time over the whole plan space, as arrays.

`screen` is the compiled closed form over all plans: of a pipeline it only knows the sums over all
units; `StageBounds` (`stage_bounds`) knows the stages. Both leave out what can only add to the
engine's answer (waiting for messages, shared links, launches of what is done once a step), so
neither is ever above it.

A micro-batch takes x_s on stage s, and M of them pass each stage one after the other; before the
first one the stages before have to be passed forward, after the last one backward. So
``T >= sum(x_r for r < s) + M x_s`` for every s, of which follows for any split of W = sum(x_s) over
K stages: ``T >= W / (1 - (1 - 1/M)**K)``, with equality where each takes 1 - 1/M of the one before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ridgeline._jit import kernel
from ridgeline.parallel.partition.memory_footprint import KEPT
from ridgeline.study.planner.plan_class import (
    BACKWARD,
    ENERGY,
    FORWARD,
    WEIGHT_GRADIENT,
    Floats,
    PlanClass,
)

Ints = npt.NDArray[np.int64]
ROUNDING = 1e-9  # relative: what sums in another order may differ by
TOTALS = (
    *("forward", "backward", "weights", "accumulate", "energy", "path", "longest"),
    *("state", "master", "computed", "gradient", "other"),
    *("expert_state", "expert_computed", "expert_gradient", "kept"),
)
HELD = KEPT + 1  # so many of the last are bytes


class Bound(NamedTuple):
    """Least step time and energy of a plan, and bytes that its fullest rank holds at least."""

    time_s: float
    energy_j: float
    memory_bytes: float


def least_bound(bounds: Iterable[Bound]) -> Bound:
    """Return the bound of a step that is one of some."""
    return Bound(*map(min, zip(*bounds, strict=True)))


def totals(group: PlanClass) -> Floats:
    """Return what `screen` knows of a group: see `TOTALS`."""
    work, held = group.work.sum(axis=0), group.held[:, : KEPT + 1].sum(axis=0)
    longest = (group.seconds(0) + group.seconds(1)).max(initial=0.0)
    return np.array([*work, group.linked_s(), longest, *held])


def totals_of_more(work: Floats, waited: Floats) -> Floats:
    """Return seconds and joules, as `totals`, of any group with these ops and more.

    More ops may hide what is waited for, several such waits at once, and may be done before that
    which a stage waits for: waits and the path do not count.

    Parameters
    ----------
    work, waited
        As `PlanClass`.
    """
    known = np.zeros(len(TOTALS) - HELD)
    known[: ENERGY + 1] = work.sum(axis=0)
    known[:2] -= waited.sum(axis=0)
    if not waited.any():
        known[-1] = work[:, [FORWARD, BACKWARD, WEIGHT_GRADIENT]].sum(axis=1).max(initial=0.0)
    return known


@kernel
def screen(  # type: ignore[no-untyped-def]
    group, known, micro_batches, stages, data, expert, sharding, drains, spread, byte_s, out
):
    """Write the bounds of all plans into out [P, 3]: seconds, joules without idle power, bytes.

    Parameters
    ----------
    group, known
        [P] row of `known` [G, 16] (`totals`) of each plan.
    micro_batches, stages, data, expert, sharding
        [P] of each plan.
    drains
        [P] whether a stage's last work of the step is a whole backward pass.
    spread
        [P] sum over stages of one over the micro-batches in flight (`in_flight`).
    byte_s
        [P] least seconds a byte of a collective between replicas (`CommBounds.crossing_byte_s`).
    """
    for i in range(len(group)):
        t = known[group[i]]
        m, k, d, s = micro_batches[i], stages[i], data[i], sharding[i]
        whole = t[0] + t[1] + t[2]
        added = t[3] * (m - 1) if s < 2 else 0.0
        time_s = max((m * whole + added) / k, m * t[6])
        if k > 1 and drains[i]:
            # the path leaves out what does not wait; every stage has at most that much more
            time_s = max(time_s, t[5] / (1.0 - (1.0 - 1.0 / m) ** k))
        if s >= 1:  # what is gathered and what is sent of all but experts, one after the other
            gathered, sent = t[9] - t[13], t[10] - t[14]
            often = m if s >= 2 else 1.0
            more = (m if s == 3 else 1.0) * gathered + often * sent
            time_s = max(time_s, more * byte_s[i] / k)
        out[i, 0] = time_s
        out[i, 1] = t[4] * m
        more = expert[i] - 1  # ranks share experts with that many fewer
        held = (t[7] + t[8] + more * t[12]) / d if s >= 1 else t[7] + t[8]
        held += ((t[9] + more * t[13]) / d if s >= 3 else t[9]) + t[11]
        if m > 1:
            held += (t[10] + more * t[14]) / d if s >= 2 else t[10]
        # the fullest stage has at least the mean; least is kept where stages keep equally much
        out[i, 2] = max((held + t[15]) / k, t[15] / spread[i])
