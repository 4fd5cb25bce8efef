"""``ridgeline run``: simulate one training step."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from ridgeline.cli.assignments import assignments
from ridgeline.cli.names import MachineIfAny, NetworkIfAny
from ridgeline.cli.number_options import Count, Whole
from ridgeline.cli.output import console, print_json, print_quantity, print_step, print_value
from ridgeline.cli.searched import DeviceName, with_device
from ridgeline.cli.software import ALL, SoftwareOrAll, print_stacks, tell_stack
from ridgeline.errors import RidgelineError
from ridgeline.verbosity import is_verbose

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ridgeline.network.transport import Transport
    from ridgeline.report.execution import ExecutionResult
    from ridgeline.report.fault_distribution import Draw
    from ridgeline.report.result import Result
    from ridgeline.study.launch.dry_run import DryRun
    from ridgeline.study.point import Point
    from ridgeline.workload.execution import Execution

MISFIT_STATUS = 3


def run_(  # noqa: PLR0915 - one statement an option
    model: NetworkIfAny = None,
    cluster: MachineIfAny = None,
    *,
    from_: Annotated[str | None, Parameter(name="--from")] = None,
    devices: Count | None = None,
    device: DeviceName = None,
    explain: Annotated[bool, Parameter(negative="")] = False,
    software: SoftwareOrAll = None,
    plan: str = "",
    layers: str | None = None,
    batch: Whole | None = None,
    precision: str | None = None,
    dataset: str | None = None,
    times: Literal["modelled", "measured"] | None = None,
    fault: Annotated[tuple[str, ...], Parameter(consume_multiple=False)] = (),
    processes: Count = 1,
    cluster_address: str | None = None,
    set_: Annotated[tuple[str, ...], Parameter(name="--set", consume_multiple=False)] = (),
    out: str | None = None,
    ledger: str | None = None,
    ops: Count | None = None,
    require_fit: Annotated[bool, Parameter(negative="")] = False,
    quantity: str | None = None,
    relative_to_one: str | None = None,
    most_micro_batches: Count | None = None,
    network: Literal["flows", "packets"] = "flows",
    transport: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Simulate one training step.

    Parameters
    ----------
    model
        A name from ``ridgeline list models``, a YAML file, or a file that another program wrote
        (docs/executions.md).
    cluster
        A cluster, node or device by name, a YAML file, or a network and its device: "Ring(16,
        50 GB/s, 500 ns) @ h100-sxm5-80gb" (docs/fabrics.md).
    from_
        Launch file of a training framework, which states model, plan and software
        (docs/launch-files.md): ``ridgeline run CLUSTER --from FILE``, or ``run MODEL CLUSTER
        --from FILE`` if the file names no model. Options on the command line override the file.
    devices
        With --from: number of devices of the job, if the file does not state it.
    explain
        With --from: print what became of every setting of the file.
    plan
        Fields of the plan: data=8,micro_batch=64,recompute=full ..., or a YAML file of them.
    layers
        Layers that are sharded differently from the plan: "fc*: data=1,tensor=8; ...".
    batch
        Samples of one step over all devices.
    precision
        fp32, tf32, fp16-mixed, bf16-mixed, bf16-true, fp8-mixed, fp8-dynamic, fp8-block-mixed,
        mxfp8-mixed, mxfp4-mixed, nvfp4-mixed, int8-mixed, ... For an execution: the number format
        of tasks that state none.
    dataset
        Data set that the input pipeline reads (``ridgeline list datasets``), or own for the
        model's.
    times
        For an execution: model the time of its tasks, or replay them as measured.
    fault
        A fault of the machine: "link node0.device0 nvswitch down", "rank 3 slow 1.5", "jitter
        exponential relative=0.05 seed=1" ... (docs/faults.md). Repeat it for more.
    processes
        With --fault jitter: processes on this machine that simulate its draws.
    cluster_address
        With --fault jitter: address of a Dask scheduler whose workers simulate its draws.
    set_
        Replace one field of the machine, model or software:
        cluster.device.memory.hbm.bandwidth="1.2 TB/s", software.gradients.bucket="40 MB". With
        --from also a variable that the file leaves open, or the job of the file that is meant.
        Repeat it for more fields.
    out
        Folder for the figures, the trace, the ledger and the result.
    ledger
        File for the ledger, .csv or .parquet: every event by op, pass, operand and place.
    ops
        Also list this many of the longest ops, each with the parts of its time: launch, fill,
        copy, arithmetic, stalls by memory level, exchange, barrier, drain (docs/breakdown.md).
    require_fit
        Exit with 3 if the step does not fit into memory.
    quantity
        Print one number alone, to its last digit: a field of the JSON by its dotted path
        (step_time_s, energy_j.total), or device_power_w, node_wall_w, ...; a factor may follow:
        samples_per_s*0.78.
    relative_to_one
        With --quantity scaling_efficiency: the plan on one or few devices that this step is
        compared with, and what else differs there: "data=8,global_batch=256;machine=dgx1-v100".
    most_micro_batches
        Simulate at most this many micro-batches of a step without a pipeline; each further one is
        taken to last as long as the last ones.
    network
        packets: simulate the messages between nodes packet by packet, each kind of collective by
        itself, and then the step with the times that result (docs/transport.md).
    transport
        With --network packets: plain, pfc, dcqcn, infiniband, spray, adaptive ..., and its fields:
        "dcqcn queue_pairs=4".
    json
        Print the result as JSON.
    """
    from ridgeline.parallel.plan.text import plan_fields
    from ridgeline.study.point import Point
    from ridgeline.workload.files import is_trace

    dry: DryRun | None = None
    model, cluster = _with_device(model, cluster, device, is_launch=from_ is not None)
    named = "" if software in {None, ALL} else str(software)
    if from_ is not None:
        from ridgeline.cli.launch import read_dry_run

        dry = read_dry_run(
            from_, (model or "", cluster or ""), set_, devices=devices, software=named,
            plan=plan_fields(plan, _strategy(layers, batch, precision)),
        )  # fmt: skip
        model, cluster, point = dry.point.model, dry.point.cluster, dry.point
    elif devices is not None or explain:
        raise RidgelineError("--devices and --explain are of a launch file: they need --from FILE")
    elif model is None or cluster is None:
        raise RidgelineError(
            "run needs a model and a cluster (ridgeline run resnet50 dgx1-v100 --batch 2048), or"
            " a launch file and a cluster (ridgeline run superpod-h100 --from train.sh)"
        )
    fields = {} if dry is not None else assignments(set_)
    if is_trace(model):
        from ridgeline.workload.execution import Execution
        from ridgeline.workload.files import load_model

        of_model = {p[len("model.") :]: v for p, v in fields.items() if p.startswith("model.")}
        if isinstance(execution := load_model(model, of_model), Execution):
            given = (plan, layers, batch, dataset, software)
            if any(option not in {"", None} for option in given):
                raise RidgelineError(
                    f"{model} is an execution: its tasks are already distributed, so it takes"
                    " none of --plan, --layers, --batch, --dataset and --software"
                )
            played = _transport(network, transport)
            return _play(execution, cluster, fields, times, precision, quantity, played, json=json)
    if times is not None:
        raise RidgelineError(f"--times is for an execution; {model} is a network")
    if dry is None:
        strategy = _strategy(layers, batch, precision)
        point = Point.parse(model, cluster, plan, strategy, fields, named)
    played = _transport(network, transport)
    if software == ALL:
        of_one = {
            "out": out, "ledger": ledger, "require-fit": require_fit or None, "quantity": quantity,
            "relative-to-one": relative_to_one, "ops": ops, "network packets": played,
        }  # fmt: skip
        for name, value in of_one.items():
            if value is not None:
                raise RidgelineError(f"--{name} is of one step, not of --software all")
        return _print_all(point, dataset, json=json)
    if played is not None:
        if fault or quantity is not None or relative_to_one is not None:
            raise RidgelineError(
                "--network packets goes with none of --fault, --quantity and --relative-to-one"
            )
        return _print_packets(point.simulate(dataset, fold=False), played, json=json)
    if fault:
        point = replace(point, overrides={**point.overrides, "cluster.faults": list(fault)})
    result = point.simulate(dataset, most_micro_batches=most_micro_batches)
    if relative_to_one is not None:
        from ridgeline.study.relative import One

        one = One.parse(relative_to_one)
        alone = one.point(point).simulate(most_micro_batches=most_micro_batches)
        return _print_efficiency(one.efficiency(result, alone), quantity, json=json)
    if dry is not None and software is None:
        result = replace(result, details=replace(result.details, chosen_by="the launch file"))
    if result.details.cluster.faults and quantity is None:
        from ridgeline.study.draws import Step, drawn

        draws = drawn(Step(point, dataset, most_micro_batches), result, processes, cluster_address)
        return _print_weather(point, result, draws, json=json)
    if processes > 1 or cluster_address is not None:
        raise RidgelineError('--processes and --cluster-address play draws of --fault "jitter ..."')
    written = []
    if out is not None:
        from ridgeline.report.bundle import write_bundle

        written = [str(path) for path in write_bundle(result, out)]
    if ledger is not None:
        result.ledger().write(ledger)
    if quantity is not None:
        print_quantity(result, quantity, json=json)
    elif json:
        _print_json(result, dry, ops)
    else:
        _print_result(result, dry, written, ledger, ops, explain=explain)
    return MISFIT_STATUS if require_fit and not result.fits else 0


