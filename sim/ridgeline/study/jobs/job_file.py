"""Job files: which jobs share a fabric, where each is placed, and what else is on the links."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from ridgeline.bounded_files import read_text
from ridgeline.config import Document, Strict, check_kind, read_yaml, validate
from ridgeline.errors import ConfigError
from ridgeline.hardware.sourced import Count
from ridgeline.network.placement import check_placement
from ridgeline.study.point import Point, check_path
from ridgeline.units import Bytes, BytesPerSecond, Seconds

Scalar = str | int | float | bool
Seed = Annotated[int, Field(ge=0)]
Where = str | list[int | str]


class TrainingJob(Strict):
    """A training job: what is trained, how it is distributed, and on which devices."""

    name: str = Field(min_length=1)
    model: str
    """Name or path."""
    plan: dict[str, Scalar]
    """Fields of the plan; ``batch`` is the samples of a step."""
    software: str = ""
    """Software stack, by name or path; without it, the usual one of the machine or the network."""
    steps: Count = 3
    """Steps that it trains for."""
    count: Count = 1
    """How many equal jobs there are: NAME-1, NAME-2 ..."""
    arrival: Seconds | None = None
    """When it begins; without it, as the file's `arrivals` say, or at once."""
    placement: Where | None = None
    """packed, striped or random; a list of devices and nodes; or a file with one a line. Without
    it, as the file says."""


class Arrivals(Strict):
    """When jobs that say nothing else arrive, in the order of the file."""

    process: Literal["poisson"]
    mean_gap: Seconds = Field(gt=0)
    """Mean time between arrivals."""
    seed: Seed = 0


class OneFlow(Strict):
    """Background traffic from one device to another."""

    source: int = Field(alias="from", ge=0)
    target: int = Field(alias="to", ge=0)
    rate: BytesPerSecond


class Background(Strict):
    """Traffic of others: a pattern or a matrix of rates, as a steady stream or as messages."""

    name: str = Field(min_length=1)
    pattern: str = ""
    """Who sends to whom: stride:4, permutation:SEED, random:SEED, incast:TARGET or all-to-all."""
    rate: BytesPerSecond | None = None
    """Of a pattern: what each of its flows sends on average."""
    devices: list[int] = Field(default_factory=list)
    """Of a pattern: the devices that take part; all of the fabric by default."""
    flows: list[OneFlow] = Field(default_factory=list)
    """A matrix as its entries."""
    message: Bytes | None = None
    """Size of a message. Messages arrive by chance (Poisson) and follow each other on a flow.
    Without it, flows are steady streams that never exceed their rates."""
    seed: Seed = 0


class JobFile(Strict):
    """Several jobs on one fabric."""

    kind: Literal["jobs"]
    name: str
    description: str = ""
    cluster: str
    """Name or path of a cluster, or a network and its device."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Dotted path of the cluster -> value."""
    devices: Count | None = None
    """Devices of the fabric that is drawn; by default as many as the jobs have."""
    placement: str = "packed"
    """Of jobs that do not say where they are: packed, striped or random."""
    seed: Seed = 0
    """Of random placements."""
    arrivals: Arrivals | None = None
    jobs: list[TrainingJob] = Field(min_length=1)
    background: list[Background] = Field(default_factory=list)


@dataclass(frozen=True)
class OneJob:
    """One job, when it arrives, and where it asks to be.

    Attributes
    ----------
    placement
        A way to place it, or the names of its devices.
    """

    name: str
    point: Point
    steps: int
    arrival_s: float
    placement: str | tuple[str | int, ...]


def read_jobs(path: str | Path) -> JobFile:
    """Read a job file.

    Raises
    ------
    ConfigError
        With file, line and field of the first mistake.
    """
    document = read_yaml(path)
    check_kind(document, "jobs")
    file = validate(document, JobFile)
    _check_placement(document, file.placement, ("placement",))
    seen: set[str] = set()
    for i, job in enumerate(file.jobs):
        names = _names(job)
        if twice := seen & set(names):
            raise document.error(f"two jobs are called {min(twice)!r}", ("jobs", i, "name"))
        seen |= set(names)
        if isinstance(job.placement, str) and not _is_file(job.placement):
            _check_placement(document, job.placement, ("jobs", i, "placement"))
        if job.count > 1 and isinstance(job.placement, list):
            raise document.error(
                "devices by name are those of one job: leave out count, or the list",
                ("jobs", i, "placement"),
            )
    for name in file.set:
        try:
            check_path(name, ("cluster",))
        except ConfigError as error:
            raise document.error(error.message, ("set", name)) from error
    for i, of in enumerate(file.background):
        _check_background(document, of, i)
        if of.name in seen:
            raise document.error(f"{of.name!r} is the name of a job", ("background", i, "name"))
        seen.add(of.name)
    return file


def jobs_of(file: JobFile, placement: str | None = None) -> list[OneJob]:
    """Return the jobs of a file, each one alone.

    Parameters
    ----------
    placement
        In the place of the file's, for jobs that do not say where they are.
    """
    found = []
    clock = 0.0
    draw = None if file.arrivals is None else np.random.default_rng(file.arrivals.seed)
    for job in file.jobs:
        fields = {("global_batch" if k == "batch" else k): v for k, v in job.plan.items()}
        point = Point(job.model, file.cluster, fields, file.set, job.software)
        for name in _names(job):
            arrival_s = job.arrival
            if arrival_s is None and draw is not None and file.arrivals is not None:
                clock += draw.exponential(file.arrivals.mean_gap)
                arrival_s = clock
            found.append(
                OneJob(name, point, job.steps, arrival_s or 0.0, _where(job, file, placement))
            )
    return found


def _names(job: TrainingJob) -> list[str]:
    if job.count == 1:
        return [job.name]
    return [f"{job.name}-{i + 1}" for i in range(job.count)]


def _where(job: TrainingJob, file: JobFile, placement: str | None) -> str | tuple[str | int, ...]:
    asked = job.placement
    if asked is None:
        return placement or file.placement
    if isinstance(asked, list):
        return tuple(asked)
    if _is_file(asked):
        lines = (line.partition("#")[0].strip() for line in read_text(asked).splitlines())
        return tuple(line for line in lines if line)
    return asked


def _is_file(placement: str) -> bool:
    return placement.endswith((".txt", ".hosts"))


def _check_placement(document: Document, found: str, place: tuple[str | int, ...]) -> None:
    try:
        check_placement(found)
    except ConfigError as error:
        more = "" if len(place) == 1 else "; or a list of devices, or a .txt file with one a line"
        raise document.error(error.message + more, place) from error


def _check_background(document: Document, of: Background, number: int) -> None:
    place: tuple[str | int, ...] = ("background", number)
    if bool(of.pattern) == bool(of.flows):
        raise document.error("give either a pattern and its rate, or flows", place)
    if of.pattern and of.rate is None:
        raise document.error("a pattern needs a rate, such as 5 GB/s", place)
    if of.flows and (of.rate is not None or of.devices):
        raise document.error("rate and devices are of a pattern; flows have their own", place)
    for i, flow in enumerate(of.flows):
        if flow.source == flow.target:
            raise document.error("a flow goes from a device to itself", (*place, "flows", i))


def cluster_fields(file: JobFile) -> Mapping[str, Any]:
    """Return the fields of the cluster that a file replaces, by their paths below ``cluster.``."""
    return {check_path(path, ("cluster",))[1]: value for path, value in file.set.items()}
