"""Power over the time of a step: constant between moments at which tasks begin or end.

A task draws the energy of its events evenly from its start to its end; idle power is drawn
throughout. The integral of a track over the step is the ledger's energy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ridgeline.engine.program import Floats
from ridgeline.engine.timeline import Timeline


@dataclass(frozen=True)
class PowerTrack:
    """Power over time, constant between moments.

    Attributes
    ----------
    times_s
        [N + 1] Moments, the first 0 and the last the end of the step.
    power_w
        [N] Power from each moment to the next.
    """

    times_s: Floats
    power_w: Floats

    @property
    def energy_j(self) -> float:
        """Integral over the step."""
        return float(np.diff(self.times_s) @ self.power_w)


def power_track(
    timeline: Timeline, idle_power_w: float, devices: float, rank: int | None = None
) -> PowerTrack:
    """Return the power of all devices over a step, or of one device that a rank stands for.

    Parameters
    ----------
    idle_power_w
        Of one device.
    devices
        How many are in use; of one rank they are not counted.
    """
    program = timeline.program
    prices = np.array([account.price_j for account in program.accounts])
    rows = np.repeat(np.arange(len(program.event_ptr) - 1), np.diff(program.event_ptr))
    joules = program.event_count * prices[program.event_account] if len(prices) else np.zeros(0)
    row_j = np.bincount(rows, weights=joules, minlength=len(program.event_ptr) - 1)
    drawn_j = row_j[program.cost] * program.multiplicity
    start_s, end_s = timeline.start_s, timeline.end_s
    if rank is not None:
        mine = program.stream_rank[program.stream] == rank
        drawn_j, start_s, end_s = drawn_j[mine], start_s[mine], end_s[mine]
        drawn_j, devices = drawn_j / program.rank_multiplicity[rank], 1.0
    makespan_s = timeline.makespan_s
    times_s = np.unique(np.concatenate(([0.0, makespan_s], start_s, end_s)))
    lasting = end_s > start_s
    base_w = idle_power_w * devices
    if makespan_s:  # what takes no time is drawn throughout
        base_w += float(drawn_j[~lasting].sum()) / makespan_s
    drawn_w = drawn_j[lasting] / (end_s[lasting] - start_s[lasting])
    steps_w = np.zeros(len(times_s))
    np.add.at(steps_w, np.searchsorted(times_s, start_s[lasting]), drawn_w)
    np.add.at(steps_w, np.searchsorted(times_s, end_s[lasting]), -drawn_w)
    return PowerTrack(times_s, base_w + np.cumsum(steps_w)[:-1])
