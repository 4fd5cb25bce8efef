"""Steps of published runs as columns of normalised rows: networks and programs of ``runs.yaml``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any

from ridgeline.config import parse_yaml
from ridgeline.errors import RidgelineError
from ridgeline.hardware.device import Device
from ridgeline.hardware.load import load_cluster, load_device
from ridgeline.software.load import load_software
from ridgeline.software.stack import Stack, setting_paths
from ridgeline.study.import_rows.machines import machine_of
from ridgeline.study.point import Point
from ridgeline.study.validate.normalised_rows import shared
from ridgeline.study.written_fields import plan_text, written

SUBMISSION = "mlperf-submission"
"""The stack of whole runs of MLPerf Training."""
_MIXED = ("bf16", "fp16")
_FOUR_BITS = "fp4"
_MOST_TENSOR = 4  # of devices that share samples of one network; more share positions
_RENAMED = {"ssd": ("retinanet", "v2.0")}  # MLPerf kept the name of its folder until v4.1
_NO_TIME = ("memory.", "reporting.", "input.")  # settings that change no time of a step


@dataclass(frozen=True)
class CatalogueStep:
    """A training step by catalogue names.

    Attributes
    ----------
    fields, machine_fields, plan
        Fields of the network, of the machine and of the plan.
    settings
        Of the program, by dotted path; all others are the defaults of the schema.
    """

    model: str
    machine: str
    plan: Mapping[str, Any]
    software: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    machine_fields: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def columns(self) -> dict[str, str]:
        """Return the columns of a normalised row that say what is simulated."""
        return {
            "model": self.model,
            "model_fields": written(self.fields),
            "machine": self.machine,
            "machine_fields": written(self.machine_fields),
            "plan": plan_text(self.plan),
            "software": self.software,
            "overrides": written(differing(self.software, self.settings)),
        }

    def fits(self) -> bool:
        """Simulate the step, and tell whether it fits into memory."""
        roots = {
            "model": self.fields,
            "cluster": self.machine_fields,
            "software": differing(self.software, self.settings),
        }
        replaced = {f"{root}.{path}": v for root, of in roots.items() for path, v in of.items()}
        return shared(Point(self.model, self.machine, self.plan, replaced, self.software)).fits


def differing(software: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a program that its stack has otherwise, and that change its time."""
    stack, wanted = load_software(software), Stack(name="wanted").with_settings(settings)
    return {
        path: _setting(wanted, path)
        for path in setting_paths()
        if not path.startswith(_NO_TIME) and _setting(wanted, path) != _setting(stack, path)
    }


def _setting(stack: Stack, path: str) -> Any:
    group, _, name = path.partition(".")
    return getattr(getattr(stack, group), name)


def machine_for(
    device: str, devices: int, nodes: int | None, place: str = ""
) -> tuple[str, dict[str, Any]]:
    """Return a machine with so many devices, and what to replace in it."""
    name, fields = machine_of(device, devices, nodes, place)
    return name, grown(name, fields, devices)


