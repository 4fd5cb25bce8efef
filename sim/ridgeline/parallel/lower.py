"""Lowering: a training graph, a plan and a cluster become a Program for the engine.

The graph is divided between the devices of an op (`shard`), told what to compute again
(`recompute`), and cut into stages (`partition`). Each stage becomes a few blocks of tasks: what is
done once at the beginning, forward and backward of one micro-batch, the updates. The pipeline's
schedule says in which order they are played; they are copied as arrays, so that a step of a
million tasks takes no longer to write than its blocks. The same step is written once (`draft`); the
prices of its ops are filled in for each device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ridgeline.engine.builder import ProgramBuilder
from ridgeline.engine.program import Ints, Program
from ridgeline.errors import ConfigError
from ridgeline.hardware.cluster import Cluster
from ridgeline.hardware.device import Device
from ridgeline.kernels import OpCost
from ridgeline.kernels.cache_residency import NONE_STAY, Staying
from ridgeline.kernels.cost import peak_rates
from ridgeline.kernels.op_signature import OpSignature
from ridgeline.network.faults import Faults, read_faults
from ridgeline.network.schedule import CollectiveSchedule
from ridgeline.network.topology import Topology
from ridgeline.parallel.checkpointing.host_updates import HostRate
from ridgeline.parallel.checkpointing.mode_text import WEIGHED
from ridgeline.parallel.checkpointing.offload import check_offload
from ridgeline.parallel.checkpointing.recompute import with_recompute
from ridgeline.parallel.comm.comm_cost import FarMemory, Talk, Wires
from ridgeline.parallel.comm.stragglers import waited
from ridgeline.parallel.comm.symmetry import Symmetry, symmetry_of
from ridgeline.parallel.comm.usual_collectives import PROBE_BYTES
from ridgeline.parallel.emit.async_pipeline import is_endless
from ridgeline.parallel.emit.block_emitter import BlockEmitter
from ridgeline.parallel.emit.host_launches import HostEmitter
from ridgeline.parallel.emit.rank_group import COLLECTIVE
from ridgeline.parallel.emit.step_emitter import StepEmitter
from ridgeline.parallel.emit.step_template import StepTemplate, Subject, draft_of
from ridgeline.parallel.fused_layers import with_fused_layers
from ridgeline.parallel.memory.communicators import with_communicators
from ridgeline.parallel.op_pricer import OpenRows, OpPricer
from ridgeline.parallel.pace import pace_of, replicas_of, room_of, with_waits
from ridgeline.parallel.partition.chain import units
from ridgeline.parallel.partition.overheads import OpTimes, Overheads, overheads_of
from ridgeline.parallel.partition.partition_dp import Pace
from ridgeline.parallel.partition.pipeline_partition import (
    Cut,
    PipelinePartition,
    ReplicaShares,
    partition,
)
from ridgeline.parallel.partition.stage_of import places
from ridgeline.parallel.pass_manager import run_passes
from ridgeline.parallel.passes.optimizer_kernels import ISSUED
from ridgeline.parallel.plan.mesh import Mesh
from ridgeline.parallel.plan.mixtures import mixture_degree
from ridgeline.parallel.plan.plan import Plan
from ridgeline.parallel.plan.replicas import counts_of
from ridgeline.parallel.plan.resolved import ResolvedPlan, resolved
from ridgeline.parallel.schedule import SCHEDULES
from ridgeline.parallel.sharding.divide import ShardedGraph, ShardingSpec, divide
from ridgeline.parallel.sharding.experts import expert_weights
from ridgeline.parallel.sharding.shard import COLLECTIVES
from ridgeline.parallel.size import check_size
from ridgeline.software.stack import Stack
from ridgeline.workload.graph import Graph, Op, Pass, Same

_MOST_TASKS = 4_000_000  # of a step whose ranks are of several classes
_MOST_WRITTEN = 300_000  # tasks of one micro-batch of it, which are written one by one

__all__ = ["COLLECTIVE", "Lowered", "lower"]


class Moving(NamedTuple):
    """What it is to move something in a tensor-parallel group.

    Attributes
    ----------
    flops_per_byte
        FLOPs that a device does while the group moves one byte.
    message_bytes
        Bytes that it could move in the fixed time of a gather; an all-reduce has twice that time.
    """

    flops_per_byte: float
    message_bytes: float


@dataclass(frozen=True)
class Lowered:
    """A Program and what a reader needs to explain its Timeline.

    Attributes
    ----------
    program
        What the engine plays.
    graph
        Training graph of one micro-batch, as the devices of one pipeline do it together.
    op_costs
        Price of every op of the graph, in graph order.
    cost_of_row
        Op price behind each cost row of the program; none for communication.
    dimension_of_row
        Between which devices the communication of a cost row goes: a dimension of the plan.
    talks
        What a communication task is, by its cost row and label.
    classes
        Ranks that each simulated rank stands for.
    schedules
        The collectives at the end of one step, in the order in which they are issued.
    whole
        Kinds of ops that could not be divided by `tensor`, and how many.
    fastest_s
        Where there are more classes of ranks than can be afforded, and the slowest group stands
        for all: by cost row, what the fastest takes alone.
    kinds
        Of a step on several kinds of devices all but the first.
    kind_of_row, kind_of_rank
        Number of the kind of a cost row that is not of the first, and of each simulated rank.
    staying_bytes
        Memory level -> bytes of weights of a stage that stay there while all micro-batches pass.
    shortest_cut
        Seconds of the pipeline that is cut wherever it ends first, over those of one that a plan
        has cut otherwise.
    memory_shares
        What each stage's devices hold over their capacity, as far as the cut knows; of a plan that
        leaves the cut open.
    shortest_memory_share
        Of a plan that has cut otherwise, what the fullest device of that pipeline would hold; 0:
        not known.
    crowded_share
        By what share the pipeline is longer if all that it sends takes twice as long; of a plan
        that leaves the cut open.
    cut_as
        How a step is cut whose plan leaves it open, if as by a cut that a plan can name
        (`shorter_cut`).
    """

    program: Program
    graph: Graph
    op_costs: tuple[OpCost, ...]
    cost_of_row: dict[int, OpCost]
    dimension_of_row: dict[int, str]
    talks: dict[tuple[int, str], Talk]
    classes: tuple[tuple[int, ...], ...]
    schedules: tuple[CollectiveSchedule, ...]
    whole: dict[str, int] = field(default_factory=dict)
    fastest_s: dict[int, float] = field(default_factory=dict)
    staying_bytes: dict[str, float] = field(default_factory=dict)
    shortest_cut: float = 1.0
    memory_shares: tuple[float, ...] = ()
    shortest_memory_share: float = 0.0
    crowded_share: float = 0.0
    cut_as: Cut | None = None
    kinds: tuple[KindOfDevice, ...] = ()
    kind_of_row: dict[int, int] = field(default_factory=dict)
    kind_of_rank: tuple[int, ...] = ()

    def device_of_row(self, row: int, first: Device) -> Device:
        """Return the device that a cost row is of; `first` is that of the first kind."""
        kind = self.kind_of_row.get(row, 0)
        return self.kinds[kind - 1].device if kind else first

    def device_of_rank(self, rank: int, first: Device) -> Device:
        """Return the device of a simulated rank; `first` is that of the first kind."""
        kind = self.kind_of_rank[rank] if self.kind_of_rank else 0
        return self.kinds[kind - 1].device if kind else first

    @property
    def ops(self) -> tuple[Op, ...]:
        """Every op of the graph, in graph order."""
        return self.graph.ops


def lower(
    graph: Graph,
    plan: Plan,
    cluster: Cluster,
    topology: Topology,
    *,
    fold: bool = True,
    fuller: tuple[float, ...] = (),
) -> Lowered:
    """Distribute one training step.

    Parameters
    ----------
    graph
        Training graph of one micro-batch.
    plan
        As it is run (`plan.resolved`); a plan alone is run by a program without costs.
    fold
        Simulate one of each class of equivalent ranks (True), or every rank.
    fuller
        How many times what a cut is known to hold each stage's devices held of another one.

    Raises
    ------
    ConfigError
        If the graph can not be divided or cut as the plan says.
    """
    plan = with_communicators(resolved(plan), topology)
    launch_s = plan.stack.host.launch_time * cluster.nodes.host.issue.value
    idle_s = 0.0 if plan.stack.host.async_launch else launch_s
    kinds, kind_of_rank = kinds_of(cluster, plan.devices)
    prices, *others = (OpPricer(kind, waited(plan), idle_s) for kind in kinds)
    # Each replica has messages of its own, and chance is of every rank alone.
    faults = read_faults(cluster.faults)
    fold = fold and not plan.replicas and not faults.jitter
    unlike = unlike_ranks(kind_of_rank, faults)
    mixture = mixture_degree(graph, plan)
    name, mesh = cluster.device.far_memory, Mesh.of(plan, mixture)
    far = FarMemory(prices.accounts[name], prices.resources[name])
    wires = Wires(ProgramBuilder(), topology, far)
    division = ShardingSpec(
        expert=plan.expert,
        context=plan.context,
        tensor=plan.tensor,
        sequence=plan.sequence > 1,
        **moving(plan, cluster, wires, mesh)._asdict(),
        layers=plan.layers,
        ring=plan.cp_comm_type == "ring",
        grid=plan.grid,
        shared_statistics=plan.stack.kernels.sync_batch_norm,
        imbalance=plan.expert_load_factor,
        mixture=mixture,
        two=plan.tensor_grid,
        once=plan.stack.moe.dispatch == "node-limited",
        folded=0 < plan.expert_tensor_parallel < plan.tensor,
    )
    if graph.backwards and plan.pipeline * plan.virtual_stages > 1:
        raise ConfigError(
            f"{graph.name} has {len(graph.backwards)} backward passes a step, which are not cut"
            " into stages; allowed: pipeline=1, with data, tensor, context and expert parallelism",
            field="plan.pipeline",
        )
    sharded = _divided(Same(graph), division)
    n_parts = plan.pipeline * plan.virtual_stages
    weighed = None
    if plan.recompute.startswith(WEIGHED):
        weighed = tuple(_waited_s(sharded.graph, prices, wires, mesh, plan.stack))
    local = _recomputed(Same(sharded.graph), plan.recompute, n_parts, weighed)
    check_offload(local, plan.offload)
    local = run_passes(local, plan.stack, cluster.device)
    local = with_fused_layers(local, plan, prices, several_kinds=bool(others))
    costs = prices.costs(local)
    issue_s = launch_s if plan.stack.host.async_launch else 0.0
    sizes = np.array([int(kind.capacity_bytes) for kind in kinds])[kind_of_rank]
    cut = _cut_of(local, costs, plan, PipelineCosts(prices, wires, mesh, issue_s, sizes, fuller))
    _check_ties(graph.name, plan, cut)
    staying = tuple(  # on devices of several kinds, whose caches differ, nothing stays
        NONE_STAY if others else prices.staying(part.graph, plan.micro_batches, plan.virtual_stages)
        for part in cut.parts
    )
    if n_parts == 1 and staying[0].share:
        costs = prices.costs(local, staying[0])

    several = fold and plan.devices > 1
    host_rate = HostRate.of(cluster.nodes, plan.devices) if plan.optimizer_offload else None

    def write() -> StepTemplate:
        symmetry = _symmetry(topology, plan, mesh, len(local.ops), unlike) if several else None
        while True:
            symmetry = _usable(symmetry, faults, local, plan)
            builder = ProgramBuilder()
            prices.add_to(builder)
            wires, rows = Wires(builder, topology, far, symmetry), OpenRows(builder, kinds)
            draft = _written(rows, wires, mesh, plan, cut, sharded, launch_s, staying, host_rate)
            if symmetry is None or not symmetry.missed:
                return draft
            symmetry.refine()

    kept = (*prices.kept, *(o.kept for o in others), staying, unlike.tobytes(), host_rate)
    draft = draft_of(Subject(local, cut, topology, plan, launch_s, fold, kept), write)
    program, of_rows = prices.fill(draft.program, draft.rows)
    lowered = Lowered(
        program=program,
        graph=local,
        op_costs=tuple(costs),
        cost_of_row=dict(zip(draft.rows.values(), of_rows, strict=True)),
        dimension_of_row=draft.dimension_of_row,
        talks=draft.talks,
        classes=draft.classes,
        schedules=draft.schedules,
        whole=sharded.whole,
        fastest_s=draft.fastest_s,
        staying_bytes=draft.staying,
        shortest_cut=cut.shortest,
        memory_shares=cut.memory_shares,
        shortest_memory_share=cut.shortest_memory_share,
        crowded_share=cut.crowded_share,
    )
    return with_kinds(lowered, draft.rows, others, kind_of_rank) if others else lowered


def kinds_of(cluster: Cluster, devices: int) -> tuple[tuple[Device, ...], Ints]:
    """Return the kinds of so many devices, each once, and the number of each rank's kind."""
    if not cluster.is_mixed:
        return (cluster.device,), np.zeros(devices, np.int64)
    kinds: list[Device] = []
    number: dict[int, int] = {}
    of_rank = []
    for device in cluster.devices_of(devices):
        if id(device) not in number:
            if device not in kinds:
                kinds.append(device)
            number[id(device)] = kinds.index(device)
        of_rank.append(number[id(device)])
    return tuple(kinds), np.array(of_rank, np.int64)


