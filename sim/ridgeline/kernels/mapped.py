"""Contractions on engines that are told how to lay their loops out: ``--mapping FILE``."""

from __future__ import annotations

from collections.abc import Callable

from ridgeline.hardware.device import Device
from ridgeline.kernels.engines import Busy, on_elements
from ridgeline.kernels.mapping.given import Given
from ridgeline.kernels.traffic import Operands
from ridgeline.workload.graph import Op

MappedModel = Callable[[Op, Operands, Device, str, str, Given], Busy]

MAPPED_MODELS: dict[str, MappedModel] = {"spatial": on_elements}


def mappable(device: Device, engines: list[str], given: Given) -> list[str]:
    """Return those of some engines that take a mapping.

    Raises
    ------
    ConfigError
        If there are none.
    """
    able = [name for name in engines if device.engines[name].kind in MAPPED_MODELS]
    if not able:
        kinds = ", ".join(device.engines[name].kind for name in engines)
        raise given.document.error(
            f"{device.name} has no engine that takes a mapping (its engines: {kinds}; a mapping "
            f"is for: {', '.join(MAPPED_MODELS)})"
        )
    return able
