"""The clock under a power limit: what keeps an op's power below what the board may draw.

An op draws idle power and, over its time, the energy of its events. Where that is more than
`power_limit`, the clock falls until it fits. Voltage is taken to stay as it is, so that an op needs
the energy that it needs at any clock, and

    time = max(time at full clock, energy of its events / (limit - idle power)).

That is the slowest a limit can make an op: a board that lowers its voltage too needs less energy.
The clock is that of engines, registers and caches; the farthest memory and the launch of an op have
their own, so that an op that waits for memory is slowed only once the rest takes as long.

A device with measured shares of its peak (`achievable`) was measured at its design power, and has
these shares at the clock that it had there. An op that would draw more than the design power by
the energy table is taken to draw that: a limit at or above it changes nothing, and nothing counts
twice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from ridgeline.hardware.device import Device
from ridgeline.kernels.cost import OpCost, price_of_place

NOTE = "power limit: the clock is lowered, at the voltage of full clock"


def limited(cost: OpCost, device: Device, rates: Mapping[str, float]) -> OpCost:
    """Return the cost of an op at the clock that the device's power limit leaves it.

    Parameters
    ----------
    rates
        See `cost.peak_rates`.
    """
    if device.power_limit is None:
        return cost
    spans, idle_w = cost.spans(rates), device.idle_power.value
    own_s = spans.time_s - cost.latency_s
    near = {name: s for name, s in spans.memory_s.items() if name != device.far_memory}
    clocked_s = max(spans.compute_s, *near.values(), 0.0)
    if clocked_s == 0.0:
        return cost
    energy_j = math.fsum(
        count * price_of_place(device, place).price_j
        for place, count in (*cost.flops.items(), *cost.traffic_bytes.items())
    )
    if device.achievable and device.tdp is not None:
        energy_j = min(energy_j, (device.tdp.value - idle_w) * spans.time_s)
    needed_s = energy_j / (device.power_limit.value - idle_w) - cost.latency_s
    if needed_s <= own_s:
        return cost
    slower = needed_s / clocked_s
    return replace(
        cost,
        engine_work={name: slower * work for name, work in cost.engine_work.items()},
        level_work={
            name: work if name == device.far_memory else slower * work
            for name, work in cost.level_work.items()
        },
        notes=(*cost.notes, NOTE),
    )
