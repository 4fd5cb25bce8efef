"""Physical bounds of a step: it takes no less than what its ledger counts does at full rate."""

from __future__ import annotations

import warnings

import numpy as np

from ridgeline.engine.timeline import Timeline
from ridgeline.hardware.device import Device
from ridgeline.kernels.cost import peak_rates

_ROUNDING = 1e-3
"""By which tasks that share a memory may not have settled (`engine.contention`)."""


class PhysicalBoundWarning(UserWarning):
    """A step is shorter than some of what it counts takes at full rate: a mistake of ridgeline."""


def least_times_s(timeline: Timeline, device: Device, devices: int) -> dict[str, float]:
    """Return by memory level what the ledger's bytes take at full rate, and by engine its work.

    Of all devices at the same time, evenly. Engines may do fewer FLOPs than the ledger counts at
    the mathematical shapes (Winograd's convolutions, zeros): theirs are those that they do.
    """
    rates, program = peak_rates(device), timeline.program
    found: dict[str, float] = {}
    for number, count in timeline.ledger().items():
        account = program.accounts[number]
        if account.place in device.memory and account.place in rates and account.unit == "B":
            before = found.get(account.place, 0.0)
            found[account.place] = before + count / (rates[account.place] * devices)
    n_rows = len(program.event_ptr) - 1
    times = np.bincount(program.cost, program.multiplicity, n_rows)
    phase = np.repeat(np.arange(len(program.repeat)), np.diff(program.work_ptr))
    row = np.repeat(np.arange(n_rows), np.diff(program.phase_ptr))[phase]
    work = np.bincount(
        program.work_resource,
        program.work_amount * program.repeat[phase] * times[row],
        len(program.resource_names),
    )
    for name, total in zip(program.resource_names, work.tolist(), strict=True):
        place = name.removeprefix("device/")
        if place != name and place in rates and place not in device.memory:
            found[place] = total / (rates[place] * devices)
    return found


def check_ledger(timeline: Timeline, device: Device, devices: int) -> None:
    """Warn if a step is shorter than what it counts takes at full rate.

    That cannot be, whatever is simulated: it would be a mistake in ridgeline.
    """
    step_s = timeline.makespan_s
    for place, least_s in least_times_s(timeline, device, devices).items():
        if least_s > step_s * (1 + _ROUNDING):
            warnings.warn(
                f"the step takes {step_s:.6g} s, but what it does at {place} takes"
                f" {least_s:.6g} s at the full rate of all {devices} devices; this is a mistake in"
                " ridgeline: please report the model, the cluster and the plan",
                PhysicalBoundWarning,
                stacklevel=3,
            )
