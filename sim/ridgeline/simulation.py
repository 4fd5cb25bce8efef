"""The one function that joins the rooms: model, cluster, plan and software in, Result out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, overload

from pydantic import BaseModel

from ridgeline.engine.program import Program
from ridgeline.engine.timeline import Timeline
from ridgeline.errors import ConfigError, CutOffError, RidgelineError, short
from ridgeline.hardware.cluster import Cluster
from ridgeline.hardware.device import Device, MemoryLevel
from ridgeline.network.cluster_topology import from_cluster
from ridgeline.network.faults import read_faults
from ridgeline.network.resolve import load_cluster
from ridgeline.network.topology import Topology
from ridgeline.parallel.lower import Lowered, lower
from ridgeline.parallel.partition.pipeline_partition import Cut
from ridgeline.parallel.plan.default_precision import default_precision, unasked_notes
from ridgeline.parallel.plan.plan import Plan
from ridgeline.parallel.plan.programmed import programmed
from ridgeline.parallel.plan.resolved import ResolvedPlan, resolved
from ridgeline.parallel.plan.stack_choice import check_stack, choose_stack
from ridgeline.parallel.plan.update_rule import update_rule
from ridgeline.parallel.slow_ranks import with_slow_ranks
from ridgeline.report.accounting import (
    energy_account,
    fullest_account,
    kept_account,
    memory_account,
    time_account,
    traffic_account,
)
from ridgeline.report.physical_bounds import check_ledger
from ridgeline.report.result import Details, Result
from ridgeline.software.stack import Stack
from ridgeline.workload.execution import Execution
from ridgeline.workload.files import load_model
from ridgeline.workload.graph import Graph
from ridgeline.workload.model import Model

if TYPE_CHECKING:
    from ridgeline.parallel.executions.lower import Times
    from ridgeline.report.execution import ExecutionResult
    from ridgeline.workload.dataset import DataSet


@overload
def simulate(
    model: Model | str | Path,
    cluster: Cluster | str | Path,
    plan: Plan,
    *,
    software: Stack | str | None = None,
    fold: bool = True,
    reference: bool = False,
    dataset: str | DataSet | None = None,
    most_micro_batches: int | None = None,
) -> Result: ...


@overload
def simulate(
    model: Execution,
    cluster: Cluster | str | Path,
    plan: None = None,
    *,
    reference: bool = False,
    times: Times | None = None,
    format: str | None = None,
) -> ExecutionResult: ...


def simulate(
    model: Model | Execution | str | Path,
    cluster: Cluster | str | Path,
    plan: Plan | None = None,
    *,
    software: Stack | str | None = None,
    fold: bool = True,
    reference: bool = False,
    dataset: str | DataSet | None = None,
    most_micro_batches: int | None = None,
    times: Times | None = None,
    format: str | None = None,
) -> Result | ExecutionResult:
    """Simulate one training step, or play a traced execution.

    Parameters
    ----------
    model
        From `load_model`, or a name or path for it. An `Execution` says itself how it is
        distributed: it needs no plan, and a plan with it is an error.
    cluster
        From `load_cluster`, or a name or path for it.
    plan
        How the step is distributed; its ``global_batch`` is the samples of the step.
    software
        The program that runs the step: a `Stack`, or a name or path for it. None: the usual one of
        the machine or of the network (`plan.stack_choice`), else the bound ``ideal``.
    fold
        Simulate one of each class of equivalent ranks; False simulates every rank.
    reference
        Play the program on the slow SimPy engine instead of the compiled one.
    dataset
        Where the samples come from: a name in ``models/datasets/``, a path, or "own" for the one
        that the network is usually trained on. The step then waits for reading and decoding where
        these are slower. None: input is not modelled, and the manifest says so.
    most_micro_batches
        How many micro-batches of a step are played, where it has more and no pipeline; each further
        one takes as long as the last ones. None: all.
    times, format
        Of an execution: whether its tasks are priced anew ("modelled") or replayed ("measured"),
        and the number format of tasks that state none; see `parallel.executions.lower`.

    Returns
    -------
    Result or ExecutionResult
        A plan that does not fit into memory is a finding, not an error: ``fits`` is False.

    Raises
    ------
    RidgelineError
        If the cluster has too few devices, or cannot do the plan's number format.
    """
    model = load_model(model) if isinstance(model, str | Path) else model
    cluster = load_cluster(cluster) if isinstance(cluster, str | Path) else cluster
    _check_types(model, cluster, plan)
    if isinstance(model, Execution):
        if dataset is not None:
            raise RidgelineError(f"{model.name} is an execution, which reads no data set")
        if software is not None:
            raise RidgelineError(
                f"{model.name} is an execution: its program has run, it takes none"
            )
        if plan is not None:
            raise RidgelineError(
                f"{model.name} is an execution: its tasks are already distributed, so it takes no"
                " plan"
            )
        return _play(model, cluster, times, format, reference=reference)
    if times is not None or format is not None:
        raise RidgelineError(f"times and format are for an execution; {model.name} is a network")
    if plan is None:
        raise RidgelineError(
            f"{model.name} is a network: it needs a plan, such as Plan(global_batch=32)"
        )
    if plan.devices > cluster.max_devices:
        raise RidgelineError(
            f"the plan needs {plan.devices} devices, but {cluster.name} has {cluster.max_devices}"
        )
    stack, chosen_by = choose_stack(software, model, cluster, plan)
    run = resolved(plan, stack, cluster, model)
    precision = run.precision or default_precision(model.network.precision, cluster.device)
    unasked = [] if run.precision else unasked_notes(precision, cluster.device)
    run = run.model_copy(update={"precision": precision, "notes": (*run.notes, *unasked)})

    def played(run: ResolvedPlan) -> Result:
        return _played(model, cluster, run, chosen_by, fold=fold, reference=reference)

    result = _whole(run, most_micro_batches, played)
    interval = run.stack.gradients.update_interval
    if interval != 1:
        share = 1.0 / interval if interval else 0.0
        result = _with_share_of_update(result, run, share, played)
    if wait_s := run.stack.host.step_wait:
        from ridgeline.report.extrapolated_step import with_wait

        result = with_wait(result, wait_s)
    return result if dataset is None else _fed(result, dataset)


def _check_types(model: object, cluster: object, plan: object) -> None:
    """Refuse what is no network, no cluster and no plan, before something inside fails.

    Raises
    ------
    ConfigError
        With what was found, and what is expected.
    """
    for field, value, types, expected in (
        ("model", model, Model | Execution, "a network or execution of load_model, or its name"),
        ("cluster", cluster, Cluster, "a cluster of load_cluster, or its name"),
        ("plan", plan, Plan | None, "a Plan, such as Plan(data=8, global_batch=256)"),
    ):
        if not isinstance(value, types):
            kind = type(value).__name__
            raise ConfigError(f"expected {expected}; found {kind} {short(value)}", field=field)


def _whole(run: ResolvedPlan, most: int | None, played: _Played) -> Result:
    """Play a step; of one with more micro-batches than are asked for, the first ones."""
    if most is None or run.micro_batches <= most or run.pipeline > 1:
        return played(run)
    from ridgeline.report.extrapolated_step import lengthened

    if most < 2:
        raise RidgelineError(f"most_micro_batches must be at least 2, found {most}")

    def shorter(count: int) -> Result:
        batch = run.data * run.micro_batch_size * count
        fields = {"global_batch": batch, "micro_batch": run.micro_batch_size}
        return played(run.model_copy(update=fields))

    return lengthened(shorter(most), shorter(most // 2), run)


def _with_share_of_update(
    result: Result, run: ResolvedPlan, share: float, played: _Played
) -> Result:
    """Leave a step a share of its update.

    It is prolonged by its update against a step whose update is done by kernels for many tensors,
    less their time; copies of gradients and what adds them up come with every batch.
    """
    from ridgeline.report.extrapolated_step import with_shared_update

    few = min(run.micro_batches, _FEW) if run.pipeline == 1 else run.micro_batches
    batch = run.data * run.micro_batch_size * few
    short = {"global_batch": batch, "micro_batch": run.micro_batch_size}

    def with_settings(settings: dict[str, object]) -> Result:
        stack = run.stack.with_settings(settings)
        return played(run.model_copy(update={**short, "stack": stack}))

    quick = {"optimizer.impl": "foreach", "optimizer.loss_scale_check": False}
    alone = {**quick, "gradients.update_interval": 1, "gradients.bucket_copies": False}
    without_s = with_settings(quick).step_time_s - with_settings(alone).time_s["optimizer"]
    return with_shared_update(result, with_settings({}).step_time_s - without_s, share)


_FEW = 8  # micro-batches by which an update is timed
_Played = Callable[["ResolvedPlan"], Result]


def _played(
    model: Model,
    cluster: Cluster,
    run: ResolvedPlan,
    chosen_by: str,
    *,
    fold: bool,
    reference: bool,
) -> Result:
    """Compile and play one step."""
    step = play_step(model, cluster, run, run.stack, fold=fold, reference=reference)
    run, network, graph, lowered, timeline = step
    wide, device = run.widest(), cluster.device
    time = time_account(lowered, timeline, device)
    memory, capacity, fits = fullest_memory(lowered, timeline, device)
    idle_w = device.idle_power.value  # a device, on average
    if lowered.kinds:
        every = (one.idle_power.value for one in cluster.devices_of(run.devices))
        idle_w = math.fsum(every) / run.devices
    step_time_s = timeline.makespan_s
    useful = graph.useful_flops * wide.micro_batches * wide.data
    repeated = lowered.graph.recomputed_flops * wide.sharing / graph.useful_flops
    achieved = (
        useful
        * issued_share(lowered)
        / step_time_s
        / peak_flops_per_s(lowered, cluster, run.devices)
    )
    samples_per_s = run.global_batch / step_time_s
    if not lowered.kinds:
        check_ledger(timeline, device, run.devices)
    return Result(
        step_time_s=step_time_s,
        samples_per_s=samples_per_s,
        tokens_per_s=samples_per_s * graph.tokens_per_sample or None,
        flops_per_step=useful,
        mfu=achieved,
        hfu=achieved * (1 + repeated),
        time_s=time.parts_s,
        energy_j=energy_account(timeline, idle_w, run.devices),
        memory_bytes={**memory, "capacity": capacity},
        traffic_bytes=traffic_account(timeline),
        kept_bytes=kept_account(lowered, timeline),
        bound=next(iter(time.limits_s)),
        limits_s=time.limits_s,
        fits=fits,
        details=Details(network, graph, cluster, run, lowered, timeline, chosen_by=chosen_by),
    )


class SimulatedStep(NamedTuple):
    """A training step that the engine has played.

    Attributes
    ----------
    run
        The plan as its software stack runs it.
    network, graph
        The model as the stack writes it, and its training step.
    """

    run: ResolvedPlan
    network: Model
    graph: Graph
    lowered: Lowered
    timeline: Timeline


def play_step(
    model: Model,
    cluster: Cluster,
    plan: Plan,
    stack: Stack,
    *,
    topology: Topology | None = None,
    fold: bool = True,
    reference: bool = False,
) -> SimulatedStep:
    """Lower and play one training step; `simulate` makes an account of it.

    Parameters
    ----------
    topology
        Of the plan's devices, where it is drawn already.
    fold, reference
        As in `simulate`.

    Raises
    ------
    RidgelineError
        If the stack cannot run the plan, or the graph cannot be divided or cut so.
    """
    run = resolved(plan, stack, cluster, model)
    precision = run.precision or default_precision(model.network.precision, cluster.device)
    run = run.model_copy(update={"precision": precision})
    check_stack(run.stack, model, cluster, run)
    optimizer = update_rule(run, model)
    wide = run.widest()
    network = programmed(model, run.stack.kernels, cluster.device.year)
    graph = (
        network.inference(wide.micro_batch_size, precision)
        if wide.forward_only
        else network.training(wide.micro_batch_size, precision, optimizer)
    )
    topology = topology or shared_topology(cluster, run.devices)

    def played(
        fuller: tuple[float, ...] = (), cut: Cut | None = None, most_s: float = math.inf
    ) -> tuple[Lowered, Timeline]:
        of = wide if cut is None else wide.model_copy(update={"stage_balance": cut})
        try:
            lowered = lower(graph, of, cluster, topology, fold=fold, fuller=fuller)
        except CutOffError as error:
            if not cluster.faults:
                raise
            raise CutOffError(
                f"{cluster.name}: the job is cut off by its faults: {error}"
            ) from error
        if cluster.faults:
            lowered = with_slow_ranks(lowered, read_faults(cluster.faults).slow)
        timeline = _executor(reference)(lowered.program)
        if lowered.talks and timeline.makespan_s < most_s:  # contention makes no step shorter
            from ridgeline.parallel.comm.contention import with_contention

            channels = run.stack.overlap.contention
            timeline = with_contention(timeline, lowered, cluster.device, channels=channels)
        return lowered, timeline

    found = played()
    if found[0].memory_shares:
        from ridgeline.parallel.fitting_cut import that_fits

        found = that_fits(found, wide, cluster.device, played)
    if found[0].crowded_share:
        from ridgeline.parallel.shorter_cut import that_ends_sooner

        found = that_ends_sooner(found, wide, cluster.device, partial(played, ()))
    return SimulatedStep(run, network, graph, *found)


def _fed(result: Result, dataset: str | DataSet) -> Result:
    from ridgeline.report.pipeline import with_input
    from ridgeline.workload.dataset import load_dataset

    if dataset == "own":
        model = result.details.model
        dataset = model.network.dataset
        if not dataset:
            raise RidgelineError(f"{model.name} does not say what data set it is trained on")
    return with_input(result, load_dataset(dataset) if isinstance(dataset, str) else dataset)


def _play(
    execution: Execution,
    cluster: Cluster,
    times: Times | None,
    format_: str | None,
    *,
    reference: bool,
) -> ExecutionResult:
    from ridgeline.parallel.executions.lower import lower_execution
    from ridgeline.report.execution import execution_result

    if execution.world > cluster.max_devices:
        raise RidgelineError(
            f"{execution.name} has {execution.world} ranks, but {cluster.name} has"
            f" {cluster.max_devices} devices"
        )
    topology = from_cluster(cluster, execution.world)
    lowered = lower_execution(execution, cluster, topology, times=times, format=format_)
    return execution_result(lowered, _executor(reference)(lowered.program), cluster)


def _executor(reference: bool) -> Callable[[Program], Timeline]:
    if reference:
        from ridgeline.engine.reference import run_reference

        return run_reference
    from ridgeline.engine.executor import run

    return run


@dataclass(frozen=True, eq=False)
class _Network:
    """Devices of a cluster as a key: equal to those that differ in no way that the network knows.

    It knows the devices' design power, and the memory that copies of a collective go through.
    """

    cluster: Cluster
    n_devices: int

    def __hash__(self) -> int:
        return hash((self.cluster.name, self.cluster.node, self.n_devices))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Network) or self.n_devices != other.n_devices:
            return False
        a, b = self.cluster, other.cluster
        return a is b or (
            _same(a, b, {"nodes", "overrides"})
            and _same(a.nodes, b.nodes, {"devices"})
            and a.device.tdp == b.device.tdp
            and (self.n_devices == 1 or _far(a.device) == _far(b.device))
        )


def _far(device: Device) -> MemoryLevel:
    return device.memory[device.far_memory]


def _same(a: BaseModel, b: BaseModel, but: set[str]) -> bool:
    return all(getattr(a, f) == getattr(b, f) for f in type(a).model_fields if f not in but)


def shared_topology(cluster: Cluster, n_devices: int) -> Topology:
    """Draw the devices in use; the same network is drawn once."""
    return _topology(_Network(cluster, n_devices))


@lru_cache(maxsize=4)
def _topology(key: _Network) -> Topology:
    return from_cluster(key.cluster, key.n_devices)


def issued_share(lowered: Lowered) -> float:
    """Share of the matrix FLOPs of the graph that take time: less where zeros are left out."""
    pairs = [(flops, lowered.op_costs[i].issued) for i, flops in lowered.graph.contractions]
    done = math.fsum(flops for flops, _ in pairs)
    return math.fsum(flops * issued for flops, issued in pairs) / done if done else 1.0


def fullest_memory(
    lowered: Lowered, timeline: Timeline, device: Device
) -> tuple[dict[str, int], int, bool]:
    """Return what the fullest rank holds, its capacity, and whether every rank fits.

    On devices of several kinds the fullest is that with the least room left.
    """
    if not lowered.kinds:
        memory, capacity = memory_account(timeline), int(device.capacity_bytes)
        return memory, capacity, memory["total"] <= device.capacity_bytes
    sizes = [
        int(lowered.device_of_rank(rank, device).capacity_bytes)
        for rank in range(len(lowered.classes))
    ]
    memory, rank = fullest_account(timeline, sizes)
    return memory, sizes[rank], memory["total"] <= sizes[rank]


def peak_flops_per_s(lowered: Lowered, cluster: Cluster, devices: int) -> float:
    """Return the dense peak, in FLOP/s, of all devices of a step together."""
    first = matrix_peak(lowered, cluster.device)
    if not lowered.kinds:
        return first * devices
    each = [first]
    each += [
        matrix_peak(replace(lowered, op_costs=kind.op_costs), kind.device) for kind in lowered.kinds
    ]
    counts = map(len, lowered.classes)
    return math.fsum(each[kind] * n for kind, n in zip(lowered.kind_of_rank, counts, strict=True))


def matrix_peak(lowered: Lowered, device: Device) -> float:
    """Dense peak, in FLOP/s, of the engine and format that most of the matrix FLOPs run on."""
    done: dict[str, float] = {}
    for i, flops in lowered.graph.contractions:
        name = next(iter(lowered.op_costs[i].engine_work))
        done[name] = done.get(name, 0.0) + flops
    if not done:
        raise RidgelineError("the model has no matrix or convolution op, so it has no MFU")
    engine, _, format_ = max(done, key=lambda name: done[name]).rpartition(".")
    return device.engines[engine].rates[format_].value
