"""How a software stack runs the plans of a search: what bounds have to know of it.

Bounds are of the ops as the stack's passes leave them, cut where the stack cuts, on devices as slow
as the slowest is expected to be. What a stack does beside that, either costs time and memory, so
that a bound without it stays one, or saves some of it, which a bound must not count:

- collectives that ops run beside are waited for only as long as nothing runs beside them;
- where passes of two micro-batches go on side by side, no order of blocks and no wait is known;
- weights that stay gathered are not gathered again;
- buckets have the stack's size;
- on devices of several kinds, an op takes as much energy as on the best for it, and as long, or,
  without a pipeline, as on the slowest kind, which has a replica of its own;
- where weights are shared within parts of the replicas, summed in a narrower format, or where ranks
  that share experts lie across dimensions, nothing is known of what replicas send;
- sums of gradients that an allocator makes room with do not count beside activations;
- where replicas have unlike work, stages are cut by times that differ from plan to plan, so that
  only sums over stages are known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ridgeline.engine.program import Ints
from ridgeline.errors import RidgelineError
from ridgeline.hardware.cluster import Cluster
from ridgeline.hardware.device import Device
from ridgeline.kernels.cost import peak_rates
from ridgeline.network.faults import read_faults
from ridgeline.parallel.comm.stragglers import slowest
from ridgeline.parallel.lower import blocking, kinds_of, unlike_ranks
from ridgeline.parallel.partition.pipeline_partition import Cut
from ridgeline.parallel.pass_manager import run_passes
from ridgeline.parallel.plan.default_precision import default_precision
from ridgeline.parallel.plan.layers import kind_of
from ridgeline.parallel.plan.plan import Plan
from ridgeline.parallel.plan.programmed import programmed
from ridgeline.parallel.plan.resolved import ResolvedPlan, devices_of_slice, resolved
from ridgeline.parallel.plan.stack_choice import StackChoice, check_stack
from ridgeline.parallel.sharding.ring_attention import HOP
from ridgeline.parallel.sharding.shard import COLLECTIVES
from ridgeline.software.stack import Stack
from ridgeline.study.planner.plan_class import BEST, GroupKey
from ridgeline.workload.graph import Graph, Op
from ridgeline.workload.model import Model

_BESIDE = frozenset({"expert", "context", "spatial", "tensor"})


@dataclass(frozen=True)
class PlanSettings:
    """How a stack runs plans of a model on so many devices of a cluster.

    Attributes
    ----------
    chosen_by
        As in `StackChoice`.
    memory_margin
        Share of a device's memory that a plan leaves free.
    model
        As it is described; `written` is as the stack writes it.
    """

    stack: Stack
    chosen_by: str
    model: Model
    cluster: Cluster
    devices: int
    memory_margin: float = 0.0

    @cached_property
    def written(self) -> Model:
        """The model as the stack writes it."""
        return programmed(self.model, self.stack.kernels, self.cluster.device.year)

    @cached_property
    def _any(self) -> ResolvedPlan:
        """Some plan on the devices: what a stack says of all plans."""
        plan = Plan(global_batch=self.devices, data=self.devices, zero_stage=0, recompute="none")
        return self.resolved(plan)

    def resolved(self, plan: Plan) -> ResolvedPlan:
        """Return a plan as the stack runs it."""
        return resolved(plan, self.stack, self.cluster, self.model)

    @cached_property
    def kinds(self) -> tuple[Device, ...]:
        """The kinds of devices that plans use, each once."""
        return kinds_of(self.cluster, self.devices)[0]

    @cached_property
    def slowest_kind(self) -> int:
        """Number of the kind of device with the least arithmetic; `BEST` where there is one."""
        if len(self.kinds) == 1:
            return BEST
        peaks = [max(map(float, peak_rates(device).values())) for device in self.kinds]
        return peaks.index(min(peaks))

    @cached_property
    def unlike(self) -> Ints:
        """[ranks] equal where devices are of one kind, and equally slow."""
        _, kind_of_rank = kinds_of(self.cluster, self.devices)
        return unlike_ranks(kind_of_rank, read_faults(self.cluster.faults))

    @cached_property
    def sizes(self) -> Ints:
        """[ranks] bytes of each device's memory."""
        kinds, kind_of_rank = kinds_of(self.cluster, self.devices)
        found: Ints = np.array([int(kind.capacity_bytes) for kind in kinds])[kind_of_rank]
        return found

    @cached_property
    def capacity_bytes(self) -> int:
        """Memory of a device that a plan may use; of several kinds, of the largest."""
        return int(self.may_use(max(int(device.capacity_bytes) for device in self.kinds)))

    def may_use(self, capacity_bytes: float) -> float:
        """Return how much of a device's memory a plan may use."""
        return capacity_bytes * (1.0 - self.memory_margin)

    @cached_property
    def idle_w(self) -> float:
        """Idle power of all devices together."""
        devices = self.cluster.devices_of(self.devices)
        return math.fsum(device.idle_power.value for device in devices)

    @property
    def slower(self) -> float:
        """Time of the device's work that a step waits for, over that of a typical device.

        As `sending.spread.waited` of samples of equal length.
        """
        return 1.0 + math.hypot(slowest(self.devices, self._any.device_speed_std) - 1.0, 0.0)

    @property
    def idle_s(self) -> float:
        """What the device waits for before each op."""
        return 0.0 if self.stack.host.async_launch else self._launch_s

    @property
    def issue_s(self) -> float:
        """What the host takes to launch an op ahead of the device; 0: it launches none so."""
        return self._launch_s if self.stack.host.async_launch else 0.0

    @property
    def _launch_s(self) -> float:
        return self.stack.host.launch_time * self.cluster.nodes.host.issue.value

    @property
    def load(self) -> float:
        """Tokens of the fullest expert over the mean."""
        return self._any.expert_load_factor

    @property
    def cut(self) -> Cut:
        """Where a pipeline is cut."""
        return self.stack.plan.stage_balance or "even"

    @property
    def knows_cuts(self) -> bool:
        """Whether stages are cut by times that are the same for all plans with the same ops."""
        return self.cut != "even" or not self._any.sequence_length_std

    def rewritten(self, graph: Graph) -> Graph:
        """Return the graph of a device as the stack's passes leave it."""
        return run_passes(graph, self.stack, self.cluster.device)

    @property
    def grows(self) -> bool:
        """Whether ops that are done again leave the others of a graph as they are.

        Passes that join ops, or cut them, go by who reads what they make.
        """
        return self.stack.kernels.norm != "fused" and self.stack.overlap.tensor != "pieces"

    @cached_property
    def _blocking(self) -> frozenset[tuple[str, str]]:
        return blocking(self._any)

    def is_beside(self, op: Op) -> bool:
        """Whether ops may run beside a collective between ranks that share samples or experts.

        What goes round in a ring block by block is none: how long it is waited for is left out.
        """
        if op.kind not in COLLECTIVES or op.kind == HOP:
            return False
        kind = kind_of(str(dict(op.attrs).get("dimension")))
        return kind in _BESIDE and (kind, op.kind) not in self._blocking

    def folds(self, key: GroupKey) -> int:
        """Return how many devices share the features of an expert by the stack's default.

        As `plan.resolved` fills the field: where a plan does not go with it, it is left out.
        """
        features = self.stack.plan.expert_tensor_parallel or 0
        if not features or key.expert == 1 or key.grid is not None or key.images != (1, 1):
            return 0
        if features not in {1, key.tensor} or (features < key.tensor and not key.sequence):
            return 0
        span, within = features * key.expert, key.tensor * key.context
        fits = any(
            span % below == 0 and above % span == 0
            for below, above in ((1, key.tensor), (key.tensor, within))
        )
        return features if fits or span % within == 0 else 0

    @property
    def pairs_passes(self) -> bool:
        """Whether passes of two micro-batches with shared experts go on side by side."""
        return self.stack.overlap.moe_a2a

    @cached_property
    def shares_in_slices(self) -> bool:
        """Whether weights may be shared within parts of the replicas."""
        slices = self.stack.plan.hybrid_shard_size is not None
        return slices and devices_of_slice(self.cluster, self.devices) > 0

    @property
    def knows_sums(self) -> bool:
        """Whether gradients are sent in the format that they are added up in."""
        return not self.stack.gradients.reduce_dtype

    def bucket_bytes(self, data: int) -> float:
        """Return the least size of a bucket between so many replicas."""
        gradients = self.stack.gradients
        return max(gradients.bucket, gradients.bucket_per_rank * data)

    def in_parts(self, *, back: bool) -> bool:
        """Whether tensor-parallel ranks send messages between stages in parts."""
        pieces = self.stack.pipeline.p2p_scatter_gather
        return pieces == "both" or (pieces == "forward" and not back)

    @property
    def keeps_sums(self) -> bool:
        """Whether sums of gradients are there while activations are."""
        return self.stack.memory.allocator != "caching"

    def able(self, dimension: str) -> bool:
        """Whether the stack has a dimension of plans."""
        can = self.stack.supports.plan
        return not can or dimension in can

    def check(self, precision: str) -> None:
        """Refuse a stack that cannot run the model, the machine or the precision.

        Raises
        ------
        RidgelineError
            With the reason.
        """
        if self.stack.kernels.fused_layers is not None:
            raise RidgelineError(
                f"{self.stack.name} fuses layers (software.kernels.fused_layers), which the bounds"
                " of a search do not know: search without, and run the plan with it"
            )
        plan = Plan(global_batch=1, precision=precision)
        check_stack(self.stack, self.model, self.cluster, plan)

    def said(self, plan: Plan) -> dict[str, Any]:
        """Return the fields of a plan that the stack has to be told; it fills the others alike."""
        whole = self.resolved(plan)
        fields = plan.model_dump(exclude_defaults=True)
        try:
            short = self.resolved(Plan(**fields))
        except RidgelineError:
            return plan.model_dump()
        more = [f for f in Plan.model_fields if getattr(short, f) != getattr(whole, f)]
        return {**fields, **{name: getattr(whole, name) for name in more}}

    def notes(self) -> tuple[str, ...]:
        """Say what of a search follows from the stack."""
        found = []
        if can := self.stack.supports.plan:
            found.append(f"{self.stack.name} has no parallelism but {', '.join(can)}")
        if given := _given(self.stack):
            found.append(f"{self.stack.name} decides {given} of every plan")
        return tuple(found)


def _given(stack: Stack) -> str:
    """Return defaults of a stack that a search does not enumerate."""
    names = ("stage_balance", "hybrid_shard_size", "expert_tensor_parallel")
    values = {name: getattr(stack.plan, name) for name in names}
    return ", ".join(f"{name}={value}" for name, value in values.items() if value is not None)


def running(
    choice: StackChoice, model: Model, cluster: Cluster, devices: int, precision: str | None,
    memory_margin: float = 0.0,
) -> tuple[PlanSettings, str]:  # fmt: skip
    """Return how a stack runs plans of a search, and in which precision.

    Raises
    ------
    RidgelineError
        If the stack cannot run the model on the machine in this precision.
    """
    one = PlanSettings(choice.stack, choice.chosen_by, model, cluster, devices, memory_margin)
    precision = precision or choice.stack.plan.precision
    precision = precision or default_precision(model.network.precision, cluster.device)
    one.check(precision)
    return one, precision
