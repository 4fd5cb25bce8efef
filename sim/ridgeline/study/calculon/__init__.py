"""Calculon's files read: application, execution and system become a model, a plan and a machine.

Each is turned into the fields of one of ridgeline's own files, so that it is checked, printed and
overridden like any other.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ridgeline.config import Document, read_yaml, validate
from ridgeline.errors import ConfigError
from ridgeline.hardware.load import load_cluster
from ridgeline.parallel.plan.stack_choice import BOUND
from ridgeline.parallel.plan.text import make_plan
from ridgeline.report.files import make_folder, write_text
from ridgeline.report.result import Result
from ridgeline.study.calculon.machine import (
    check_like,
    cluster_fields,
    device_fields,
    machine_remarks,
    node_fields,
)
from ridgeline.study.calculon.origins import Origins
from ridgeline.study.calculon.schema import (
    UNNAMED,
    CalculonApplication,
    CalculonExecution,
    CalculonSystem,
)
from ridgeline.study.calculon.workload import (
    model_fields,
    plan_fields,
    software_settings,
    workload_remarks,
)
from ridgeline.study.point import Point
from ridgeline.study.reproduce.programs import UNFUSED

LIKE = "selene-a100"


@dataclass(frozen=True, slots=True)
class Imported:
    """What Calculon's three files say.

    Attributes
    ----------
    files
        Fields of each of ridgeline's files, by file name.
    model
        Name of the file of the model.
    plan
        Fields of the plan.
    settings
        Of the software stack, by path.
    remarks
        What is read otherwise than Calculon means it, or not used, each with the field's name.
    origins
        The files themselves, so that a later mistake is one of theirs.
    """

    files: dict[str, dict[str, Any]]
    model: str
    plan: dict[str, Any]
    settings: dict[str, Any]
    remarks: tuple[str, ...]
    origins: Origins = field(compare=False, repr=False)

    @property
    def machine(self) -> str:
        """Name of the file that describes the machine as a whole."""
        return "cluster.yaml" if "cluster.yaml" in self.files else "node.yaml"

    def write(self, folder: str | Path) -> list[Path]:
        """Write the model and the machine as YAML files, or raise ConfigError."""
        from ruamel.yaml import YAML

        home, yaml = make_folder(folder), YAML()
        yaml.default_flow_style = False
        written = []
        for name, fields in self.files.items():
            stream = io.StringIO()
            yaml.dump(fields, stream)
            write_text(home / name, stream.getvalue())
            written.append(home / name)
        return written

    def overrides(self, software: str = "") -> dict[str, Any]:
        """Return the settings that are replaced of a stack; of none that is named, of `ideal`."""
        settings = {**({} if software else UNFUSED), **self.settings}
        return {f"software.{path}": value for path, value in settings.items()}

    def command(self, folder: str | Path, software: str = "") -> str:
        """Return the command that simulates what `write` wrote."""
        home, plan = Path(folder), make_plan(self.plan)
        fields = str(plan.model_copy(update={"global_batch": 1})).removeprefix("global_batch=1,")
        sets = " ".join(
            f"--set {path}={str(value).lower()}" for path, value in self.overrides(software).items()
        )
        return (
            f"ridgeline run {home / self.model} {home / self.machine} --plan {fields}"
            f" --batch {plan.global_batch} --software {software or BOUND} {sets}"
        )

    def simulate(self, software: str = "") -> Result:
        """Simulate the step under a stack, by default `ideal` with attention op by op.

        Raises
        ------
        ConfigError
            With the field of Calculon's file that does not suit the others.
        """
        with TemporaryDirectory(prefix="ridgeline-") as folder:
            self.write(folder)
            home = Path(folder)
            try:
                return Point(
                    str(home / self.model),
                    str(home / self.machine),
                    self.plan,
                    self.overrides(software),
                    software or BOUND,
                ).simulate()
            except ConfigError as error:
                raise self.origins.of(error, home) from error


def read_calculon(
    application: str | Path, execution: str | Path, system: str | Path, like: str = LIKE
) -> Imported:
    """Read Calculon's three files.

    Parameters
    ----------
    application, execution, system
        Paths of the JSON files, in the order in which Calculon takes them.
    like
        Machine that everything is taken from that Calculon's files do not have: energies, idle
        power.

    Raises
    ------
    ConfigError
        With file, line and field of the first mistake; also of an unknown field, a number format
        that the machine has no rate for, or a plan that cannot be.
    """
    origins = Origins(read_yaml(application), read_yaml(execution), read_yaml(system))
    app = validate(origins.application, CalculonApplication)
    sys = validate(origins.system, CalculonSystem)
    exe = validate(origins.execution, CalculonExecution)
    other = load_cluster(like)
    name, file = Path(system).stem, Path(system).name
    check_like(sys, other)
    _check_run(exe, sys, origins.execution)
    machine = {
        "device.yaml": device_fields(sys, name, file, other),
        "node.yaml": node_fields(sys, name, file, other, offloads=exe.activations_offload),
        "cluster.yaml": cluster_fields(sys, name, file, other),
    }
    title = Path(application).stem
    model = f"{title}-model.yaml" if f"{title}.yaml" in machine else f"{title}.yaml"
    plan = plan_fields(exe)
    try:
        make_plan(plan)
    except ConfigError as error:
        raise origins.of(error, Path()) from error
    return Imported(
        files={
            model: model_fields(app, exe, title, Path(application).name),
            **{name: fields for name, fields in machine.items() if fields is not None},
        },
        model=model,
        plan=plan,
        settings=software_settings(exe),
        remarks=(
            *_filled_in(origins),
            *workload_remarks(exe, sys),
            *machine_remarks(sys),
            f"energy, idle power: not in Calculon's files; they are those of {like}",
        ),
        origins=origins,
    )


def _filled_in(origins: Origins) -> Iterator[str]:
    """Say what files of the first versions do not state."""
    stated = origins.application.data
    if "feedforward" not in stated:
        yield "feedforward: not stated; 4 x hidden, as in the version of the file"
    if "attn_size" not in stated:
        yield "attn_size: not stated; hidden / attn_heads, as in the version of the file"
    for engine in ("matrix", "vector"):
        if isinstance(origins.system.data[engine].get("gflops_efficiency"), list):
            yield (
                f"{engine}.gflops_efficiency: names no number format; read as that of"
                f" {' and '.join(UNNAMED)}"
            )


def _check_run(execution: CalculonExecution, system: CalculonSystem, document: Document) -> None:
    """Raise ConfigError if the machine has not what the run needs."""
    for engine in ("matrix", "vector"):
        rates = getattr(system, engine).rates()
        if execution.datatype not in rates:
            raise document.error(
                f"the system's {engine} engine has no {execution.datatype} (it has:"
                f" {', '.join(rates)})",
                ("datatype",),
            )
    for name in ("tensor_par_net", "pipeline_par_net", "data_par_net"):
        tier = getattr(execution, name)
        if tier >= len(system.networks):
            raise document.error(
                f"found {tier}; the system has networks 0 to {len(system.networks) - 1}", (name,)
            )
    there = max(network.size for network in system.networks)
    if execution.num_procs > there:
        raise document.error(
            f"found {execution.num_procs}; the system's networks join {there} processors",
            ("num_procs",),
        )
