"""``ridgeline run``: simulate one training step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from ridgeline.cli.output import console, print_json
from ridgeline.cli.whole import Whole
from ridgeline.errors import RidgelineError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ridgeline.workload.execution import Execution

MISFIT_STATUS = 3


def run_(
    model: str,
    cluster: str,
    *,
    plan: str = "",
    layers: str | None = None,
    batch: Whole | None = None,
    precision: str | None = None,
    dataset: str | None = None,
    times: Literal["modelled", "measured"] | None = None,
    set_: Annotated[tuple[str, ...], Parameter(name="--set", consume_multiple=False)] = (),
    out: str | None = None,
    ledger: str | None = None,
    require_fit: Annotated[bool, Parameter(negative="")] = False,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Simulate one training step.

    Parameters
    ----------
    model
        A name from ``ridgeline list models``, a YAML file, or a file that another program wrote
        (docs/executions.md).
    cluster
        A cluster, node or device by name, or a YAML file.
    plan
        Fields of the plan: data=8,micro_batch=64,overlap=false ..., or a YAML file of them.
    layers
        Layers that are divided otherwise than the plan says: "fc*: data=1,tensor=8; ...".
    batch
        Samples of one step over all devices.
    precision
        fp32, tf32, fp16-mixed, bf16-mixed, fp8-mixed, fp8-dynamic, nvfp4-mixed, int8-mixed or
        flex16+5; of an execution, the number format of tasks that state none (bf16, fp16, ...).
    dataset
        Data set that the step is fed from (``ridgeline list datasets``), or own for the model's.
    times
        Of an execution: price its tasks anew, or replay them as measured.
    set_
        Replace one field of the machine or model: cluster.device.memory.hbm.bandwidth="1.2 TB/s".
    out
        Folder for the figures, the trace, the ledger and the result.
    ledger
        File for the ledger, .csv or .parquet: every event by op, pass, operand and place.
    require_fit
        Exit with 3 if the step does not fit into memory.
    json
        Print the result as JSON.
    """
    from ridgeline.study.point import Point
    from ridgeline.workload.files import is_trace

    fields = _assignments(set_)
    if is_trace(model):
        from ridgeline.workload.execution import Execution
        from ridgeline.workload.files import load_model

        of_model = {p[len("model.") :]: v for p, v in fields.items() if p.startswith("model.")}
        if isinstance(execution := load_model(model, of_model), Execution):
            if plan or layers or batch is not None or dataset is not None:
                raise RidgelineError(
                    f"{model} is an execution: its tasks are already distributed, so it takes"
                    " none of --plan, --layers, --batch and --dataset"
                )
            return _play(execution, cluster, fields, times, precision, json=json)
    if times is not None:
        raise RidgelineError(f"--times is for an execution; {model} is a network")
    point = Point.parse(
        model,
        cluster,
        plan,
        {"layers": layers, "global_batch": batch, "precision": precision},
        fields,
    )
    result = point.simulate(dataset)
    if out is not None:
        from ridgeline.report.bundle import write_bundle

        written = write_bundle(result, out)
    if ledger is not None:
        result.ledger().write(ledger)
    if json:
        said = result.to_dict()
        if not result.fits:
            from ridgeline.study.fit import what_would_fit

            said |= what_would_fit(result).to_dict()
        print_json(said)
    else:
        from ridgeline.report.summary import print_summary
        from ridgeline.study.published import print_residuals

        screen = console()
        print_summary(result, screen)
        if not result.fits:
            from ridgeline.study.fit import print_advice, what_would_fit

            print_advice(what_would_fit(result), screen)
        print_residuals(result, screen)
        if ledger is not None:
            from ridgeline.report.summary import print_ledger

            print_ledger(result, screen)
            screen.print(f"wrote {ledger}", soft_wrap=True)
        if out is not None:
            screen.print("wrote " + ", ".join(str(path) for path in written), soft_wrap=True)
    return MISFIT_STATUS if require_fit and not result.fits else 0


def _play(
    execution: Execution,
    cluster: str,
    fields: dict[str, Any],
    times: Literal["modelled", "measured"] | None,
    format_: str | None,
    *,
    json: bool,
) -> int:
    from ridgeline.hardware.load import load_cluster
    from ridgeline.simulation import simulate
    from ridgeline.study.point import check_path

    paths = {}
    for path, value in fields.items():
        root, rest = check_path(path)
        if root == "plan":
            raise RidgelineError(f"--set {path}: an execution has no plan")
        if root == "cluster":
            paths[rest] = value
    result = simulate(execution, load_cluster(cluster, paths), times=times, format=format_)
    if json:
        print_json(result.to_dict())
    else:
        from ridgeline.report.summary import print_execution

        print_execution(result, console())
    return 0


def _assignments(texts: Sequence[str]) -> dict[str, Any]:
    from ridgeline.errors import ConfigError

    fields: dict[str, Any] = {}
    for text in texts:
        name, value = _assignment(text)
        if name in fields:
            raise ConfigError(f"the field {name!r} is given twice", field="--set")
        fields[name] = value
    return fields


def _assignment(text: str) -> tuple[str, Any]:
    """Part ``path=value``; the value is read as YAML, as it would stand in a file."""
    from ridgeline.config import parse_yaml
    from ridgeline.errors import ConfigError

    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not name or not value:
        raise ConfigError(f"expected path=value, found {text!r}", field="--set")
    return name, parse_yaml(value, f"--set {name}").data