def grown(name: str, fields: Mapping[str, Any], devices: int) -> dict[str, Any]:
    """Return what to replace in a machine, so that a fat tree holds so many devices.

    Two levels of switches join half the square of their ports, three more.
    """
    cluster = load_cluster(name, fields)
    own = "" if "node" in fields else load_cluster(name).device.name
    needed = -(-devices // cluster.nodes.count)
    made = {path: value for path, value in fields.items() if (path, value) != ("node.device", own)}
    if cluster.fabric is not None and cluster.fabric.kind in ("fat-tree", "rail-optimised"):
        if needed > cluster.max_nodes:
            made["max_nodes"] = needed
        if needed * len(cluster.nodes.nics) > cluster.fabric.most_nics:
            made["fabric.levels"] = 3
    return made


@dataclass(frozen=True, slots=True)
class Workload:
    """A network of the catalogue with fields of it and of a plan.

    Attributes
    ----------
    plan
        Degrees of parallelism.
    formats
        Formats of products in submissions to MLPerf Training, the first that a device has.
    fewer
        Whether fewer ranks than the plan's are tensor-parallel where memory allows it.
    positions
        Whether tensor-parallel ranks share the positions between ops (`Plan.sequence`).
    shared
        Dimension of the plan by which several devices share a sample: "context" or "spatial"; "":
        none.
    options, software
        Further fields of the plan, and settings of the program.
    tight
        Further fields of the plan of a step that does not fit into memory without.
    """

    model: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    plan: Mapping[str, int] = field(default_factory=dict)
    formats: tuple[str, ...] = _MIXED
    fewer: bool = False
    positions: bool = False
    shared: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    software: Mapping[str, Any] = field(default_factory=dict)
    tight: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkloadRun:
    """How a workload is run.

    Attributes
    ----------
    accumulated
        Micro-batches of a device, where the plan is data-parallel. If a table has `told` them, they
        also say how many devices share a sample of a plan that has its choice (`Workload.fewer`).
    place
        What a table calls the machine.
    """

    device: str
    devices: int
    batch: int
    precision: str
    nodes: int | None = None
    accumulated: int = 1
    told: bool = False
    place: str = ""


def step_of(
    work: Workload, job: WorkloadRun, stack: str, settings: Mapping[str, Any]
) -> CatalogueStep:
    """Return one training step of a workload.

    Degrees of the plan that the workload gives are taken as far as there are devices; the rest is
    data-parallel. Where the batch has fewer samples than that, several devices share one.

    Raises
    ------
    RidgelineError
        If the batch cannot be divided, or there is no machine with so many devices.
    """

    def step(**more: Any) -> CatalogueStep:
        degrees = {**work.plan, **({"tensor": more.pop("tensor")} if "tensor" in more else {})}
        machine, fields = machine_for(job.device, job.devices, job.nodes, job.place)
        if job.devices > 1:
            fields["device_speed_std"] = 0.0
        plan = _plan(work, job, degrees, {**work.options, **more})
        own = {**settings, **work.software}
        return CatalogueStep(work.model, machine, plan, stack, work.fields, fields, own)

    shared_by, rest = divmod(job.devices * job.accumulated, job.batch)
    if work.fewer and job.told and shared_by and not rest:
        return step(tensor=math.gcd(shared_by, _MOST_TENSOR))
    for tensor in (1, 2, 4) if work.fewer else ():
        if tensor < work.plan["tensor"] and (less := step(tensor=tensor)).fits():
            return less
    made = step()
    return step(**work.tight) if work.tight and not made.fits() else made


def _plan(
    work: Workload, job: WorkloadRun, degrees: Mapping[str, int], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the fields of a plan with these degrees of parallelism."""
    rest, left = divmod(job.devices, math.prod(degrees.values()))
    if left:
        raise RidgelineError(f"{job.devices} devices cannot be divided by {dict(degrees)}")
    data = math.gcd(rest, job.batch)
    if data < rest and not work.shared:
        raise RidgelineError(f"a batch of {job.batch} cannot be divided between {rest} devices")
    held, rest_of_it = divmod(job.batch // data, job.accumulated)
    one = "tensor" in degrees and options.get("zero_stage") != 3  # else each would gather weights
    sharing = {work.shared: rest // data * degrees.get(work.shared, 1)} if work.shared else {}
    tensor = degrees.get("tensor", 1) if work.positions else 1
    return {
        **{name: degree for name, degree in {**degrees, **sharing}.items() if degree != 1},
        "data": data,
        "global_batch": job.batch,
        "micro_batch": 1 if one else job.batch // data if rest_of_it else held,
        "precision": job.precision,
        **options,
        **({"sequence": tensor} if tensor > 1 else {}),
    }


@dataclass(frozen=True, slots=True)
class MlperfRun:
    """A whole run of MLPerf Training (``runs.yaml``, ``runs``).

    Attributes
    ----------
    name
        Of the benchmark.
    samples
        Of an epoch; 0: the table counts samples or tokens.
    first_epoch
        Number of the epoch that training starts with.
    once
        Whether data are passed once: numbers of epochs above 2 count evaluations.
    tokens
        Of a sample, where the table counts tokens; else 0.
    batch_tokens
        Of a sample, where tables count tokens of large batches; else 0.
    validation, every
        Samples that pass forward alone after every so many samples of training.
    forward
        What that is of a training step: one of three passes over the same products, or of two where
        weights are frozen.
    unpadded
        Round from which on padding is left out, and the network's fields then; None: never.
    narrow
        Round from which on products are in four bits where a device has them; "": never.
    """

    name: str
    work: Workload
    samples: int = 0
    first_epoch: int = 0
    once: bool = False
    tokens: int = 0
    batch_tokens: int = 0
    validation: int = 0
    every: int = 0
    forward: float = 1 / 3
    unpadded: Mapping[str, Any] | None = None
    narrow: str = ""

    def on(self, device: str) -> MlperfRun:
        """Return the run as programs for a device do it."""
        for row in _document()["programs"]:
            benchmarks = row.get("benchmarks", [self.name])
            if device.startswith(tuple(row["devices"])) and self.name in benchmarks:
                work = replace(
                    self.work,
                    formats=tuple(row.get("formats", self.work.formats)),
                    plan=row.get("plan", self.work.plan),
                    options={**self.work.options, **row.get("options", {})},
                    software={**self.work.software, **row.get("software", {})},
                    tight=row.get("tight", {}),
                )
                unpadded = self.unpadded
                if unpadded and "unpadded" in row:
                    since = row["unpadded"]
                    unpadded = {**unpadded, "since": since} if since else None
                return replace(self, work=work, unpadded=unpadded)
        return self

    def work_of(self, round_: str) -> Workload:
        """Return the network of a round of submissions, and the formats of its products."""
        work = self.work
        if self.unpadded is not None and round_ >= self.unpadded["since"]:
            work = replace(work, fields=self.unpadded["fields"])
        if self.narrow and round_ >= self.narrow:
            work = replace(work, formats=(_FOUR_BITS, *work.formats))
        return work


_OF_WORK = ("plan", "formats", "options", "software")


def run_of(benchmark: str) -> MlperfRun:
    """Find a benchmark of MLPerf Training.

    Raises
    ------
    RidgelineError
        If its network or the amount of its training is not described.
    """
    row = _document()["runs"].get(benchmark)
    if row is None:
        raise RidgelineError(f"no description of the run {benchmark or '(not given)'}")
    work = workload(row.get("network", benchmark))
    own = {name: row[name] for name in _OF_WORK if name in row}
    work = replace(work, fields={**work.fields, **row.get("fields", {})}, **_listed(own))
    more = {n: v for n, v in row.items() if n not in {*_OF_WORK, "network", "fields"}}
    return MlperfRun(benchmark, work, **more)


def workload(name: str) -> Workload:
    """Find a workload of a table.

    Raises
    ------
    RidgelineError
        If no network of the catalogue is known to be it, or near it.
    """
    row = _document()["workloads"].get(name)
    if row is None:
        raise RidgelineError(f"no description of the network {name}")
    return Workload(**_listed(row))


def _listed(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in row.items()}


def renamed(benchmark: str, round_: str) -> str:
    """Return the benchmark of MLPerf Training that a name meant in a round."""
    name, since = _RENAMED.get(benchmark, ("", ""))
    return name if name and round_ >= since else benchmark


def submitted(benchmark: str, round_: str) -> Workload:
    """Return what submissions to a round of MLPerf Training run.

    Raises
    ------
    RidgelineError
        If no network of the catalogue is known to be it, or near it.
    """
    name = renamed(benchmark, round_)
    return run_of(name).work_of(round_) if name in _document()["runs"] else workload(name)


def usual_precision(device: str, *, mixed: bool, formats: tuple[str, ...] = _MIXED) -> str:
    """Return what networks are trained in where a table does not say it.

    Parameters
    ----------
    mixed
        Mixed precision, in the first of `formats` that the device has; else what PyTorch before
        version 1.12 did with fp32: tf32 on devices that have it.

    Raises
    ------
    RidgelineError
        If the device has neither.
    """
    known = _matrix_formats(_device(device))
    wanted = formats if mixed else ("tf32", "fp32")
    for format_ in wanted:
        if format_ in known:
            name = "nvfp4" if format_ == _FOUR_BITS else format_
            return f"{name}-mixed" if mixed else name
    raise RidgelineError(f"{device} does not multiply in {' or '.join(wanted)}")


def rounds(device: str) -> bool:
    """Whether products of fp32 are rounded to bf16 unless a program asks otherwise, as on TPUs.

    Their matrix units multiply nothing else (N. Jouppi et al., CACM 63(7), 2020), and TensorFlow
    and JAX use these (JAX documentation, ``jax.default_matmul_precision``).
    """
    engines = [e for e in _device(device).engines.values() if list(e.runs) == ["matrix"]]
    formats = {format_ for engine in engines for format_ in engine.rates}
    return "bf16" in formats and not formats & {"fp32", "tf32", "fp16"}


_device = cache(load_device)


def _matrix_formats(device: Device) -> set[str]:
    return {f for e in device.engines.values() if "matrix" in e.runs for f in e.rates}


@cache
def _document(name: str = "runs.yaml") -> Any:
    return parse_yaml(resources.files(__package__).joinpath(name).read_text("utf-8"), name).data
