"""``ridgeline memory``: what one device holds during a training step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, cast

from cyclopts import Parameter

from ridgeline.cli.assignments import AdaptersText
from ridgeline.cli.names import DeviceIfAny, Network
from ridgeline.cli.number_options import Whole
from ridgeline.cli.output import console, print_json
from ridgeline.cli.searched import with_device
from ridgeline.cli.software import Software, one_stack
from ridgeline.errors import RidgelineError

if TYPE_CHECKING:
    from ridgeline.network.topology import Topology
    from ridgeline.parallel.checkpointing.offload import OffloadLink
    from ridgeline.parallel.memory.liveness_profile import StepMemory
    from ridgeline.parallel.plan.plan import Plan
    from ridgeline.parallel.plan.stack_choice import StackChoice
    from ridgeline.workload.model import Model


def memory_(
    model: Network,
    *,
    software: Software = None,
    plan: str = "",
    batch: Whole | None = None,
    precision: str | None = None,
    adapters: AdaptersText = None,
    recompute: str | None = None,
    offload: str | None = None,
    budget: str | None = None,
    fit: str | None = None,
    device: DeviceIfAny = None,
    convolutions: str | None = None,
    library: str | None = None,
    allocation: Literal["liveness", "at-once"] = "liveness",
    out: Annotated[str | None, Parameter(name=("--out", "--output"))] = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Print what one device holds at the fullest moment of a step, by kind.

    Parameters
    ----------
    model
        A name from ``ridgeline list models``, or a YAML file.
    plan
        Fields of the plan: micro_batch=64,optimizer=adam ...
    batch
        Samples of one step.
    precision
        fp32, tf32, fp16-mixed, bf16-mixed ...
    recompute
        What the backward pass computes again: none, full, selective, sqrt, optimal or budget.
    offload
        Activations that wait in the host's memory: none, all, conv, or modules of every layer,
        core_attn+moe_act (docs/memory.md).
    budget
        Most bytes that the step may hold, "12 GB": with --recompute budget, or in place of the
        capacity of the device of --fit.
    fit
        Machine, by name or file: find the fastest recomputation and offload that fit one of its
        devices.
    device
        With --fit: the device of a network that names none.
    convolutions
        Device, by name or file: add the work space of the fastest algorithm there of every fp32
        convolution.
    library
        With --convolutions: the library whose algorithms are taken: cudnn5, cudnn4 (without
        Winograd) or cudnn2 (matrix products only).
    allocation
        liveness: each tensor lives from the op that writes it to the last op that reads it;
        at-once: everything is allocated before the step begins, as in vDNN's baseline, offloadable
        tensors included.
    out
        File for a figure of the memory op by op, .svg, .png or .pdf.
    json
        Print the answer as JSON.
    """
    from ridgeline.hardware import load_device
    from ridgeline.kernels.cudnn_fp32_conv import Library
    from ridgeline.parallel.checkpointing.recompute import Mode
    from ridgeline.parallel.memory.liveness_profile import memory
    from ridgeline.parallel.plan.stack_choice import check_stack, choose_stack
    from ridgeline.parallel.plan.text import make_plan, plan_fields
    from ridgeline.workload.adapters import adapters_of
    from ridgeline.workload.files import load_network

    planned = make_plan(plan_fields(plan, {"global_batch": batch, "precision": precision}))
    network = load_network(model, {} if adapters is None else {"adapters": adapters_of(adapters)})
    if fit is not None:
        others = {
            "recompute": recompute, "offload": offload, "convolutions": convolutions,
            "library": library, "out": out,
            "allocation": None if allocation == "liveness" else allocation,
        }  # fmt: skip
        for name, value in others.items():
            if value is not None:
                raise RidgelineError(
                    f"--{name}: --fit looks for what fits by itself, and takes only --budget"
                )
        machine = with_device(fit, device)
        _print_fit(network, planned, machine, budget, one_stack(software) or None, json=json)
        return
    if device is not None:
        raise RidgelineError("--device: it is of --fit, whose machine has devices")
    choice = choose_stack(one_stack(software) or None, network, None, planned)
    check_stack(choice.stack, network, None, planned)
    result = memory(
        network,
        planned,
        recompute=cast("Mode | None", recompute or ("budget" if budget else None)),
        offload=offload,
        budget_bytes=_budget_bytes(budget),
        convolutions=None if convolutions is None else load_device(convolutions),
        library=cast("Library | None", library),
        software=choice.stack,
    )
    if allocation == "at-once":
        if out is not None:
            raise RidgelineError("--out: --allocation at-once has no moments to draw")
        _print_at_once(result, choice, json=json)
        return
    if out is not None:
        from ridgeline.report.figures.memory import held
        from ridgeline.report.figures.result import save

        save(held(result), out)
    if json:
        print_json({**result.to_dict(), **_of_stack(choice)})
    else:
        _print(result, choice)
        if out is not None:
            console().print(f"wrote {out}", soft_wrap=True)


def _of_stack(choice: StackChoice) -> dict[str, str]:
    return {"software": choice.stack.name, "software_chosen_by": choice.chosen_by}


def _budget_bytes(budget: str | None) -> float | None:
    from ridgeline.units import parse

    size = None if budget is None else parse(budget, "B")
    if size is not None and size <= 0:
        raise RidgelineError(f"--budget: must be more than 0 B, found {budget}")
    return size


