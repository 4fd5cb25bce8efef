"""Dry run of a launch job: the point of a study that simulates it on a machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ridgeline import catalog
from ridgeline.errors import ConfigError
from ridgeline.hardware.load import description
from ridgeline.study.launch.job import LaunchJob
from ridgeline.study.point import Point

_DEGREES = ("tensor", "context", "pipeline")


@dataclass(frozen=True)
class DryRun:
    """A launch job and what simulates it.

    Attributes
    ----------
    job
        As it was read, on the devices that it runs on.
    point
        Network, machine, plan and software of the step.
    notes
        What the user, not the file, decided, and what was assumed.
    """

    job: LaunchJob
    point: Point
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return what was read, what became of it and what was not understood, as plain values."""
        job = self.job
        return {
            "file": job.file,
            "framework": job.framework,
            "devices": job.devices,
            "settings": [vars(setting) for setting in job.settings],
            "not_understood": [setting.name for setting in job.unread],
            "notes": list(self.notes),
        }


def dry_run(
    job: LaunchJob,
    *,
    model: str = "",
    cluster: str = "",
    devices: int | None = None,
    software: str = "",
    plan: Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> DryRun:
    """Return what simulates a launch job; what is given here counts before what the file says.

    Raises
    ------
    ConfigError
        If network, machine or batch are not known, or the devices cannot be divided.
    """
    notes = list(job.notes)
    for said, given, what in ((job.model, model, "network"), (job.software, software, "software")):
        if given and said and given != said:
            notes.append(f"the {what} is {given}, as you say; the file says {said}")
    if not (model or job.model):
        raise _missing(job, "which network is trained", "ridgeline run MODEL CLUSTER --from FILE")
    if devices is not None:
        job = job.on(devices)
    machine = cluster or _machine(job, notes)
    fields = {**job.plan, **(plan or {})}
    if "data" not in fields and any(fields.get(name, 1) > 1 for name in (*_DEGREES, "expert")):
        notes.append("the file says no number of devices: one replica; give --devices")
    if "global_batch" not in fields:
        raise _missing(job, "the batch", "give --batch, or --devices N")
    own = {
        **_below("model", job.model_fields if not model or model == job.model else {}),
        **_below("software", job.software_settings),
        **(overrides or {}),
    }
    point = Point(model or job.model, machine, fields, own, software or job.software)
    return DryRun(replace(job, notes=tuple(notes)), point, tuple(notes))


def _below(head: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{head}.{path}": value for path, value in fields.items()}


def _missing(job: LaunchJob, what: str, how: str) -> ConfigError:
    return ConfigError(f"it does not say {what}: {how}", file=job.file)


def _machine(job: LaunchJob, notes: list[str]) -> str:
    """Return the machine of the devices that a file names, where only one has as many."""
    if job.device is None:
        raise _missing(job, "on what it runs", "ridgeline run CLUSTER --from FILE")
    if job.device not in catalog.names("devices"):
        return job.device
    needed = job.devices or 1
    if needed == 1:
        return job.device
    able = machines_of(job.device, needed)
    if len(able) != 1:
        those = f"those with as many: {', '.join(able)}" if able else "none that ships has as many"
        raise ConfigError(
            f"it asks for {needed} x {job.device}: name the machine before --from ({those})",
            file=job.file,
        )
    notes.append(f"the machine is {able[0]}: the only one that ships with {needed} x {job.device}")
    return able[0]


def machines_of(device: str, devices: int) -> list[str]:
    """Return the shipped nodes and clusters of a device that have so many."""
    nodes = {name: description("nodes", name).data for name in catalog.names("nodes")}
    held = {name: data.get("count", 1) for name, data in nodes.items() if data["device"] == device}
    found = [name for name, count in held.items() if devices <= count]
    for name in () if found else catalog.names("clusters"):
        data = description("clusters", name).data
        if data["node"] in held and devices <= held[data["node"]] * data.get("max_nodes", 1):
            found.append(name)
    return found