def unlike_ranks(kind_of_rank: Ints, faults: Faults) -> Ints:
    """Return a number for each rank: equal where devices are of one kind, and equally slow."""
    if not faults.slow:
        return kind_of_rank
    factor = np.ones(len(kind_of_rank))
    for rank, times in faults.slow:
        if rank < len(factor):  # others are refused where they are slowed (`slow_ranks`)
            factor[rank] *= times
    _, number = np.unique(np.stack((kind_of_rank, factor)), axis=1, return_inverse=True)
    return number.ravel().astype(np.int64)


def with_kinds(
    lowered: Lowered,
    rows: Mapping[tuple[OpSignature, ...], int],
    others: Sequence[OpPricer],
    kind_of_rank: Ints,
) -> Lowered:
    """Price the ops of ranks on devices of other kinds than the first's by what they cost there.

    What is sent, and the copies in memory that go with it, are priced once for all members.
    """
    program, costs = lowered.program, dict(lowered.cost_of_row)
    of_simulated = kind_of_rank[[members[0] for members in lowered.classes]]
    kind_of_task = of_simulated[program.stream_rank[program.stream]]
    kind_of_row: dict[int, int] = {}
    own_rows, task_rows = np.array(list(rows.values()), np.int64), program.cost.copy()
    for kind, prices in enumerate(others, 1):
        first = len(program.phase_ptr) - 1
        program, of_rows = prices.appended(program, rows, kind)
        where = np.full(first, -1, np.int64)
        where[own_rows] = first + np.arange(len(own_rows))
        tasks = np.flatnonzero(kind_of_task == kind)
        new = where[task_rows[tasks]]
        task_rows[tasks[new >= 0]] = new[new >= 0]
        added = range(first, first + len(own_rows))
        costs |= dict(zip(added, of_rows, strict=True))
        kind_of_row |= dict.fromkeys(added, kind)
    return replace(
        lowered,
        program=replace(program, cost=task_rows),
        cost_of_row=costs,
        kind_of_row=kind_of_row,
        kind_of_rank=tuple(of_simulated.tolist()),
        kinds=tuple(kind_prices(lowered.graph, prices) for prices in others),
    )