def _print_at_once(result: StepMemory, choice: StackChoice, *, json: bool) -> None:
    """Print what a step takes whose tensors are all allocated before it begins."""
    from ridgeline.report.tables import plain_table
    from ridgeline.units import show

    graph, whole = result.graph, result.at_once
    if json:
        named = {"model": graph.name, "batch": graph.batch, "precision": graph.precision}
        print_json({**named, "at_once_bytes": whole.to_dict(), **_of_stack(choice)})
        return
    screen = console()
    screen.print(f"{graph.name}, batch {graph.batch}, {graph.precision}: all allocated at once")
    screen.print(choice.text, soft_wrap=True)
    table = plain_table({"for the whole step": "left", "bytes": "right", "share": "right"})
    parts = ("feature_maps", "gradient_maps", "weights", "weight_gradients", "workspace", "total")
    for name in parts:
        size = getattr(whole, name)
        table.add_row(
            name.replace("_", " "), show(float(size), "B", 4), f"{size / whole.total:.1%}"
        )
    screen.print(table)
    screen.print(f"{whole.map_share:.1%} are maps and their work space: all but weights")
    away = show(float(whole.offloadable), "B", 4)
    screen.print(f"{away} of the feature maps can wait in the host's memory (--offload all)")


def _print_fit(
    network: Model,
    plan: Plan,
    machine: str,
    budget: str | None,
    software: str | None,
    *,
    json: bool,
) -> None:
    """Print the fastest step that fits into a device of a machine, of what the software computes.

    Its precision and its kernels count, not its allocator and its buffers.
    """
    from ridgeline.network.cluster_topology import from_cluster
    from ridgeline.network.resolve import load_cluster
    from ridgeline.parallel.checkpointing.offload import copied_bytes
    from ridgeline.parallel.checkpointing.offload_fit import fastest_fit
    from ridgeline.parallel.memory.liveness_profile import training_graph_of
    from ridgeline.parallel.op_pricer import OpPricer
    from ridgeline.parallel.plan.programmed import programmed
    from ridgeline.parallel.plan.resolved import resolved
    from ridgeline.parallel.plan.stack_choice import check_stack, choose_stack
    from ridgeline.simulation import simulate
    from ridgeline.units import show

    cluster = load_cluster(machine)
    device = cluster.device
    choice = choose_stack(software, network, cluster, plan)
    run = resolved(plan, choice.stack, cluster, network)
    check_stack(run.stack, network, cluster, run)
    pricer = OpPricer(device)
    fit = fastest_fit(
        training_graph_of(programmed(network, run.stack.kernels, device.year), run),
        _budget_bytes(budget) or device.capacity_bytes,
        lambda graph: [cost.time_s(device) for cost in pricer.costs(graph)],
        _host_link(from_cluster(cluster, 1)),
    )
    away = copied_bytes(fit.graph)
    step_s, is_played = fit.time.step_s, fit.recompute != "budget" and fit.offload != "few"
    if is_played:  # what a plan can say is asked of the same simulation as ``run`` asks
        how = {"recompute": fit.recompute, "offload": fit.offload}
        step_s = simulate(
            network, cluster, plan.model_copy(update=how), software=choice.stack
        ).step_time_s
    said = {
        "model": fit.graph.name,
        "batch": fit.graph.batch,
        "recompute": fit.recompute,
        "offload": fit.offload,
        "peak_bytes": fit.peak_bytes,
        "offloaded_bytes": away,
        "step_time_s": step_s,
        "step_time_is_simulated": is_played,
        "stall_s": fit.time.stall_s,
        **_of_stack(choice),
    }
    if json:
        print_json(said)
        return
    screen = console()
    screen.print(f"{said['model']}, batch {said['batch']}: fastest that fits into {device.name}")
    screen.print(choice.text, soft_wrap=True)
    gone = show(float(away), "B", 4)
    screen.print(
        f"recompute {fit.recompute}, offload {fit.offload}: {gone} go to the host and back"
    )
    step, stall = show(step_s, "s", 4), show(fit.time.stall_s, "s", 4)
    places = "one device" if plan.devices == 1 else f"{plan.devices} devices"
    screen.print(
        f"holds {show(float(fit.peak_bytes), 'B', 4)}; a step on {places} takes {step}, of which "
        f"it waits {stall} for copies"
    )
    if not is_played:
        screen.print(
            "no plan can say this, so the time is that of one micro-batch's ops one after the"
            " other, with their copies, and not a simulated step",
            soft_wrap=True,
        )


def _host_link(topology: Topology) -> OffloadLink | None:
    """Return the link of a device to its host; None: a network has none, as inline text."""
    from ridgeline.parallel.checkpointing.offload import host_link

    if "host" not in topology.vertex_kinds:
        return None
    return host_link(topology)


def _print(result: StepMemory, choice: StackChoice) -> None:
    from ridgeline.report.tables import plain_table
    from ridgeline.units import show

    screen = console()
    said = result.to_dict()
    screen.print(f"{said['model']}, batch {said['batch']}, {said['precision']}: one device")
    screen.print(choice.text, soft_wrap=True)
    kinds = plain_table({"at the fullest moment": "left", "bytes": "right", "share": "right"})
    total = result.peak["total"]
    for kind, size in result.peak.items():
        kinds.add_row(kind, show(float(size), "B", 4), f"{size / total:.1%}")
    screen.print(kinds)
    screen.print(f"while {said['fullest_op']} runs", markup=False)
    tensors = plain_table({"largest tensors there": "left", "bytes": "right"})
    for name, size in result.largest:
        tensors.add_row(name, show(float(size), "B", 4))
    screen.print(tensors, markup=False)
    kept = show(float(said["kept_activation_bytes"]), "B", 4)
    screen.print(f"{kept} are kept from the forward to the backward pass")
    if said["recompute_share"]:
        screen.print(f"{said['recompute_share']:.1%} more matrix FLOPs are done for it")
    if said["offloaded_bytes"]:
        away = show(float(said["offloaded_bytes"]), "B", 4)
        screen.print(f"{away} go to the host and come back")
