"""Published rows: measurements of the same configuration beside a prediction."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from ridgeline.hardware.load import load_device
from ridgeline.parallel.plan.plan import Plan
from ridgeline.parallel.plan.programmed import programmed
from ridgeline.report.result import Result
from ridgeline.simulation import simulate
from ridgeline.workload.files import load_network
from ridgeline.workload.model import Model

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, slots=True)
class Measurement:
    """One published training throughput, with the conditions that it holds for."""

    id: str
    model: str
    device: str
    devices: int
    batch_per_device: int
    precision: str
    samples_per_s: float
    framework: str
    software: str
    """Name of the stack that the program is; "": none that ships."""
    data: str
    system: str
    source: str


@dataclass(frozen=True, slots=True)
class PublishedResidual:
    """A prediction beside a measurement; `error` is predicted over measured, less one.

    `software` is the stack that it is predicted under.
    """

    measurement: Measurement
    software: str
    predicted_samples_per_s: float

    @property
    def error(self) -> float:
        """Relative error of the prediction: positive means that it is too fast."""
        return self.predicted_samples_per_s / self.measurement.samples_per_s - 1.0


@cache
def measurements() -> tuple[Measurement, ...]:
    """Return all published measurements that ship with the package."""
    text = resources.files("ridgeline.study").joinpath("published.csv").read_text("utf-8")
    return tuple(
        Measurement(
            row["id"],
            row["model"],
            row["device"],
            int(row["devices"]),
            int(row["batch_per_device"]),
            row["precision"],
            float(row["samples_per_s"]),
            row["framework"],
            row["software"],
            row["data"],
            row["system"],
            row["source"],
        )
        for row in csv.DictReader(text.splitlines())
    )


def comparable(result: Result) -> Iterator[Measurement]:
    """Yield every measurement of the same model, devices, batch and precision.

    Only shipped models and devices, as they are, are compared, under plans that frameworks ran: no
    accumulation, the model's own optimizer.
    """
    plan = result.manifest["plan"]
    usual = plan["micro_batches"] == 1 and plan["optimizer"] is None
    conditions = (plan["devices"], plan["rank_batch"], plan["precision"])
    for row in measurements():
        if usual and conditions == (row.devices, row.batch_per_device, row.precision):
            model, device = result.details.model, result.details.cluster.device
            if (model.name, device.name) != (row.model, row.device):  # spares the loading
                continue
            kernels = result.details.plan.stack.kernels
            shipped = programmed(load_network(row.model), kernels, device.year)
            if (model, device) == (shipped, load_device(row.device)):
                yield row


def residuals(result: Result) -> Iterator[PublishedResidual]:
    """Compare a result with every measurement that is `comparable`.

    Each is predicted under the software that it was measured with; where that does not ship, under
    that of the result.
    """
    rates: dict[str, float] = {"": result.samples_per_s}
    if not result.details.plan.stack.overrides:
        rates[result.details.plan.stack.name] = result.samples_per_s
    for row in comparable(result):
        if row.software not in rates:
            rates[row.software] = _under(row.software, load_network(row.model), result)
        under = row.software or result.details.plan.stack.name
        yield PublishedResidual(row, under, rates[row.software])


def measured_text(result: Result) -> str:
    """Say in a line what was measured of this step, under whatever software, if anything was."""
    found = [row.samples_per_s for row in comparable(result)]
    if not found:
        return "published measurements of this configuration: none is shipped"
    least, most = min(found), max(found)
    rates = f"{least:,.0f}" if least == most else f"{least:,.0f} to {most:,.0f}"
    unit = result.manifest["model"]["sample"]
    return f"published measurements of this configuration: {len(found)}, {rates} {unit}/s"


def _under(software: str, model: Model, result: Result) -> float:
    """Return the rate of a step under another stack, which decides of the plan what it would."""
    details = result.details
    decided = dict(details.plan.decided)
    fields = {k: v for k, v in details.plan.chosen.items() if k not in decided or k == "precision"}
    return simulate(model, details.cluster, Plan(**fields), software=software).samples_per_s


def print_residuals(result: Result, screen: Console) -> None:
    """Print predicted against published, the fastest measurement first, or that none is known."""
    from ridgeline.report.tables import plain_table

    found = sorted(residuals(result), key=lambda r: -r.measurement.samples_per_s)
    if not found:
        screen.print("predicted against published: no measurement of this configuration is shipped")
        return
    unit = result.manifest["model"]["sample"]
    rows = plain_table(
        {
            "predicted against published": "left",
            "software": "left",
            f"measured {unit}/s": "right",
            f"predicted {unit}/s": "right",
            "residual": "right",
        }
    )
    for number, residual in enumerate(found, 1):
        row = residual.measurement
        rows.add_row(
            f"{row.framework}, {row.data} data [{number}]",
            residual.software if row.software else f"{residual.software} (its own does not ship)",
            f"{row.samples_per_s:,.0f}",
            f"{residual.predicted_samples_per_s:,.0f}",
            f"{residual.error:+.1%}",
        )
    screen.print(rows, markup=False)
    for number, residual in enumerate(found, 1):
        row = residual.measurement
        screen.print(f"[{number}] {row.system}: {row.source}", soft_wrap=True, markup=False)