def _transport(network: str, text: str | None) -> Transport | None:
    """Return the transport of packets; None at the level of flows."""
    if network == "flows":
        if text is not None:
            raise RidgelineError("--transport is of packets: add --network packets")
        return None
    from ridgeline.network.transport import transport_of

    return transport_of(text or "plain")


def _print_packets(result: Result | ExecutionResult, transport: Transport, *, json: bool) -> int:
    """Print a step with what is sent between nodes packet by packet."""
    from ridgeline.report.tables import plain_table
    from ridgeline.study.packet_step import packet_step
    from ridgeline.units import show

    found = packet_step(result, transport)
    if json:
        print_json({**result.to_dict(), "packets": found.to_dict()})
        return 0
    screen = console()
    columns = ("bytes", "ranks", "groups", "flows", "packets", "factor", "pauses", "marked")
    table = plain_table({"sent": "left", **dict.fromkeys(columns, "right")})
    for one in found.calls:
        if not one.kept:
            table.add_row(
                f"{one.op} ({one.algorithm})", show(one.size_bytes, "B", 3), f"{one.ranks}",
                f"{one.groups}", show(one.flows_s, "s", 4), show(one.packets_s, "s", 4),
                f"{one.factor:.3f}", f"{one.pauses:,}", f"{one.marked:,}",
            )  # fmt: skip
    screen.print(table)
    reasons = Counter(one.kept for one in found.calls if one.kept)
    for reason, count in reasons.items():
        screen.print(f"{count} kinds stay flows: {reason}", soft_wrap=True, markup=False)
    screen.print(
        f"step {show(found.flows_s, 's', 4)} as flows, {show(found.packets_s, 's', 4)} with "
        f"packets ({found.packets_s / found.flows_s:.3f} x): {found.transport}",
        soft_wrap=True,
    )
    said = found.to_dict()
    screen.print(
        f"level: {said['level']}; known of its error: {said['known_error']}",
        soft_wrap=True, markup=False,
    )  # fmt: skip
    return 0


