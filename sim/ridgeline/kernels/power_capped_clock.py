"""Power-capped clock: the clock and voltage that keep a kernel under the board limit.

An op draws idle power and, over its time, the energy of its events. Where that is more than the
limit (`power_limit`, by default the design power `tdp`), clock and voltage fall until it fits:

    idle power + (near energy * V(f)^2 + far energy) / time(f) = limit,   V(f) = max(V_floor, f),
    time(f) = latency + max(time of what follows the clock / f, time of the farthest memory)
              + what these do not hide of each other at f (`overlap`)

with clock f and voltage V as shares of those at full clock (dynamic energy is C V^2, Rabaey,
"Digital Integrated Circuits", 2nd ed., section 5.5). What follows the clock is engines, registers
and caches; the farthest memory and the launch of an op have their own. `voltage_floor` is the
device's; a device that states none keeps its voltage, and its clock unless `power_limit` is set.

Measured shares of the peak (`achievable`) are those at the design power, and at the clock that the
device has there: a limit at or above the design power then changes no time. So is the share of its
bandwidth that the farthest memory of such a device reaches, for ops that it bounds. The energy of
an op that would draw more by the energy table is then what the design power leaves. A share of a
tensor core that was taken over from another device, or assumed, is believed against the energy
table as far as scaled energies may be too high (`_TOO_HIGH`); the clock falls for the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ridgeline.hardware.device import Device
from ridgeline.hardware.host_processor import HOST, HOST_LINK, HOST_MEMORY
from ridgeline.kernels.cost import OpCost, Price, price_of_place
from ridgeline.kernels.overlap import PartialOverlap

NOTE = "power limit: the clock is lowered, and the voltage as far as the device states it"
_OFF_BOARD = {HOST, HOST_MEMORY, HOST_LINK}
_TOO_HIGH = 1.5
"""By how much the table's energies may be too high where a share that was taken over says so:
scaled energies are as uncertain (measured kernels ask for 1 to 1.5 times, decision 0149)."""
_STEPS = 60  # of bisection: to the last bits


class PowerLimit:
    """What a device's power limit leaves of its clock and voltage, op by op.

    Parameters
    ----------
    rates
        See `cost.peak_rates`.
    """

    def __init__(self, device: Device, rates: Mapping[str, float]) -> None:
        self.device, self.rates, self.limit = device, rates, device.board_limit
        self._prices: dict[str, Price] = {}

    def limited(self, cost: OpCost) -> OpCost:
        """Return the cost of an op at the clock and voltage that the limit leaves it."""
        return cost if self.limit is None else _limited(cost, self, self.limit.value)

    def price_of(self, place: str) -> Price:
        """Return what an event at a place costs."""
        price = self._prices.get(place)
        if price is None:
            price = self._prices[place] = price_of_place(self.device, place)
        return price


def _limited(cost: OpCost, power: PowerLimit, limit_w: float) -> OpCost:
    device = power.device
    spans, idle_w = cost.spans(power.rates), device.idle_power.value
    near_j, far_j = _energies(cost, power)
    energy_j = math.fsum(near_j.values()) + far_j
    allowed_w = limit_w - idle_w
    if energy_j <= allowed_w * spans.time_s:
        return cost
    far_s = spans.memory_s.get(device.far_memory, 0.0)
    near_s = {name: s for name, s in spans.memory_s.items() if name != device.far_memory}
    clocked_s = max(spans.compute_s, *near_s.values(), 0.0)
    measured = device.tdp is not None and bool(device.achievable)
    known = measured and cost.calibrated
    kept = 1.0  # share of its energy that an op keeps at the clock that it was measured at
    if measured and device.tdp is not None and (known or _has_share(cost, device)):
        kept = min(1.0, (device.tdp.value - idle_w) * spans.time_s / energy_j)
        kept = kept if known else max(kept, 1.0 / _TOO_HIGH)
    op = _Clocked(
        cost.latency_s - (0.0 if cost.overlap is None else cost.waiting_s),
        clocked_s,
        far_s,
        kept * math.fsum(near_j.values()),
        kept * far_j,
        1.0 if device.voltage_floor is None else device.voltage_floor.value,
        cost.overlap,
        cost.waiting_s,
    )
    clock = op.clock_within(allowed_w)
    fits = min(1.0, allowed_w * op.time_s(clock) / op.energy_j(clock))  # no clock slows a copy
    near, far = fits * kept * op.voltage(clock) ** 2, fits * kept
    saved = {component: (1.0 - near) * joules for component, joules in near_j.items() if near < 1.0}
    if far < 1.0:
        component = power.price_of(device.far_memory).component
        saved[component] = saved.get(component, 0.0) + (1.0 - far) * far_j
    cost = replace(cost, saved_j=saved)
    if clock == 1.0:
        return cost
    waiting_s, parts = cost.waiting_s, cost.latency_parts
    if cost.overlap is not None:
        waiting_s = op.waiting_s(clock)
        if parts is not None:
            parts = parts.with_stall(device.far_memory, waiting_s - cost.waiting_s)
    return replace(
        cost,
        latency_s=cost.latency_s - cost.waiting_s + waiting_s,
        waiting_s=waiting_s,
        latency_parts=parts,
        engine_work={name: work / clock for name, work in cost.engine_work.items()},
        level_work={
            name: work if name == device.far_memory else work / clock
            for name, work in cost.level_work.items()
        },
        notes=(*cost.notes, NOTE),
    )


def _has_share(cost: OpCost, device: Device) -> bool:
    """Tell whether a share of the peak is stated for one of an op's tensor cores and formats.

    Such shares are of whole products on boards at their design power, or taken over from them.
    """
    stated = {
        f"{row.engine}.{row.format}"
        for row in device.achievable
        if device.engines[row.engine].kind == "tensor-core"
    }
    return any(name in stated for name in cost.engine_work)


def _energies(cost: OpCost, power: PowerLimit) -> tuple[dict[str, float], float]:
    """Joules of an op's events on the board by component, and of those in its farthest memory."""
    near: dict[str, float] = {}
    far = power.device.far_memory
    for place, count in (*cost.flops.items(), *cost.traffic_bytes.items()):
        if place != far and place.partition(".")[0] not in _OFF_BOARD:
            component, _, price_j = power.price_of(place)
            near[component] = near.get(component, 0.0) + count * price_j
    return near, cost.traffic_bytes.get(far, 0.0) * power.price_of(far).price_j


