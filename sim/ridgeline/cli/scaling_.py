"""``ridgeline scaling``: weak and strong scaling by strategy, and the distributed roofline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ridgeline.cli.number_options import Whole
from ridgeline.cli.output import console, print_json, rounded
from ridgeline.cli.searched import (
    ClusterName,
    DeviceName,
    Json,
    Limit,
    ModelName,
    Precision,
    with_device,
)
from ridgeline.cli.software import Software, one_stack

if TYPE_CHECKING:
    from ridgeline.study.scaling import Scaling


def scaling_(
    model: ModelName,
    cluster: ClusterName,
    *,
    devices: str,
    batch: Whole,
    device: DeviceName = None,
    strategies: str = "data,tensor,pipeline,hybrid",
    mode: Literal["weak", "strong"] = "strong",
    precision: Precision = None,
    software: Software = None,
    limit: Limit = 8,
    plot: str | None = None,
    roofline: str | None = None,
    json: Json = False,
) -> int:
    """Scale a step over more and more devices, by each strategy alone and by the best hybrid.

    Parameters
    ----------
    devices
        Numbers of devices: 1,2,4,8.
    batch
        Samples of one step: over all devices (strong), or on each device (weak).
    strategies
        Any of data, tensor, pipeline and hybrid; for networks with images also spatial, which
        hybrid then includes.
    mode
        strong: the same batch on more devices; weak: the same batch on each device.
    plot
        File for the curves: .png, .svg or .pdf.
    roofline
        File for the distributed roofline: .png, .svg or .pdf.
    """
    from ridgeline.report.files import check_writable
    from ridgeline.study.scaling import scaling

    for path in (plot, roofline):
        if path is not None:
            check_writable(path)
    study = scaling(
        model, with_device(cluster, device), _numbers(devices),
        strategies=[name.strip() for name in strategies.split(",")],
        batch=batch, mode=mode, precision=precision, limit=limit,
        software=one_stack(software) or None,
    )  # fmt: skip
    written = []
    if plot is not None or roofline is not None:
        from ridgeline.report.figures.result import save

        for path, kind in ((plot, "scaling"), (roofline, "distributed-roofline")):
            if path is not None:
                save(study.plot(kind), path)
                written.append(path)
    if json:
        print_json(study.to_dict())
    else:
        _print(study)
        if written:
            console().print("wrote " + ", ".join(written), soft_wrap=True)
    return 0


def _numbers(text: str) -> list[int]:
    from ridgeline.errors import ConfigError

    parts = [part.strip().replace("_", "") for part in text.split(",")]
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise ConfigError(
            f"expected whole numbers joined by commas, such as 1,2,4, found {text!r}",
            field="--devices",
        )
    return [int(part) for part in parts]


def _print(study: Scaling) -> None:
    from ridgeline.parallel.plan.stack_choice import choice_text
    from ridgeline.report.tables import plain_table

    screen = console()
    per = "of each device" if study.mode == "weak" else "of the step, on all devices together"
    screen.print(
        f"{study.model.title} on {study.cluster.name}: {study.mode} scaling (the batch {per} stays)"
    )
    details = study.ran[0].details
    stack = details.plan.stack
    chosen = choice_text(stack.name, details.chosen_by, bound=stack.bound)
    screen.print(chosen, soft_wrap=True)
    columns = ("n", "batch", "step ms", "samples/s", "ideal", "times", "effic.",
               "exposed", "bubble", "J/sample")  # fmt: skip
    table = plain_table({"strategy": "left", **dict.fromkeys(columns, "right")})
    for point in study.points:
        same = (point.strategy, f"{point.devices}", f"{point.batch:,}")
        if point.result is None:
            table.add_row(*same, "-", "-", "-", "-", "-", "-", "-", "-")
            continue
        row = point.to_dict()
        table.add_row(
            *same,
            rounded(row["step_time_s"] * 1e3),
            rounded(row["samples_per_s"]),
            rounded(row["ideal_samples_per_s"]),
            f"{row['speed_up']:.2f}",
            f"{row['efficiency']:.1%}",
            f"{row['exposed_communication']:.1%}",
            f"{row['bubble']:.1%}",
            rounded(row["energy_per_sample_j"]),
        )
    screen.print(table)
    for point in study.points:
        where = f"{point.strategy} on {point.devices}"
        if point.result is None:
            screen.print(f"{where}: {point.reason}", soft_wrap=True)
        else:
            gap = f" (a better one by {point.gap:.1%} is not excluded)" if point.gap else ""
            screen.print(f"{where}: {point.result.details.plan}{gap}", soft_wrap=True)
