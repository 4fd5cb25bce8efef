"""Rooflines: how fast ops run against what engines and memory levels allow.

A ridge point is the intensity from which an engine, and not a memory level, is the limit.

S. Williams, A. Waterman, D. Patterson, "Roofline", Communications of the ACM 52(4), 2009; with a
slope for every memory level as in A. Ilic, F. Pratas, L. Sousa, "Cache-aware roofline model", IEEE
Computer Architecture Letters 13(1), 2014.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ridgeline.hardware.device import Device
from ridgeline.kernels.cost import OpCost, engine_rate, level_bandwidth


class Ridge(NamedTuple):
    """Where a roof meets a slope.

    Attributes
    ----------
    flop_per_byte
        Peak rate over peak bandwidth.
    achievable_flop_per_byte
        Peak rate over the bandwidth that kernels reach.
    """

    engine: str
    peak_flop_per_s: float
    level: str
    bandwidth_bytes_per_s: float
    flop_per_byte: float
    achievable_flop_per_byte: float


def ridge_points(device: Device) -> list[Ridge]:
    """Return the ridge of every engine and format with every memory level that has a bandwidth."""
    return [
        Ridge(
            f"{name}.{format_}",
            rate.value,
            level_name,
            level.bandwidth.value,
            rate.value / level.bandwidth.value,
            rate.value / (level.bandwidth.value * level.achievable.value),
        )
        for name, engine in device.engines.items()
        for format_, rate in engine.rates.items()
        for level_name, level in device.memory.items()
        if level.bandwidth is not None
    ]


class EnginePeak(NamedTuple):
    """What an engine does at most in one format, per power and per area of the device.

    Attributes
    ----------
    flop_per_joule
        Peak rate over the design power; None where the device's file has none.
    flop_per_s_mm2
        Peak rate over the area; None where the device's file has none.
    """

    engine: str
    flop_per_s: float
    flop_per_joule: float | None
    flop_per_s_mm2: float | None


def peaks(device: Device) -> list[EnginePeak]:
    """Return the peak of every engine and format."""
    return [
        EnginePeak(
            f"{name}.{format_}",
            rate.value,
            None if device.tdp is None else rate.value / device.tdp.value,
            None if device.area is None else rate.value / (device.area.value * 1e6),
        )
        for name, engine in device.engines.items()
        for format_, rate in engine.rates.items()
    ]


def power_density_w_mm2(device: Device) -> float | None:
    """Design power over area, or None where the device's file lacks one of them."""
    if device.tdp is None or device.area is None:
        return None
    return device.tdp.value / (device.area.value * 1e6)


class Mark(NamedTuple):
    """One op, or many together, in the plane of the roofline.

    Attributes
    ----------
    engine
        Engine and format whose roof is above it: of many, the fastest.
    flop_per_s
        FLOPs that are done over the time that they take.
    flop_per_byte
        Memory level -> the same FLOPs over the bytes that pass it; a level that nothing passes, or
        that has no bandwidth, is left out.
    share
        Of the time of everything that is drawn with it.
    """

    name: str
    engine: str
    flop_per_s: float
    flop_per_byte: dict[str, float]
    share: float = 1.0


def mark(name: str, cost: OpCost, device: Device, share: float = 1.0) -> Mark | None:
    """Return the mark of one op by its main engine alone, or None without arithmetic.

    What is vectorised into a contraction's end is left out: another roof bounds it.
    """
    engine, flops = next(iter(cost.flops.items()), ("", 0.0))
    time_s = cost.time_s(device)
    if not flops or not time_s:
        return None
    return Mark(
        name, engine, flops / time_s, _intensities(flops, cost.traffic_bytes, device), share
    )


def together(
    name: str, costs: Sequence[tuple[OpCost, float]], device: Device, share: float = 1.0
) -> Mark | None:
    """Return one mark of many ops, each as often as it is played, one after the other."""
    flops, moved, time_s = 0.0, dict.fromkeys(device.memory, 0.0), 0.0
    engines: set[str] = set()
    for cost, times in costs:
        flops += times * sum(cost.flops.values())
        time_s += times * cost.time_s(device)
        engines.update(engine for engine, count in cost.flops.items() if count)
        for level, size in cost.traffic_bytes.items():
            moved[level] += times * size
    if not flops or not time_s:
        return None
    fastest = max(engines, key=lambda engine: engine_rate(device, engine))
    return Mark(name, fastest, flops / time_s, _intensities(flops, moved, device), share)


def _intensities(flops: float, moved: Mapping[str, float], device: Device) -> dict[str, float]:
    return {
        level: flops / size
        for level, size in moved.items()
        if size and level_bandwidth(device, level) is not None
    }
