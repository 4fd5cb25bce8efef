"""Ranges of predictions by the distance of a device from those that measured rows are of.

A device is ``own`` to a kind of prediction where rows of it were measured, else of the
``generation`` of one that was (maker, process node, matrix instruction and formats are the same),
else of its ``vendor``, else ``other``. Ranges of devices without rows come from devices that were
left out of every fit across devices and of the range itself: ``device_ranges.csv``, which
``benchmarks/estimate_uncertainty.py`` writes. A farther distance never has a narrower range.

Lines with ``left_out`` are estimated without the rows of that device, so that `validate` can say
how often such ranges hold for a device that nobody measured.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Literal, get_args

from ridgeline.hardware.device import Device
from ridgeline.report.uncertainty.distributions import ModelError, model_error

Distance = Literal["own", "generation", "vendor", "other"]
DISTANCES: tuple[Distance, ...] = get_args(Distance)
RANGES, DEVICES = "device_ranges.csv", "range_devices.csv"
WORDS: dict[Distance, str] = {
    "own": "rows of this device",
    "generation": "left-out devices: only others of its generation were measured",
    "vendor": "left-out devices: only other generations of its maker were measured",
    "other": "left-out devices: none of its maker was measured",
}


def generation_of(device: Device) -> str:
    """Return what boards of one architecture share.

    Maker, process node, and of the fastest matrix engine the instruction and the formats, but for
    those of integers, which boards of one architecture have or have not.
    """
    node = device.process_node
    engines = [engine for engine in device.engines.values() if "matrix" in engine.runs]
    fastest = max(engines, key=lambda e: max(r.value for r in e.rates.values()), default=None)
    parts = [device.vendor.lower(), "" if node is None else f"{node.value * 1e9:.0f}"]
    if fastest is not None:
        shape = fastest.instruction
        parts.append(f"{shape.m}x{shape.n}x{shape.k}")
        parts += sorted(name for name in fastest.rates if not name.startswith("int"))
    return " ".join(parts)


def distance_of(kind: str, device: Device, *, left_out: bool = False) -> Distance | None:
    """Return how far a device is from those of a kind's rows; None if the kind has no ranges.

    Parameters
    ----------
    left_out
        As if its own rows were not there.
    """
    measured = _devices().get(kind)
    if measured is None:
        return None
    others = {name: at for name, at in measured.items() if not (left_out and name == device.name)}
    if device.name in others:
        return "own"
    generation, vendor = generation_of(device), device.vendor.lower()
    if any(of == generation for of, _ in others.values()):
        return "generation"
    return "vendor" if any(by == vendor for _, by in others.values()) else "other"


def range_of(kind: str, device: Device | None, *, left_out: bool = False) -> ModelError | None:
    """Return the error of a kind of prediction on a device.

    That of all devices alike where the kind has no ranges by distance; None where nothing was
    estimated, or, with `left_out`, where the device has no rows that could be left out.
    """
    distance = None if device is None else distance_of(kind, device, left_out=left_out)
    if device is None or distance is None:
        return None if left_out else model_error(kind)
    name = device.name if left_out else ""
    return _ranges().get((kind, name, distance))


def _rows(name: str) -> Iterator[dict[str, str]]:
    file = resources.files(__package__).joinpath(name)
    return iter(csv.DictReader(file.read_text("utf-8").splitlines() if file.is_file() else []))


@cache
def _devices() -> dict[str, dict[str, tuple[str, str]]]:
    """Return generation and maker of the devices of every kind's rows."""
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for row in _rows(DEVICES):
        found.setdefault(row["kind"], {})[row["device"]] = (row["generation"], row["vendor"])
    return found


@cache
def _ranges() -> dict[tuple[str, str, str], ModelError]:
    return {
        (row["kind"], row["left_out"], row["distance"]): ModelError(
            kind=row["kind"],
            points=row["measure"] == "points",
            median=float(row["median"]),
            low=float(row["low"]),
            high=float(row["high"]),
            n=int(row["n"]),
            groups=int(row["devices"]),
            by_device=float(row["by_device"]) if row["by_device"] else None,
            by_source=None,
            by_group=None,
        )
        for row in _rows(RANGES)
    }


def forget() -> None:
    """Read the tables anew when they are next needed."""
    _devices.cache_clear()
    _ranges.cache_clear()
