"""``ridgeline roofline``: ridge points of a device, and a network's ops under its roofs."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from ridgeline.cli.output import console, print_json
from ridgeline.cli.whole import Whole


def roofline_(
    device: str,
    *,
    model: str | None = None,
    batch: Whole = 32,
    precision: str = "fp32",
    output: str = "roofline.png",
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Print the ridge points of a device; with a model, draw its training step under the roofs.

    Parameters
    ----------
    device
        Name or file of a device.
    model
        Name or file of a network.
    batch
        Samples of the model's step.
    precision
        Of the model's step.
    output
        File of the figure: .png, .svg or .pdf.
    json
        Print the ridge points as JSON.
    """
    from ridgeline.hardware import load_device
    from ridgeline.kernels.roofline import ridge_points
    from ridgeline.report.summary import plain_table
    from ridgeline.units import show

    ridges = ridge_points(load_device(device))
    if model is not None:
        from ridgeline.report.figures import save
        from ridgeline.study.point import Point

        point = Point(model, device, {"global_batch": batch, "precision": precision})
        save(point.simulate().plot("roofline"), output)
    if json:
        print_json([ridge._asdict() for ridge in ridges])
        return
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
    screen = console()
    screen.print(rows)
    if model is not None:
        screen.print(f"wrote {output}", soft_wrap=True)
