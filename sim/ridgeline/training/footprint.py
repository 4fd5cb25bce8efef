"""Footprint of a run: energy, electricity, rent and carbon.

Energy is the power of nodes from the wall times the time that they draw it, times the building's
power usage effectiveness. Carbon is energy times the intensity of the grid, by the hour of day if
that is stated.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from ridgeline.bounded_files import read_text
from ridgeline.errors import RidgelineError, nearest
from ridgeline.training import goodput
from ridgeline.training.failures import DAY_S
from ridgeline.training.run_file import Facility
from ridgeline.training.training_loop import RunSpan

_BUSY = frozenset({goodput.PRODUCTIVE, goodput.EVALUATION})
"""Categories of spans in which kernels run."""
_HOURS = 24
_KWH_J = 3.6e6


@dataclass(frozen=True)
class RunPower:
    """Power of all nodes of a run from the wall, in watts: while they train, and while they wait.

    `spares_w` is that of nodes that stand by.
    """

    training_w: float
    idle_w: float
    spares_w: float = 0.0


@dataclass(frozen=True)
class RunFootprint:
    """What a run takes besides time; None where a price or the grid is not stated.

    Attributes
    ----------
    energy_j
        Of the building: nodes, spares, cooling.
    energy_by_j
        The same by category of the run's timeline, on which work that is lost is training still.
    device_hours
        Devices of the job times its time.
    electricity_usd, rent_usd
        Prices of energy and devices.
    carbon_kg
        CO2 equivalent of the energy.
    """

    energy_j: float
    energy_by_j: Mapping[str, float]
    device_hours: float
    electricity_usd: float | None
    rent_usd: float | None
    carbon_kg: float | None


def footprint(
    spans: Iterable[RunSpan],
    power: RunPower,
    facility: Facility,
    *,
    pue: float,
    devices: int,
    held_s: float,
) -> RunFootprint:
    """Return what a run takes, from its spans, which cover its time.

    Parameters
    ----------
    held_s
        Time in which the job has its devices.

    Raises
    ------
    RidgelineError
        If the grid is not in the table.
    """
    intensity = carbon_intensity(facility)
    energy_by_j = dict.fromkeys(goodput.CATEGORIES, 0.0)
    carbon_kg = 0.0
    for span in spans:
        busy = 1.0 - span.waiting_share if span.category in _BUSY else 0.0
        span_s = span.end_s - span.start_s
        busy_j = pue * busy * power.training_w * span.power_share * span_s
        idle_w = (1.0 - busy) * power.idle_w * span.power_share + power.spares_w
        waited = goodput.DATA_LOADING if span.waiting_share else span.category
        energy_by_j[span.category] += busy_j
        energy_by_j[waited] += pue * idle_w * span_s
        joules = busy_j + pue * idle_w * span_s
        if intensity is not None:
            carbon_kg += joules * intensity * _hourly_mean(facility, span)
    energy_j = math.fsum(energy_by_j.values())
    price = facility.electricity
    return RunFootprint(
        energy_j=energy_j,
        energy_by_j=energy_by_j,
        device_hours=devices * held_s / 3600.0,
        electricity_usd=None if price is None else energy_j * price,
        rent_usd=None if facility.device_hour is None else devices * held_s * facility.device_hour,
        carbon_kg=None if intensity is None else carbon_kg,
    )


def carbon_intensity(facility: Facility) -> float | None:
    """Return the mean intensity of the grid in kg of CO2 equivalent a joule; None if unstated.

    Raises
    ------
    RidgelineError
        If the grid is not in the table.
    """
    if facility.carbon is not None:
        return facility.carbon
    if not facility.grid:
        return None
    table = grids()
    key = facility.grid.strip().lower()
    if key not in table:
        raise RidgelineError(
            f"no grid is called {facility.grid!r}{nearest(key, table)}; a country has three "
            "letters (FRA), a state of the USA its name; or state facility.carbon (57 g/kWh)"
        )
    return table[key] / 1000.0 / _KWH_J


@cache
def grids() -> dict[str, float]:
    """Return the intensity of grids in g of CO2 equivalent a kWh, by lower-case name."""
    place = resources.files("ridgeline.training").joinpath("data", "grid_carbon.csv")
    rows = csv.DictReader(io.StringIO(read_text(str(place))))
    return {row["grid"].lower(): float(row["g_per_kwh"]) for row in rows}


def _hourly_mean(facility: Facility, span: RunSpan) -> float:
    """Return the mean of the hourly factors over a span of the run's clock."""
    if not facility.hourly:
        return 1.0
    mean = sum(facility.hourly) / _HOURS
    start, end = (
        _integral(facility.hourly, facility.start_hour * 3600.0 + at_s)
        for at_s in (span.start_s, span.end_s)
    )
    return (end - start) / (span.end_s - span.start_s) / mean


def _integral(hourly: tuple[float, ...], at_s: float) -> float:
    """Return the hourly factors summed over time from midnight of the first day."""
    days, rest_s = divmod(at_s, DAY_S)
    hour, part_s = divmod(rest_s, 3600.0)
    hour = min(int(hour), _HOURS - 1)
    return days * sum(hourly) * 3600.0 + sum(hourly[:hour]) * 3600.0 + hourly[hour] * part_s