@dataclass(frozen=True, slots=True)
class _Clocked:
    """An op by its clock, a share of the full one: time, voltage, energy of events.

    Attributes
    ----------
    clocked_s
        Time of what follows the clock, at full clock.
    far_s
        Time of the farthest memory.
    near_j, far_j
        Energy of events at full voltage.
    overlap, waits_s
        What arithmetic and memory do not hide of each other, and how long that is at full clock.
    """

    latency_s: float
    clocked_s: float
    far_s: float
    near_j: float
    far_j: float
    voltage_floor: float
    overlap: PartialOverlap | None = None
    waits_s: float = 0.0

    def time_s(self, clock: float) -> float:
        return self.latency_s + max(self.clocked_s / clock, self.far_s) + self.waiting_s(clock)

    def waiting_s(self, clock: float) -> float:
        """Return what parts do not hide of each other; shares of it are kept at any clock."""
        if self.overlap is None or self.waits_s == 0.0:
            return 0.0
        return self.waits_s * self.overlap.waiting_s(clock) / self.overlap.waiting_s()

    def voltage(self, clock: float) -> float:
        return max(self.voltage_floor, clock)

    def energy_j(self, clock: float) -> float:
        return self.near_j * self.voltage(clock) ** 2 + self.far_j

    def clock_within(self, power_w: float) -> float:
        """Return the highest clock at which events draw no more than `power_w`."""
        if self.clocked_s == 0.0 or self.energy_j(1.0) <= power_w * self.time_s(1.0):
            return 1.0
        low, high = 0.0, 1.0
        for _ in range(_STEPS):
            middle = 0.5 * (low + high)
            if self.energy_j(middle) <= power_w * self.time_s(middle):
                low = middle
            else:
                high = middle
        return low