def _print_weather(point: Point, result: Result, draws: list[Draw], *, json: bool) -> int:
    """Print a step with its faults beside the one without them."""
    from ridgeline.report.fault_distribution import weather
    from ridgeline.units import show

    sound = replace(point, overrides={**point.overrides, "cluster.faults": []})
    details = result.details
    fold = len(details.lowered.classes) < details.plan.devices
    found = weather(result, sound.simulate(fold=fold).step_time_s, draws)
    if json:
        print_json({**result.to_dict(), "faults": found.to_dict()})
        return 0
    screen = console()
    print_step(result, screen)
    for line in found.faults:
        screen.print(f"fault: {line}", soft_wrap=True, markup=False)
    healthy = found.healthy_s or found.median_s
    screen.print(
        f"step without faults {show(healthy, 's', 4)}; with them {show(found.median_s, 's', 4)}"
        f" ({found.median_s / healthy:.3f} x)",
        soft_wrap=True,
    )
    if found.samples > 1:
        screen.print(
            f"of {found.samples} draws: median {show(found.median_s, 's', 4)}, 95th percentile"
            f" {show(found.p95_s, 's', 4)}, {show(found.least_s, 's', 4)} to"
            f" {show(found.most_s, 's', 4)}",
            soft_wrap=True,
        )
    if found.waited_for:
        ranks = ", ".join(f"{rank} ({share:.0%})" for rank, share in found.waited_for.items())
        screen.print(f"waited for, at collectives, were ranks {ranks}", soft_wrap=True)
    return 0


