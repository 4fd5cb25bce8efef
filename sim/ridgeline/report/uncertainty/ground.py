"""Ground of a stated range: the measured steps that its model error was estimated from.

Errors belong to a kind of step, a family of software and a maker of devices. Where a family has too
few groups of rows, the errors of all families on these devices stand in; where it has no row at
all, or the software is a bound, nothing is stated. ``step_errors.csv`` has the errors;
``benchmarks/estimate_uncertainty.py`` writes it, leaving whole devices and whole sources out.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, NamedTuple

from ridgeline.hardware.device import Device
from ridgeline.report.uncertainty.device_range import WORDS, Distance, distance_of, range_of
from ridgeline.report.uncertainty.distributions import ModelError
from ridgeline.software.stack import Stack

if TYPE_CHECKING:
    from ridgeline.report.result import Details

LANGUAGE = frozenset({"decoder"})
"""Families of networks whose steps are of the kind "llm"."""


@dataclass(frozen=True, slots=True)
class StepError:
    """Error of the steps of one kind, software family and maker of devices.

    Attributes
    ----------
    error
        Its distribution, with the rows and groups that it was estimated from.
    pooled
        Whether these are of all families on devices of the maker, since the family has too few.
    n, devices, sources
        Rows of the family on devices of the maker, and how many devices and sources they have.
    most_devices
        Devices of the largest of these steps.
    distance
        Of the step's device from those that were measured.
    """

    error: ModelError
    kind: str
    family: str
    vendor: str
    pooled: bool
    n: int
    devices: int
    sources: int
    most_devices: int
    distance: Distance = "own"

    @property
    def text(self) -> str:
        """What the range rests on, in words."""
        whose = f"{self.n} measured steps of {self.family} software on {self.vendor} devices"
        if self.pooled:
            whose += f", few: with all {self.error.n} of any software on these"
        shares = [
            f"{share:.0%} of rows whose {what} was left out are inside"
            for what, share in (("device", self.error.by_device), ("source", self.error.by_source))
            if share is not None
        ]
        if self.distance != "own":
            shares.append(f"as wide as {WORDS[self.distance]}")
        return "; ".join([f"5 to 95 %: the machine's parameters, and errors of {whose}", *shares])


@dataclass(frozen=True, slots=True)
class Ground:
    """What a range rests on, or why none is stated.

    Attributes
    ----------
    step
        The errors; None: no range is stated.
    text
        The measurements that the range rests on, or the reason why there is none, in words.
    """

    step: StepError | None
    text: str


def ground_of(details: Details) -> Ground:
    """Return what the range of a step rests on."""
    stack, plan = details.plan.stack, details.plan
    if stack.bound:
        return Ground(None, f"{stack.name} is a bound, which no measurement can be compared with")
    kind, family, vendor = cell = of_step(details)
    step = step_errors().get(cell)
    if step is None:
        maker = f"{vendor} devices" if vendor else "devices without a maker"
        words = kind.replace("-", " ") if kind != "llm" else "language model"
        return Ground(None, f"no measured {words} step of {family} software on {maker}")
    if plan.devices > step.most_devices:
        return Ground(
            None,
            f"{plan.devices:,} devices; the most of a measured step of {family} software on"
            f" {vendor} devices are {step.most_devices:,}",
        )
    step = _at_distance(step, cell, details.cluster.device)
    return Ground(step, step.text)


def _at_distance(step: StepError, cell: StepKind, device: Device) -> StepError:
    """Return the errors as wide as they are on a device that is so far from measured ones."""
    distance = distance_of(cell.range_kind, device)
    if distance in (None, "own"):
        return step
    error = range_of(cell.range_kind, device)
    if error is None:
        return step
    assert distance is not None
    known = step.error
    error = replace(error, by_device=known.by_device, by_source=known.by_source)
    return replace(step, error=error, distance=distance)


class StepKind(NamedTuple):
    """What the errors of steps are pooled by."""

    kind: str
    family: str
    vendor: str

    @property
    def range_kind(self) -> str:
        """Kind of prediction by which ranges are stated of devices without measured steps."""
        return " ".join(self)


def of_step(details: Details) -> StepKind:
    """Return what the errors of a step are pooled by."""
    vendor = details.cluster.device.vendor.lower()
    return StepKind(kind_of(details), family_of(details.plan.stack), vendor)


def kind_of(details: Details) -> str:
    """Return the kind of measured steps that a step is one of."""
    if details.model.network.family in LANGUAGE:
        return "llm"
    return "single-device" if details.plan.devices == 1 else "several-devices"


def family_of(stack: Stack) -> str:
    """Return the family that the errors of a stack are pooled with: its own if in no other."""
    return stack.family if stack.family != "other" else stack.base or stack.name


@cache
def step_errors() -> dict[StepKind, StepError]:
    """Return the errors by kind, family and maker of devices."""
    text = resources.files(__package__).joinpath("step_errors.csv").read_text("utf-8")
    return {
        StepKind(row["kind"], row["family"], row["vendor"]): _read(row)
        for row in csv.DictReader(text.splitlines())
    }


def _read(row: dict[str, str]) -> StepError:
    def share(name: str) -> float | None:
        return float(row[name]) if row[name] else None

    error = ModelError(
        kind=row["kind"],
        points=False,
        median=float(row["median"]),
        low=float(row["low"]),
        high=float(row["high"]),
        n=int(row["from_rows"]),
        groups=int(row["from_groups"]),
        by_device=share("by_device"),
        by_source=share("by_source"),
        by_group=None,
    )
    return StepError(
        error=error,
        kind=row["kind"],
        family=row["family"],
        vendor=row["vendor"],
        pooled=row["pooled"] == "yes",
        n=int(row["n"]),
        devices=int(row["devices"]),
        sources=int(row["sources"]),
        most_devices=int(row["most_devices"]),
    )
