"""Lowering: a training graph, a plan and a cluster become a Program for the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.engine.builder import Phase, ProgramBuilder
from ridgeline.engine.program import Program
from ridgeline.hardware.cluster import Cluster
from ridgeline.hardware.device import Device
from ridgeline.kernels import OpCost, price_all
from ridgeline.kernels.cost import places, price_of_place
from ridgeline.network.schedule import ALGORITHMS, Schedule
from ridgeline.network.topology import Topology
from ridgeline.parallel.buckets import Bucket, gradient_buckets
from ridgeline.parallel.fold import equivalent_ranks
from ridgeline.parallel.plan import Plan
from ridgeline.workload.graph import Graph, Op, Pass
from ridgeline.workload.liveness import MemoryPlan, memory_entries

COLLECTIVE = "collective"


@dataclass(frozen=True)
class Lowered:
    """A Program and what a reader needs to explain its Timeline.

    Attributes
    ----------
    program
        What the engine plays.
    graph
        Training graph of one micro-batch.
    op_costs
        Price of every op of the graph, in graph order.
    cost_of_row
        Op price behind each cost row of the program; None for a collective.
    classes
        Ranks that each simulated rank stands for.
    schedules
        The collectives of one step, in the order in which they are issued.
    """

    program: Program
    graph: Graph
    op_costs: tuple[OpCost, ...]
    cost_of_row: dict[int, OpCost]
    classes: tuple[tuple[int, ...], ...]
    schedules: tuple[Schedule, ...]

    @property
    def ops(self) -> tuple[Op, ...]:
        """Every op of the graph, in graph order."""
        return self.graph.ops


def lower(
    graph: Graph, plan: Plan, cluster: Cluster, topology: Topology, *, fold: bool = True
) -> Lowered:
    """Distribute one training step.

    Every rank plays the graph's ops in order on its compute stream, once per micro-batch, and the
    updates at the end. Gradients are reduced bucket by bucket on a second stream, as soon as the
    last micro-batch has made them, or after the backward pass with ``overlap=False``.

    Parameters
    ----------
    graph
        Training graph of one micro-batch.
    fold
        Simulate one of each class of equivalent ranks (True), or every rank.
    """
    ranks = range(plan.data)
    buckets = gradient_buckets(graph, plan.bucket) if plan.data > 1 else ()
    classes = equivalent_ranks([cluster.device.name] * plan.data, [("all-reduce", ranks)])
    if not fold:
        classes = [[rank] for rank in ranks]
    lowering = _Lowering(graph, plan, cluster.device, topology, classes)
    all_reduce = ALGORITHMS["all-reduce", "ring"]
    schedules = tuple(all_reduce(topology, ranks, float(b.size_bytes)) for b in buckets)
    lowering.play(buckets, schedules)
    return Lowered(
        program=lowering.builder.build(),
        graph=graph,
        op_costs=tuple(lowering.op_costs),
        cost_of_row=lowering.cost_of_row,
        classes=tuple(tuple(members) for members in classes),
        schedules=schedules,
    )


class _Lowering:
    def __init__(
        self,
        graph: Graph,
        plan: Plan,
        device: Device,
        topology: Topology,
        classes: Sequence[Sequence[int]],
    ) -> None:
        self.graph, self.plan, self.device, self.topology = graph, plan, device, topology
        self.classes = classes
        self.builder = ProgramBuilder()
        self.op_costs = price_all(graph, device)
        self.memory: MemoryPlan = memory_entries(graph)
        self.cost_of_row: dict[int, OpCost] = {}
        self.links: dict[int, int] = {}
        self.ranks: list[int] = []
        self.compute: list[int] = []
        self.network: list[int] = []
        self.rows: list[list[int]] = []  # cost row of every op, per simulated rank
        self.tail: list[int | None] = []  # last task on every rank's compute stream
        self.group: int | None = None
        self.accumulate: list[dict[int, int]] = []
        self.accounts = self._device_accounts()
        for members in classes:
            self._add_rank(members)

    def _device_accounts(self) -> dict[str, int]:
        """Open a ledger account for every engine and format and every memory level."""
        accounts = {}
        for place in places(self.device):
            component, unit, price_j = price_of_place(self.device, place)
            accounts[place] = self.builder.add_account(component, place, unit, price_j)
        return accounts

    def _add_rank(self, members: Sequence[int]) -> None:
        """Add a simulated rank: its resources, streams, cost rows and standing memory."""
        name = f"device{members[0]}"
        rank = self.builder.add_rank(multiplicity=len(members))
        self.ranks.append(rank)
        self.tail.append(None)
        self.compute.append(self.builder.add_stream(f"{name}/compute", rank))
        if self.plan.data > 1:
            self.network.append(self.builder.add_stream(f"{name}/network", rank))
        resources: dict[str, int] = {}
        for engine_name, engine in self.device.engines.items():
            for format_, rate in engine.rates.items():
                key = f"{engine_name}.{format_}"
                resources[key] = self.builder.add_resource(f"{name}/{key}", rate.value)
        for level_name, level in self.device.memory.items():
            if level.bandwidth is not None:
                resources[level_name] = self.builder.add_resource(
                    f"{name}/{level_name}", level.bandwidth.value
                )
        self.rows.append([self._cost_row(cost, resources) for cost in self.op_costs])
        self.accumulate.append(
            {
                i: self._accumulation_row(i, resources)
                for i, op in enumerate(self.graph.ops)
                if self.plan.micro_batches > 1 and op.pass_ is Pass.WEIGHT_GRADIENT
            }
        )
        for kind, size in self.memory.initial.items():
            self.builder.set_initial_memory(rank, kind, size)

    def _cost_row(self, cost: OpCost, resources: dict[str, int]) -> int:
        works = {resources[n]: w for n, w in {**cost.engine_work, **cost.level_work}.items()}
        row = self.builder.add_cost([Phase(cost.latency_s, works)], self._events(cost))
        self.cost_of_row[row] = cost
        return row

    def _accumulation_row(self, index: int, resources: dict[str, int]) -> int:
        """Cost row of adding the gradients of one op to those of the micro-batches before."""
        op = self.graph.ops[index]
        size = sum(self.graph.tensors[n].bytes for n in op.outputs)
        cost = OpCost(self.device.launch_latency.value)
        for name, level in self.device.memory.items():
            cost.traffic_bytes[name] = 3.0 * size  # read both, write one
            if level.bandwidth is not None:
                cost.level_work[name] = 3.0 * size / level.achievable.value
        return self._cost_row(cost, resources)

    def _events(self, cost: OpCost) -> dict[int, float]:
        """List what an op puts into the ledger: FLOPs by engine and format, bytes by level."""
        counts = {**cost.flops, **cost.traffic_bytes}
        return {self.accounts[place]: count for place, count in counts.items()}

    def play(self, buckets: Sequence[Bucket], schedules: Sequence[Schedule]) -> None:
        """Add all tasks of one step."""
        step = [i for i, op in enumerate(self.graph.ops) if op.pass_ is not Pass.UPDATE]
        update = [i for i, op in enumerate(self.graph.ops) if op.pass_ is Pass.UPDATE]
        last: dict[int, list[int]] = {}  # op -> its task of the last micro-batch, on every rank
        for micro_batch in range(self.plan.micro_batches):
            for op in step:
                last[op] = self._add_op(op, micro_batch)
        reduced: list[int] = []  # the last collective: the stream plays them in order
        for bucket, schedule in zip(buckets, schedules, strict=True):
            ready = last[bucket.ready if self.plan.overlap else step[-1]]
            reduced = [self._add_collective(bucket, schedule, [*ready, *reduced])]
        for op in update:
            self._add_op(op, self.plan.micro_batches - 1, reduced)
            reduced = []  # the compute stream is in order: the first update has waited for all

    def _add_op(self, index: int, micro_batch: int, after: Sequence[int] = ()) -> list[int]:
        """Add one op to the compute stream of every rank; return its tasks."""
        op = self.graph.ops[index]
        tasks = []
        for rank in range(len(self.classes)):
            memory = [
                (self.ranks[rank], kind, start, end)
                for kind, start, end in self.memory.entries[index]
                if not (micro_batch > 0 and kind == "gradients")  # accumulated in place
            ]
            task = self._add_task(
                op.pass_.value, op.name, rank, self.rows[rank][index], after, memory
            )
            if micro_batch > 0 and index in self.accumulate[rank]:
                row = self.accumulate[rank][index]
                task = self._add_task(op.pass_.value, f"{op.name}.accumulate", rank, row)
            tasks.append(task)
        return tasks

    def _add_task(
        self,
        kind: str,
        label: str,
        rank: int,
        row: int,
        after: Sequence[int] = (),
        memory: Sequence[tuple[int, str, int, int]] = (),
    ) -> int:
        tail = self.tail[rank]
        self.tail[rank] = task = self.builder.add_task(
            kind,
            label,
            stream=self.compute[rank],
            cost=row,
            deps=[*([] if tail is None else [tail]), *after],
            multiplicity=len(self.classes[rank]),
            memory=memory,
        )
        return task

    def _add_collective(self, bucket: Bucket, schedule: Schedule, deps: Sequence[int]) -> int:
        """Add one all-reduce; its cost row carries the load of the whole group on every link."""
        phases = [
            Phase(latency_s, {self._link(link): size for link, size in loads.items()}, repeat)
            for latency_s, repeat, loads in schedule.phases
        ]
        row = self.builder.add_cost(phases, self._collective_events(bucket, schedule))
        label = f"all-reduce {bucket.tensors[0]}"
        if len(bucket.tensors) > 1:
            label += f" +{len(bucket.tensors) - 1}"
        if len(self.network) == 1:
            return self.builder.add_task(
                COLLECTIVE, label, stream=self.network[0], cost=row, deps=deps
            )
        if self.group is None:
            self.group = self.builder.add_group(self.network)
        return self.builder.add_task(COLLECTIVE, label, group=self.group, cost=row, deps=deps)

    def _link(self, link: int) -> int:
        """Resource of a directed link; links are shared by everything that crosses them."""
        if link not in self.links:
            self.links[link] = self.builder.add_resource(
                self.topology.link_name(link),
                float(self.topology.bandwidth_bytes_per_s[link]),
                shared=True,
            )
        return self.links[link]

    def _collective_events(self, bucket: Bucket, schedule: Schedule) -> dict[int, float]:
        """Bytes on every class of link, and the compulsory memory traffic of all members.

        Each member reads its operand once and writes the result once; what a ring keeps of partial
        sums in buffers on the way is not counted.
        """
        events: dict[int, float] = {}
        for link, size in schedule.bytes_on_wire().items():
            account = self.builder.add_account(
                "network",
                self.topology.link_class[link],
                "B",
                float(self.topology.energy_j_per_byte[link]),
            )
            events[account] = events.get(account, 0.0) + size
        far = self.accounts[self.device.far_memory]
        events[far] = 2.0 * bucket.size_bytes * self.plan.data
        return events