class KindOfDevice(NamedTuple):
    """A further kind of device of a step, and the price of every op of the graph there."""

    device: Device
    op_costs: tuple[OpCost, ...]


def kind_prices(graph: Graph, prices: OpPricer) -> KindOfDevice:
    """Return what the ops of a graph cost on a kind of device."""
    return KindOfDevice(prices.device, tuple(prices.costs(graph)))


def _check_ties(name: str, plan: Plan, cut: PipelinePartition) -> None:
    """Refuse weights that several stages share if these do not update them together."""
    if not cut.ties:
        return
    tie = cut.ties[0]
    stages = ", ".join(map(str, sorted(tie.gradients)))
    if plan.replicas and is_endless(plan.schedule, plan.pipeline):
        raise ConfigError(
            f"{name}: stages {stages} share the weights {tie.weight!r}, and with"
            f" schedule={plan.schedule} stages of different numbers of replicas update their"
            " weights at different times; allowed: 1f1b, gpipe",
            field="plan.schedule",
        )
    if SCHEDULES[plan.schedule].carried(plan.pipeline - 1, plan.pipeline, 1, 1):
        raise ConfigError(
            f"{name}: schedule={plan.schedule} updates the weights of one stage after the other,"
            f" and {tie.weight!r} is shared by stages {stages}; allowed: zero-bubble, or"
            " zero-bubble-v, whose first stage has the last layers, too",
            field="plan.schedule",
        )


