"""The roofline of a device: its ridge points and peaks, and work under its roofs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ridgeline.errors import ConfigError
from ridgeline.hardware.device import Device
from ridgeline.hardware.load import load_device
from ridgeline.kernels.dtype_emulation import roof_of
from ridgeline.kernels.roofline import (
    EnginePeak,
    Mark,
    Ridge,
    peaks,
    power_density_w_mm2,
    ridge_points,
)
from ridgeline.kernels.single_op import gemm
from ridgeline.report.figures.device import Load, device_roofline, network, shown_roofs
from ridgeline.study.point import Point
from ridgeline.workload.formats import AS, FORMATS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GEMM = re.compile(r"(\d{1,13})x(\d{1,13})x(\d{1,13})")


@dataclass(frozen=True)
class DeviceRoofline:
    """Where a device's roofs meet its slopes, and what runs below them.

    Attributes
    ----------
    ridges, peaks
        Of every engine and number format, or of those asked for.
    loads
        Networks and products, with a mark each in FLOP/s and FLOP/B.
    formats
        Rates that are asked for; none: all.
    """

    device: Device
    ridges: tuple[Ridge, ...]
    peaks: tuple[EnginePeak, ...]
    loads: tuple[Load, ...]
    formats: tuple[str, ...]

    @property
    def power_density_w_mm2(self) -> float | None:
        """Design power over area; None where the device's file lacks one of them."""
        return power_density_w_mm2(self.device)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "device": self.device.name,
            "ridges": [ridge._asdict() for ridge in self.ridges],
            "peaks": [peak._asdict() for peak in self.peaks],
            "power_density_w_mm2": self.power_density_w_mm2,
            "marks": [mark._asdict() for load in self.loads for mark in load.marks],
        }

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw roofs, slopes and loads, into `ax` or a figure of its own."""
        return device_roofline(self.device, self.loads, self.formats, ax)


def roofline(
    device: str,
    *,
    model: str | Sequence[str] = (),
    gemm: str | Sequence[str] = (),
    format: str | Sequence[str] = (),
    by: Literal["op", "layer"] = "op",
    batch: int = 32,
    precision: str = "fp32",
    software: str | None = None,
) -> DeviceRoofline:
    """Find the ridge points of a device, and place networks and products under its roofs.

    Parameters
    ----------
    device
        Name or file of a device.
    model
        Names or files of networks, whose training steps are placed.
    gemm
        Matrix products MxNxK, in the number formats of `format`.
    format
        Number formats of the ridge points, the roofs and the products; none: all.
    by
        What one small marker of a network is: an op or a layer.
    batch, precision, software
        Of the training step of each network.

    Raises
    ------
    RidgelineError
        If something is not there, the device does not have a format, or a product cannot be read.
    """
    models, products, formats = _listed(model), _listed(gemm), _listed(format)
    machine = load_device(device)
    if software is not None and not models:
        raise ConfigError(
            "a program runs the steps of a network, and none is given", field="software"
        )
    rates = tuple(  # fp8-e4m3: fp8
        roof_of(machine, f) if f in FORMATS or AS in f else f for f in formats
    )
    if models or products or formats:
        shown_roofs(machine, (), rates)  # complains of a format that the device does not have
    loads = [_network(name, device, batch, precision, by, software or "") for name in models]
    loads += [_product(text, machine, f) for text in products for f in formats or (None,)]
    return DeviceRoofline(
        machine,
        tuple(ridge for ridge in ridge_points(machine) if _wanted(ridge.engine, rates)),
        tuple(peak for peak in peaks(machine) if _wanted(peak.engine, rates)),
        tuple(loads),
        rates,
    )


def _listed(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _wanted(engine: str, formats: tuple[str, ...]) -> bool:
    return not formats or engine.rpartition(".")[2] in formats


def _network(
    name: str, device: str, batch: int, precision: str, by: Literal["op", "layer"], software: str
) -> Load:
    fields = {"global_batch": batch, "precision": precision}
    return network(Point(name, device, fields, software=software).simulate(), by)


def _product(text: str, device: Device, format_: str | None) -> Load:
    match = _GEMM.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            f"a product is MxNxK, such as 4096x4096x4096; found {text!r}", field="gemm"
        )
    m, n, k = map(int, match.groups())
    found = gemm(m, n, k, device, format=format_)
    intensities = {
        level: found.flops / size
        for level, size in found.traffic_bytes.items()
        if size and device.memory[level].bandwidth is not None
    }
    name = f"{text.strip()} {found.format}"
    engine = f"{found.engine}.{roof_of(device, found.format)}"
    return Load(name, (Mark(name, engine, found.flops / found.time_s, intensities),))
