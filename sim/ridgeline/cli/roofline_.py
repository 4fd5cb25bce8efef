"""``ridgeline roofline``: ridge points of a device, and work under its roofs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from ridgeline.cli.names import DeviceOnly, completed
from ridgeline.cli.number_options import Whole
from ridgeline.cli.output import console, print_json
from ridgeline.cli.software import OPTION, Software, one_stack
from ridgeline.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from ridgeline.kernels.roofline import EnginePeak, Ridge
    from ridgeline.report.figures.device import Load


def roofline_(
    device: DeviceOnly,
    *,
    model: Annotated[
        tuple[str, ...], Parameter(consume_multiple=False, completer=completed("models"))
    ] = (),
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
    from ridgeline.study.roofline import roofline

    if software is not None and not model:
        raise ConfigError("a program runs the steps of --model, which is not given", field=OPTION)
    found = roofline(
        device, model=model, gemm=gemm, format=format, by=by, batch=batch, precision=precision,
        software=one_stack(software) or None,
    )  # fmt: skip
    path = out or ("roofline.png" if found.loads else None)
    if path is not None:
        from ridgeline.report.figures.result import save

        save(found.plot(), path)
    if json:
        print_json(found.to_dict())
        return
    screen = console()
    screen.print(_ridge_table(found.ridges))
    screen.print(peak_table(found.peaks))
    if found.power_density_w_mm2 is not None:
        density = f"{found.power_density_w_mm2:.3g}"
        screen.print(f"power density at design power: {density} W/mm2")
    if found.loads:
        levels = list(dict.fromkeys(ridge.level for ridge in found.ridges))
        screen.print(_mark_table(found.loads, levels))
    if path is not None:
        screen.print(f"wrote {path}", soft_wrap=True)


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