def _symmetry(
    topology: Topology, plan: ResolvedPlan, mesh: Mesh, n_ops: int, unlike: Ints
) -> Symmetry:
    """Find equivalent ranks, of as many classes as can be afforded."""
    most = min(_MOST_TASKS // (n_ops * plan.micro_batches), _MOST_WRITTEN // n_ops)
    return symmetry_of(
        topology,
        mesh,
        max(1, most),
        wraps=plan.virtual_stages > 1,
        offloads=plan.offload != "none" or plan.optimizer_offload > 0,
        kind_of_rank=unlike if unlike.any() else None,
    )


def _usable(
    symmetry: Symmetry | None, faults: Faults, graph: Graph, plan: ResolvedPlan
) -> Symmetry | None:
    """Return equivalent ranks, or none where each has to be simulated: if there is room for that.

    Where one group stands for others though it is not like them, a fault, which is of one, would
    be lost.
    """
    once = sum(op.pass_ is Pass.UPDATE for op in graph.ops)
    if symmetry is not None and (symmetry.exact or not faults.of_network):
        check_size(plan, 1, len(graph.ops), once)  # classes are few (`_symmetry`)
        return symmetry
    check_size(plan, plan.devices, len(graph.ops), once)
    return None


def _written(
    rows: OpenRows,
    wires: Wires,
    mesh: Mesh,
    plan: ResolvedPlan,
    cut: PipelinePartition,
    sharded: ShardedGraph,
    launch_s: float,
    staying: tuple[Staying, ...],
    host_rate: HostRate | None,
) -> StepTemplate:
    """Write a step; nothing of the device but what its caches keep may matter here."""
    updating = 1.0 if plan.stack.optimizer.impl == "graph" else ISSUED
    apart = not plan.stack.moe.grouped_gemm
    ahead = launch_s and plan.stack.host.async_launch
    builder = rows.builder
    host = HostEmitter(builder, launch_s, plan.pipeline > 1, updating, apart) if ahead else None
    writer = BlockEmitter(builder, rows, wires, mesh, blocking(plan), host, host_rate)
    step = StepEmitter(plan, writer, cut, sharded, staying)
    step.write()
    return StepTemplate(
        program=builder.build().with_private_resources(),
        rows=rows.numbers,
        dimension_of_row=wires.dimension_of_row,
        talks=wires.talks,
        classes=tuple(members for team in step.teams for members in team.members),
        schedules=tuple(step.ends.schedules),
        fastest_s=wires.fastest_s,
        staying=rows.staying,
    )


def blocking(plan: ResolvedPlan) -> frozenset[tuple[str, str]]:
    """Return dimensions and kinds of the collectives that no op runs beside."""
    overlap = plan.stack.overlap
    beside = {"data": overlap.gradients, "beyond": overlap.gradients, "tensor": overlap.tensor}
    return frozenset(
        (dimension, kind)
        for dimension, how in beside.items()
        for kind in COLLECTIVES
        if how is False or (how == "gathers" and kind != "all-gather")
    )


@lru_cache(maxsize=8)
def _divided(key: Same, division: ShardingSpec) -> ShardedGraph:
    """Divide a graph; the same one is divided once."""
    return divide(key.graph, division)


@lru_cache(maxsize=8)
def _recomputed(key: Same, mode: str, runs: int, time_s: tuple[float, ...] | None) -> Graph:
    """Let a device's graph recompute; the same one once."""
    return with_recompute(key.graph, mode, runs=runs, time_s=time_s)


def _waited_s(
    graph: Graph, prices: OpPricer, wires: Wires, mesh: Mesh, stack: Stack
) -> list[float]:
    """Return the seconds of every op, with collectives that it waits for."""
    rates = peak_rates(prices.device)
    own_s = tuple(cost.spans(rates).time_s for cost in prices.costs(graph))
    return with_waits(graph.ops, own_s, wires, mesh, stack)


class PipelineCosts(NamedTuple):
    """What a pipeline is cut by: of ops, messages and collectives, the host; each rank's memory."""

    prices: OpPricer
    wires: Wires
    mesh: Mesh
    issue_s: float
    sizes: Ints
    fuller: tuple[float, ...]


def _cut_of(
    graph: Graph, costs: Sequence[OpCost], plan: ResolvedPlan, by: PipelineCosts
) -> PipelinePartition:
    """Cut a graph into the parts of a plan's pipeline."""
    n_parts = plan.pipeline * plan.virtual_stages
    if n_parts == 1:
        return _cut(Same(graph), (), 1, plan.stage_balance, None, None, None)
    wires, mesh, stack = by.wires, by.mesh, plan.stack
    rates = peak_rates(by.prices.device)
    own_s = tuple(cost.spans(rates).time_s for cost in costs)
    times = tuple(with_waits(graph.ops, own_s, wires, mesh, stack))
    shares = _shares(plan, wires, mesh) if plan.replicas else None
    pace, besides = None, None
    judged = plan.stage_balance == "even" or "stage_balance" not in dict(plan.decided)
    if judged and not plan.replicas:
        replicas = replicas_of(plan, stack, wires, mesh)
        stages = [mesh.replica(k) for k in range(len(mesh.stages))]
        room = room_of(stack, by.sizes, mesh.stages)
        if by.fuller:
            capacity = zip(room.capacity_bytes, by.fuller, strict=True)
            room = room._replace(capacity_bytes=tuple(size / times for size, times in capacity))
        pace = pace_of(plan, wires.topology, stages, replicas, room)
        launch = tuple(cost.latency_s for cost in costs)
        op_times = OpTimes(own_s, launch, *by.prices.moving_s(), by.issue_s)
        experts = expert_weights(graph) if plan.expert > 1 else frozenset()
        besides = _besides(Same(graph), op_times, stack, experts)
    return _cut(Same(graph), times, n_parts, plan.stage_balance, shares, pace, besides)


@lru_cache(maxsize=8)
def _cut(
    key: Same,
    times: tuple[float, ...],
    n_stages: int,
    where: Cut,
    shares: ReplicaShares | None,
    pace: Pace | None,
    besides: Overheads | None,
) -> PipelinePartition:
    """Cut a graph into stages; the same graph with the same times is cut once."""
    return partition(key.graph, times, n_stages, where, shares, pace, besides)


@lru_cache(maxsize=8)
def _besides(key: Same, times: OpTimes, stack: Stack, experts: frozenset[str]) -> Overheads:
    """Return what the units of a graph have besides their work; of the same graph, once."""
    graph, found = key.graph, units(key.graph)
    unit = [0] * len(graph.ops)
    for number, one in enumerate(found):
        for i in one.ops:
            unit[i] = number
    return overheads_of(graph, places(graph, unit), len(found), times, stack, experts)


def _shares(plan: Plan, wires: Wires, mesh: Mesh) -> ReplicaShares:
    """Price what replicas of unlike stages send, by the byte; a flush pays for sums once a step."""
    counts = counts_of(plan.replicas)
    sums = 1.0 if is_endless(plan.schedule, plan.pipeline) else 0.0
    sync = [
        sums * wires.time_s("all-reduce", mesh.groups(k, "data")[0], PROBE_BYTES) / PROBE_BYTES
        for k in range(len(counts))
    ]
    ends = [(mesh.replica(k)[0], mesh.replica(k + 1)[0]) for k in range(len(counts) - 1)]
    send = [
        wires.time_s("send", np.array(pair), PROBE_BYTES) / PROBE_BYTES / min(few)
        for pair, few in zip(ends, pairwise(counts), strict=True)
    ]
    return ReplicaShares(counts, tuple(sync), tuple(send))


def moving(plan: Plan, cluster: Cluster, wires: Wires, mesh: Mesh) -> Moving:
    """Return what decides whether an op is worth dividing over a tensor-parallel group."""
    if plan.tensor == 1:
        return Moving(1.0, 0.0)
    group = mesh.groups(0, "tensor")[0]
    fixed_s, long_s = (wires.time_s("all-reduce", group, size) for size in (1.0, PROBE_BYTES))
    byte_s = long_s / (2 * PROBE_BYTES)
    rates = [
        rate.value
        for engine in cluster.device.engines.values()
        for rate in engine.rates.values()
        if "matrix" in engine.runs
    ]
    return Moving(max(rates) * byte_s, fixed_s / 2 / byte_s)
