"""What one op costs on one device, before anything is scheduled."""

from __future__ import annotations

from dataclasses import dataclass, field

from ridgeline.hardware.device import Device


@dataclass(frozen=True, slots=True)
class OpCost:
    """Latency, work per bounding resource, and countable events of one op.

    Attributes
    ----------
    latency_s
        Fixed time: launch, ramp up, drain.
    engine_work
        Engine and format (``"tensor-cores.fp16"``) -> FLOP at the engine's *peak* rate that take as
        long as this op's arithmetic takes.
    level_work
        Memory level -> bytes at its *peak* bandwidth that take as long as this op's traffic.
    flops
        Engine and format -> FLOPs done.
    traffic_bytes
        Memory level -> bytes moved.
    calibrated
        Whether the achievable share of the peak is known for this op.
    """

    latency_s: float
    engine_work: dict[str, float] = field(default_factory=dict)
    level_work: dict[str, float] = field(default_factory=dict)
    flops: dict[str, float] = field(default_factory=dict)
    traffic_bytes: dict[str, float] = field(default_factory=dict)
    calibrated: bool = True

    def compute_s(self, device: Device) -> float:
        """Time of the arithmetic alone."""
        return max(
            (work / engine_rate(device, name) for name, work in self.engine_work.items()),
            default=0.0,
        )

    def memory_s(self, device: Device) -> dict[str, float]:
        """Time of the traffic at each level alone."""
        return {
            name: work / bandwidth
            for name, work in self.level_work.items()
            if (bandwidth := level_bandwidth(device, name)) is not None
        }

    def time_s(self, device: Device) -> float:
        """Time of the op: latency plus the slowest of the arithmetic and each memory level."""
        return self.latency_s + max(self.compute_s(device), *self.memory_s(device).values(), 0.0)


def engine_rate(device: Device, engine_format: str) -> float:
    """Peak FLOP/s of ``"engine.format"``."""
    engine, _, format_ = engine_format.rpartition(".")
    return device.engines[engine].rates[format_].value


def level_bandwidth(device: Device, level: str) -> float | None:
    """Peak B/s of a memory level, or None where the device does not state one."""
    bandwidth = device.memory[level].bandwidth
    return None if bandwidth is None else bandwidth.value
