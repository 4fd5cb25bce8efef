"""``ridgeline roofline``: ridge points of a device, and work under its roofs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from ridgeline.cli.number_options import Whole
from ridgeline.cli.output import console, print_json
from ridgeline.cli.software import OPTION, Software, one_stack
from ridgeline.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from ridgeline.hardware.device import Device
    from ridgeline.kernels.roofline import EnginePeak, Ridge
    from ridgeline.report.figures.device import Load

_GEMM = re.compile(r"(\d{1,13})x(\d{1,13})x(\d{1,13})")


def roofline_(
    device: str,
    *,
    model: Annotated[tuple[str, ...], Parameter(consume_multiple=False)] = (),
    gemm: Annotated[tuple[str, ...], Parameter(consume_multiple=False)] = (),
    format: Annotated[tuple[str, ...], Parameter(consume_multiple=False)] = (),
    by: Literal["op", "layer"] = "op",
    batch: Whole = 32,
    precision: str = "fp32",
    software: Software = None,
    out: Annotated[str | None, Parameter(name=("--out", "--output"))] = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Print the ridge points of a device, and draw its roofs with work under them.

    Parameters
    ----------
    device
        Name or file of a device.
    model
        Name or file of a network, whose training step is drawn. Repeat it for more.
    gemm
        Matrix product MxNxK to draw, in the number formats of --format. Repeat it for more.
    format
        Number format of the ridge points, the roofs and the products. Repeat it for more.
    by
        What one small marker of a network is: an op or a layer.
    batch
        Samples of a training step of each network.
    precision
        Precision of the training step of each network.
    out
        File of the figure: .png, .svg or .pdf; by default roofline.png if there is a network or a
        product to draw.
    json
        Print the ridge points, peaks and marks as JSON.
    """
    from ridgeline.hardware import load_device
    from ridgeline.kernels.dtype_emulation import roof_of
    from ridgeline.kernels.roofline import peaks, power_density_w_mm2, ridge_points
    from ridgeline.workload.formats import AS, FORMATS

    machine = load_device(device)
    if software is not None and not model:
        raise ConfigError("a program runs the steps of --model, which is not given", field=OPTION)
    rates = tuple(  # fp8-e4m3: fp8
        roof_of(machine, f) if f in FORMATS or AS in f else f for f in format
    )
    ridges = [r for r in ridge_points(machine) if _wanted(r.engine, rates)]
    tops = [p for p in peaks(machine) if _wanted(p.engine, rates)]
    loads: list[Load] = []
    if model or gemm or out is not None or format:
        from ridgeline.report.figures.device import device_roofline, shown_roofs

        shown_roofs(machine, (), rates)  # complains of a format that the device does not have
        loads = [
            _network(name, device, batch, precision, by, one_stack(software)) for name in model
        ]
        loads += [_product(text, machine, f) for text in gemm for f in format or (None,)]
    path = out or ("roofline.png" if loads else None)
    if path is not None:
        from ridgeline.report.figures.result import save

        save(device_roofline(machine, loads, rates), path)
    density = power_density_w_mm2(machine)
    if json:
        print_json(
            {
                "device": machine.name,
                "ridges": [ridge._asdict() for ridge in ridges],
                "peaks": [peak._asdict() for peak in tops],
                "power_density_w_mm2": density,
                "marks": [m._asdict() for load in loads for m in load.marks],
            }
        )
        return
    screen = console()
    screen.print(_ridge_table(ridges))
    screen.print(peak_table(tops))
    if density is not None:
        screen.print(f"power density at design power: {density:.3g} W/mm2")
    if loads:
        screen.print(_mark_table(loads, list(dict.fromkeys(ridge.level for ridge in ridges))))
    if path is not None:
        screen.print(f"wrote {path}", soft_wrap=True)


def _wanted(engine: str, formats: tuple[str, ...]) -> bool:
    return not formats or engine.rpartition(".")[2] in formats


def _network(
    name: str,
    device: str,
    batch: int,
    precision: str,
    by: Literal["op", "layer"],
    software: str,
) -> Load:
    from ridgeline.report.figures.device import network
    from ridgeline.study.point import Point

    fields = {"global_batch": batch, "precision": precision}
    result = Point(name, device, fields, software=software).simulate()
    return network(result, by)


def _product(text: str, device: Device, format_: str | None) -> Load:
    from ridgeline.kernels.dtype_emulation import roof_of
    from ridgeline.kernels.roofline import Mark
    from ridgeline.kernels.single_op import gemm
    from ridgeline.report.figures.device import Load

    match = _GEMM.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            f"a product is MxNxK, such as 4096x4096x4096; found {text!r}", field="--gemm"
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


def _ridge_table(ridges: Sequence[Ridge]) -> Table:
    from ridgeline.report.tables import plain_table
    from ridgeline.units import show

    rows = plain_table(
        {"engine": "left", "peak": "right", "memory": "left", "bandwidth": "right",
         "ridge FLOP/B": "right", "achievable": "right"}
    )  # fmt: skip
    for ridge in ridges:
        rows.add_row(
            ridge.engine,
            show(ridge.peak_flop_per_s, "FLOP/s", 4),
            ridge.level,
            show(ridge.bandwidth_bytes_per_s, "B/s", 4),
            f"{ridge.flop_per_byte:.4g}",
            f"{ridge.achievable_flop_per_byte:.4g}",
        )
    return rows


def peak_table(peaks: Sequence[EnginePeak]) -> Table:
    """Tabulate the peaks of a device, per power and area where they are known."""
    from ridgeline.report.tables import plain_table
    from ridgeline.units import show

    rows = plain_table({"engine": "left", "peak": "right", "per W": "right", "per mm2": "right"})
    for peak in peaks:
        rows.add_row(
            peak.engine,
            show(peak.flop_per_s, "FLOP/s", 4),
            "" if peak.flop_per_joule is None else f"{show(peak.flop_per_joule, 'FLOP/s')}/W",
            "" if peak.flop_per_s_mm2 is None else f"{show(peak.flop_per_s_mm2, 'FLOP/s')}/mm2",
        )
    return rows


def _mark_table(loads: Sequence[Load], levels: Sequence[str]) -> Table:
    from ridgeline.report.tables import plain_table
    from ridgeline.units import show

    rows = plain_table(
        {"work": "left", "speed": "right", **{f"FLOP/B at {level}": "right" for level in levels}}
    )
    for load in loads:
        for mark in load.marks:
            across = [mark.flop_per_byte.get(level) for level in levels]
            cells = ["" if x is None else f"{x:.4g}" for x in across]
            rows.add_row(mark.name, show(mark.flop_per_s, "FLOP/s", 4), *cells)
    return rows
