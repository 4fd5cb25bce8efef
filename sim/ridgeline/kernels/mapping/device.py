"""What a mapping has to know of a device: where tensors live, and the buffers before that."""

from __future__ import annotations

import math
import weakref
from typing import Literal

from ridgeline.hardware.device import Device, MemoryLevel
from ridgeline.kernels.mapping.machine import Buffer, Machine
from ridgeline.kernels.systolic.device import arrays_of
from ridgeline.workload.formats import bytes_of

_machines: dict[tuple[int, str, str, str], tuple[weakref.ref[Device], Machine | None]] = {}


def machine_of(device: Device, engine: str, format_: str, accumulate: str) -> Machine | None:
    """Return the machine that an engine's contractions are mapped on.

    None if nothing has to be mapped: there are no buffers between the engine and the memory that
    tensors live in.
    """
    key = (id(device), engine, format_, accumulate)
    held = _machines.get(key)
    if held is None or held[0]() is not device:
        forget = weakref.ref(device, lambda _: _machines.pop(key, None))
        held = _machines[key] = (forget, _machine(device, engine, format_, accumulate))
    return held[1]


def _machine(device: Device, engine: str, format_: str, accumulate: str) -> Machine | None:
    levels = {name: level for name, level in device.memory.items() if level.kind != "registers"}
    if len(levels) < 2:
        return None
    (far_name, far), (near_name, near), *nearer = reversed(levels.items())
    described = device.engines[engine]
    width = float(bytes_of(format_))
    array = described.array
    buffers, behind = [], near
    for name, level in nearer:
        buffers.append(
            Buffer(
                name, _capacities(level), level.buffers == "double", behind.ports == "shared",
                max(_byte_s(behind), _byte_s(level)), _latency_s(behind),
                device.prices.price_j(level.energy, "J/B"),
            )
        )  # fmt: skip
        behind = level
    return Machine(
        arrays=None if array is None else arrays_of(array, accumulate),
        cycle_s=0.0 if array is None else array.flops_per_cycle / described.rates[format_].value,
        mac_s=0.0,
        near_byte_s=_byte_s(behind),
        capacities=_capacities(near),
        double=near.buffers == "double",
        shared_port=far.ports == "shared",
        byte_s=max(_byte_s(far), _byte_s(near)),
        latency_s=_latency_s(far),
        far_byte_j=device.prices.price_j(far.energy, "J/B"),
        near_byte_j=device.prices.price_j(near.energy, "J/B"),
        idle_w=device.idle_power.value,
        widths=(width, width, width, float(bytes_of(accumulate))),
        far=far_name,
        near=near_name,
        nearer=tuple(buffers),
    )  # fmt: skip


def _capacities(level: MemoryLevel) -> tuple[float, float, float, float]:
    return _room(level, "a"), _room(level, "b"), _room(level, "c"), level.capacity.value


def _latency_s(level: MemoryLevel) -> float:
    return 0.0 if level.latency is None else level.latency.value


def _byte_s(level: MemoryLevel) -> float:
    """Seconds per byte at a level's bandwidth; 0 where it states none."""
    if level.bandwidth is None:
        return 0.0
    return 1.0 / (level.bandwidth.value * level.achievable.value)


def _room(level: MemoryLevel, operand: Literal["a", "b", "c"]) -> float:
    own = level.partitions.get(operand)
    return math.inf if own is None else float(own.value)
