"""Physical bounds of a step: it takes no less than what its ledger counts does at full rate."""

from __future__ import annotations

import warnings

from ridgeline.engine.timeline import Timeline
from ridgeline.hardware.device import Device
from ridgeline.kernels.cost import peak_rates

_ROUNDING = 1e-3
"""By which tasks that share a memory may not have settled (`engine.contention`)."""


class PhysicalBoundWarning(UserWarning):
    """A step is shorter than some of what it counts takes at full rate: a mistake of ridgeline."""


def least_times_s(timeline: Timeline, device: Device, devices: int) -> dict[str, float]:
    """Return by engine and memory level what the ledger's FLOPs or bytes take at full rate.

    Of all devices at the same time, evenly.
    """
    rates, accounts = peak_rates(device), timeline.program.accounts
    found: dict[str, float] = {}
    for number, count in timeline.ledger().items():
        place = accounts[number].place
        if place in rates and accounts[number].unit in {"B", "FLOP"}:
            found[place] = found.get(place, 0.0) + count / (rates[place] * devices)
    return found


def check_ledger(timeline: Timeline, device: Device, devices: int) -> None:
    """Warn if a step is shorter than what it counts takes at full rate.

    That cannot be, whatever is simulated: it would be a mistake in ridgeline.
    """
    step_s = timeline.makespan_s
    for place, least_s in least_times_s(timeline, device, devices).items():
        if least_s > step_s * (1 + _ROUNDING):
            warnings.warn(
                f"the step takes {step_s:.6g} s, but what its ledger counts at {place} takes"
                f" {least_s:.6g} s at the full rate of all {devices} devices; this is a mistake in"
                " ridgeline: please report the model, the cluster and the plan",
                PhysicalBoundWarning,
                stacklevel=3,
            )
