"""Equal parts of a device: one die of a package, or one of so many cores, as a device."""

from __future__ import annotations

from typing import Any

from ridgeline.hardware.device import Device, Engine, MemoryLevel
from ridgeline.hardware.sourced import Sourced


def one_die(device: Device) -> Device:
    """Return one die as a device: an equal part of everything, without links."""
    assert device.dies is not None
    return equal_part(device, device.dies.count.value)


def equal_part(device: Device, count: int) -> Device:
    """Return one of so many equal parts of a device, as a device of its own.

    Arrays, cores and tiles must divide evenly. Limits of power are the whole device's.
    """
    part: dict[str, Any] = {
        "dies": None,
        "power_limit": None,
        "voltage_floor": None,
        "engines": {name: _engine(engine, count) for name, engine in device.engines.items()},
        "memory": {name: _level(level, count) for name, level in device.memory.items()},
        "idle_power": _over(device.idle_power, count),
        "kernels": tuple(
            row
            if row.throughput is None
            else row.model_copy(update={"throughput": _over(row.throughput, count)})
            for row in device.kernels
        ),
    }
    return device.model_copy(update=part)


def _engine(engine: Engine, count: int) -> Engine:
    part: dict[str, Any] = {
        "rates": {name: _over(rate, count) for name, rate in engine.rates.items()},
        "vector_rates": {name: _over(rate, count) for name, rate in engine.vector_rates.items()},
    }
    if engine.array is not None:
        part["array"] = engine.array.model_copy(
            update={"count": _of(engine.array.count, engine.array.count.value // count)}
        )
    if engine.grid is not None:
        part["grid"] = engine.grid.model_copy(
            update={"cores": _of(engine.grid.cores, engine.grid.cores.value // count)}
        )
    if engine.bsp is not None:
        part["bsp"] = engine.bsp.model_copy(
            update={"tiles": _of(engine.bsp.tiles, engine.bsp.tiles.value // count)}
        )
    return engine.model_copy(update=part)


def _level(level: MemoryLevel, count: int) -> MemoryLevel:
    part: dict[str, Any] = {
        "capacity": _of(level.capacity, level.capacity.value // count),
        "instances": _of(level.instances, max(1, level.instances.value // count)),
        "partitions": {
            name: _of(room, room.value // count) for name, room in level.partitions.items()
        },
    }
    if level.bandwidth is not None:
        part["bandwidth"] = _over(level.bandwidth, count)
    return level.model_copy(update=part)


def _over(stated: Sourced[float], count: int) -> Sourced[float]:
    return stated.model_copy(update={"value": stated.value / count})


def _of(stated: Sourced[Any], number: float) -> Sourced[Any]:
    return stated.model_copy(update={"value": number})
