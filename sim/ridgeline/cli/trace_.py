"""``ridgeline trace``: read what other programs wrote, and write what they read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from ridgeline.cli.number_options import Whole
from ridgeline.cli.output import console, print_json
from ridgeline.cli.software import OPTION, Software, one_stack
from ridgeline.errors import ConfigError, RidgelineError

if TYPE_CHECKING:
    from ridgeline.workload.execution import Execution
    from ridgeline.workload.graph import Graph
    from ridgeline.workload.model import Model


def trace_(
    action: Literal["import", "export"],
    source: str,
    cluster: str | None = None,
    *,
    output: str | None = None,
    plan: str = "",
    batch: Whole | None = None,
    precision: str | None = None,
    software: Software = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Read a trace and say what is in it, or write one.

    Parameters
    ----------
    action
        import: print what a file contains, and write it to --output in ridgeline's own format.
        export: write a network as ridgeline's JSON; or, with a cluster, its simulated step as
        Chakra execution traces, one file a rank.
    source
        A network by name or file, or an execution.
    cluster
        Machine of the simulated step.
    output
        File to write: network.json, or step.et for step.0.et, step.1.et, ...
    plan
        Fields of the plan of the exported step.
    batch
        Samples of the simulated step; or the only batch size of the written network (default:
        any).
    precision
        Precision of the simulated step; or the only precision of the written network (default:
        all).
    json
        Print what was read as JSON.
    """
    from ridgeline.workload.execution import Execution
    from ridgeline.workload.files import load_model

    if action == "export" and output is None:
        raise ConfigError("export needs a file to write", field="--output")
    if cluster is None and software is not None:
        raise ConfigError("a program runs a step, which is exported with a cluster", field=OPTION)
    if cluster is not None:
        if action == "import":
            raise RidgelineError("import takes one file; a cluster is for the export of a step")
        execution = _step(source, cluster, plan, batch, precision, one_stack(software))
        _write_execution(execution, Path(output or ""))
        _print(_said(execution), json=json)
        return
    loaded = load_model(source)
    if output is not None:
        if isinstance(loaded, Execution):
            _write_execution(loaded, Path(output))
        else:
            _write_model(loaded, output, batch, precision)
    _print(_said(loaded), json=json)


def _step(
    source: str,
    cluster: str,
    plan: str,
    batch: int | None,
    precision: str | None,
    software: str,
) -> Execution:
    from ridgeline.report.as_execution import as_execution
    from ridgeline.study.point import Point

    more = {"global_batch": batch, "precision": precision}
    point = Point.parse(source, cluster, plan, more, {}, software)
    return as_execution(point.simulate(fold=False))


def _write_model(model: Model, output: str, batch: int | None, precision: str | None) -> None:
    from ridgeline.report.files import write_text
    from ridgeline.workload.trace.native import model_document, to_text

    if not output.lower().endswith(".json"):
        raise ConfigError("a network is written to a .json file", file=output)
    precisions = None if precision is None else [precision]
    write_text(output, to_text(model_document(model, precisions, batch)))


def _write_execution(execution: Execution, output: Path) -> None:
    from ridgeline.report.files import replacing, write_text
    from ridgeline.workload.trace import chakra_files, chakra_writer

    if output.suffix != ".et":
        raise ConfigError("an execution is written to .et files", file=str(output))
    prefix = output.name.removesuffix(".et")
    for index, rank in enumerate(execution.ranks.tolist()):
        with replacing(output.with_name(f"{prefix}.{rank}.et")) as temporary:
            temporary.write_bytes(chakra_writer.rank_bytes(execution, index))
    if execution.group_names:
        path = output.with_name(prefix + chakra_files.GROUPS_SUFFIX)
        write_text(path, chakra_writer.groups_text(execution))


def _said(loaded: Model | Execution) -> dict[str, Any]:
    """Return what a file holds, as plain values."""
    from ridgeline.workload.execution import Execution, TaskKind

    if isinstance(loaded, Execution):
        counts = {
            kind.name.lower(): int((loaded.kind == kind).sum())
            for kind in TaskKind
            if (loaded.kind == kind).any()
        }
        return {
            "execution": loaded.name,
            "ranks": len(loaded.ranks),
            "world": loaded.world,
            "tasks": loaded.n_tasks,
            **counts,
            "groups": len(loaded.group_names),
            "stated_flops": _exact(loaded.total_flops),
            "measured": loaded.measured,
            "notes": list(loaded.notes),
        }
    from ridgeline.workload.graph import Pass

    graph = _example(loaded)
    return {
        "network": loaded.name,
        "title": loaded.title,
        "parameters": graph.parameters,
        "forward_flops_per_sample": _exact(graph.flops(Pass.FORWARD) / graph.batch),
        "ops": len(graph.ops),
        "notes": list(graph.notes),
    }


def _exact(value: float) -> float | int:
    """Return a count as a whole number, if it is one."""
    return int(value) if float(value).is_integer() else value


def _example(model: Model) -> Graph:
    """Return a graph of the smallest batch that the network has."""
    from ridgeline.workload.trace.native import RecordedModel

    batch = model.network.smallest_batch
    if isinstance(model, RecordedModel):
        return model.recorded.sections[0].graph(batch, model.name)
    return model.forward(batch)


def _print(values: dict[str, Any], *, json: bool) -> None:
    if json:
        print_json(values)
        return
    screen = console()
    for name, value in values.items():
        if value not in ([], ""):
            screen.print(f"{name.replace('_', ' '):26}{_text(value)}", soft_wrap=True, markup=False)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return "; ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int | float) else str(value)
