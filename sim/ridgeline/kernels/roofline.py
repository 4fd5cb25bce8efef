"""Ridge points: the intensity from which an engine, and not a memory level, is the limit.

S. Williams, A. Waterman, D. Patterson, "Roofline", Communications of the ACM 52(4), 2009; with a
slope for every memory level as in A. Ilic, F. Pratas, L. Sousa, "Cache-aware roofline model", IEEE
Computer Architecture Letters 13(1), 2014.
"""

from __future__ import annotations

from typing import NamedTuple

from ridgeline.hardware.device import Device


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