def _with_device(
    model: str | None, cluster: str | None, device: str | None, *, is_launch: bool
) -> tuple[str | None, str | None]:
    """Put a device on the cluster, which stands first where a launch file says the model."""
    if cluster is None and model is not None and is_launch:
        return with_device(model, device), None
    return model, None if cluster is None else with_device(cluster, device)


def _print_efficiency(value: float, quantity: str | None, *, json: bool) -> int:
    """Print how a step stands to one on fewer devices."""
    from ridgeline.study.relative import EFFICIENCY

    if quantity != EFFICIENCY:
        raise RidgelineError(f"--relative-to-one goes with --quantity {EFFICIENCY}")
    print_value(EFFICIENCY, value, json=json)
    return 0


def _print_ops(result: Result, most: int) -> None:
    from ridgeline.report.op_times import longest_ops
    from ridgeline.report.tables import plain_table
    from ridgeline.units import show

    headings = {"op": "left", "pass": "left", "in the step": "right", "share": "right"}
    table = plain_table({**headings, "limited by": "left", "parts of its time": "left"})
    for row in longest_ops(result, most):
        total_s = row.parts.total_s
        parts = ", ".join(
            f"{name} {s / total_s:.0%}" for name, s in row.parts.parts() if s >= 0.005 * total_s
        )
        time = show(row.step_s, "s", 4)
        table.add_row(row.op, row.pass_, time, f"{row.share:.1%}", row.limited_by, parts)
    console().print(table)


def _print_json(result: Result, dry: DryRun | None, ops: int | None) -> None:
    said = result.to_dict()
    if ops is not None:
        from ridgeline.report.op_times import longest_ops

        said["ops"] = [row.to_dict() for row in longest_ops(result, ops)]
    if not result.fits:
        from ridgeline.study.fitting_plan import what_would_fit

        said |= what_would_fit(result).to_dict()
    print_json(said if dry is None else {**said, "launch": dry.to_dict()})


def _print_result(
    result: Result,
    dry: DryRun | None,
    written: Sequence[str],
    ledger: str | None,
    ops: int | None,
    *,
    explain: bool,
) -> None:
    from ridgeline.report.summary import print_ledger
    from ridgeline.study.published_rows import measured_text, print_residuals

    screen = console()
    if dry is not None:
        from ridgeline.cli.launch import print_dry_run

        print_dry_run(dry, screen, explain=explain)
    after = []
    if not result.fits:
        from ridgeline.study.fitting_plan import what_would_fit

        after = list(what_would_fit(result).lines())
    if is_verbose():
        print_step(result, screen, after)
        print_residuals(result, screen)
    else:
        print_step(result, screen, [*after, measured_text(result)])
    if ops is not None:
        _print_ops(result, ops)
    if ledger is not None:
        print_ledger(result, screen)
        screen.print(f"wrote {ledger}", soft_wrap=True)
    if written:
        screen.print("wrote " + ", ".join(written), soft_wrap=True)


def _strategy(
    layers: str | None, batch: int | None, precision: str | None
) -> dict[str, str | int | None]:
    return {"layers": layers, "global_batch": batch, "precision": precision}


def _print_all(point: Point, dataset: str | None, *, json: bool) -> int:
    from ridgeline.study.stacks import compare_stacks

    found = compare_stacks(point, dataset, tell_stack)
    tell_stack("")
    if json:
        print_json(found.to_dict())
    else:
        print_stacks(found)
    return 0


def _play(
    execution: Execution,
    cluster: str,
    fields: dict[str, Any],
    times: Literal["modelled", "measured"] | None,
    format_: str | None,
    quantity: str | None,
    transport: Transport | None,
    *,
    json: bool,
) -> int:
    from ridgeline.network.resolve import load_cluster
    from ridgeline.simulation import simulate
    from ridgeline.study.point import check_path

    paths = {}
    for path, value in fields.items():
        root, rest = check_path(path)
        if root in {"plan", "software"}:
            raise RidgelineError(f"--set {path}: an execution has no {root}")
        if root == "cluster":
            paths[rest] = value
    result = simulate(execution, load_cluster(cluster, paths), times=times, format=format_)
    if transport is not None:
        return _print_packets(result, transport, json=json)
    if quantity is not None:
        print_quantity(result, quantity, json=json)
    elif json:
        print_json(result.to_dict())
    else:
        from ridgeline.report.summary import print_execution

        print_execution(result, console())
    return 0
